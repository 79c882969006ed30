// One stream, in which kernels and host functions use managed memory in turns: a function touches
// what the kernels before and behind it use, and nothing else runs. Natively that is right also
// where a device has no concurrent managed access. Kernels behind a function find the memory by
// pointers alone.
#include "host_changes.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  HostChanges changes(stream);
  for (uint32_t round = 0; round < 40; ++round) {
    for (uint64_t n = 1 + random.below(2); n != 0; --n) {
      const auto which = uint32_t(random.below(kBuffers)), add = uint32_t(random.below(1 << 20));
      changes.byKernel(which, add | 1, add);
    }
    for (uint64_t n = 1 + random.below(3); n != 0; --n) {
      const auto which = uint32_t(random.below(kBuffers)), add = uint32_t(random.below(1 << 20));
      changes.byHost(which, add, useconds_t(random.below(3) * 700));
    }
    for (uint64_t n = 1 + random.below(2); n != 0; --n)
      changes.byTable<0>(uint32_t(random.below(kBuffers)), 3, round);
    RUNTIME_OK(cudaGetLastError());
    // A question, a record, a copy and a synchronisation behind them, or another round.
    if (round % 4 == 1) {
      uint32_t word = 0;
      RUNTIME_OK(cudaMemcpyAsync(&word, changes.buffer(0), 4, cudaMemcpyDeviceToHost, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
      CHECK(word == changes.expected(0), "a copy behind them has %#x, not %#x", word,
            changes.expected(0));
    } else if (round % 4 == 3) {
      cudaEvent_t event;
      RUNTIME_OK(cudaEventCreate(&event));
      RUNTIME_OK(cudaEventRecord(event, stream));
      while (cudaEventQuery(event) == cudaErrorNotReady) usleep(100);
      RUNTIME_OK(cudaEventDestroy(event));
    } else if (round % 4 == 2) {
      RUNTIME_OK(cudaStreamSynchronize(stream));
    }
  }
  RUNTIME_OK(cudaStreamSynchronize(stream));
  changes.check();
  return apps::ok("kernels and host functions in turns");
}
