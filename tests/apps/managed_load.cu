// Host functions that touch managed memory, between kernels of one stream that use it too. The
// kernels behind a function find the memory by a table, and are seen for the first time while the
// function runs: the driver may load their code then.
#include "host_changes.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("the CPU may not touch managed memory while a kernel runs");
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  HostChanges changes(stream);
  for (uint32_t round = 0; round < 12; ++round) {
    const auto of = [&] { return uint32_t(random.below(kBuffers)); };
    changes.byKernel(of(), round * 2 + 1, round);
    for (uint64_t n = 1 + random.below(2); n > 0; --n) {
      const uint32_t which = of();
      changes.byHost(which, round, useconds_t(random.below(3) * 1000));
    }
    switch (round) {
      case 0:
        changes.byTable<0>(of(), 3, round);
        break;
      case 1:
        changes.byTable<1>(of(), 3, round);
        break;
      default:
        changes.byTable<2>(of(), 3, round);
    }
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaStreamSynchronize(stream));
  }
  changes.check();
  return apps::ok("host functions between kernels");
}
