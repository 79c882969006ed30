// Host functions that touch managed memory, between kernels of one stream that use it too. The
// kernels behind a function find the memory by a table, and are seen for the first time while the
// function runs: the driver may load their code then.
#include <unistd.h>

#include "common.h"

constexpr uint32_t kPageWords = (2u << 20) / 4, kPages = 3, kBuffers = 4, kUsed = 32;

__global__ void change(uint32_t* buffer, uint32_t by, uint32_t more) {
  uint32_t& word = buffer[blockIdx.x * kPageWords + threadIdx.x];
  word = word * by + more;
}

template <int kKernel>
__global__ void changeThrough(uint32_t** table, uint32_t which, uint32_t more) {
  uint32_t& word = table[which][blockIdx.x * kPageWords + threadIdx.x];
  word = word * 3 + more + kKernel;
}

struct Change {
  uint32_t* buffer;
  uint32_t more;
  useconds_t after;
};
static void onHost(void* data) {
  auto* const change = static_cast<Change*>(data);
  usleep(change->after);
  for (uint32_t page = 0; page < kPages; ++page) {
    for (uint32_t i = 0; i < kUsed; ++i) {
      uint32_t& word = change->buffer[page * kPageWords + i];
      word = word * 5 + change->more;
    }
  }
  delete change;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("the CPU may not touch managed memory while a kernel runs");
  uint32_t *buffers[kBuffers], **table, expected[kBuffers] = {};
  for (auto& buffer : buffers) {
    RUNTIME_OK(cudaMallocManaged(&buffer, kPages * kPageWords * 4));
    std::memset(buffer, 0, kPages * kPageWords * 4);
  }
  RUNTIME_OK(cudaMalloc(&table, sizeof buffers));
  RUNTIME_OK(cudaMemcpy(table, buffers, sizeof buffers, cudaMemcpyHostToDevice));
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (uint32_t round = 0; round < 12; ++round) {
    const auto of = [&] { return uint32_t(random.below(kBuffers)); };
    uint32_t which = of();
    change<<<kPages, kUsed, 0, stream>>>(buffers[which], round * 2 + 1, round);
    expected[which] = expected[which] * (round * 2 + 1) + round;
    for (uint64_t n = 1 + random.below(2); n > 0; --n) {
      which = of();
      RUNTIME_OK(cudaLaunchHostFunc(
          stream, onHost, new Change{buffers[which], round, useconds_t(random.below(3) * 1000)}));
      expected[which] = expected[which] * 5 + round;
    }
    which = of();
    switch (round) {
      case 0:
        changeThrough<0><<<kPages, kUsed, 0, stream>>>(table, which, round);
        break;
      case 1:
        changeThrough<1><<<kPages, kUsed, 0, stream>>>(table, which, round);
        break;
      default:
        changeThrough<2><<<kPages, kUsed, 0, stream>>>(table, which, round);
    }
    expected[which] = expected[which] * 3 + round + (round < 2 ? round : 2);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaStreamSynchronize(stream));
  }
  for (uint32_t k = 0; k < kBuffers; ++k)
    for (uint32_t at = 0; at < kPages * kPageWords; at += kPageWords)
      CHECK(buffers[k][at] == expected[k], "buffer %u has %#x, expected %#x", k, buffers[k][at],
            expected[k]);
  return apps::ok("host functions between kernels");
}
