// One stream, in which kernels and host functions use managed memory in turns: a function touches
// what the kernels before and behind it use, and nothing else runs. Natively that is right also
// where a device has no concurrent managed access. Kernels behind a function find the memory by
// pointers alone.
#include <unistd.h>

#include "common.h"

constexpr size_t kPageWords = (size_t{2} << 20) / 4, kPages = 3, kWords = kPages * kPageWords;
constexpr int kBuffers = 4, kThreads = 32;

__global__ void change(uint32_t* buffer, uint32_t factor, uint32_t add) {
  uint32_t& word = buffer[size_t{blockIdx.x} * kPageWords + threadIdx.x];
  word = word * factor + add;
}
__global__ void changeIn(uint32_t** table, uint32_t which, uint32_t factor, uint32_t add) {
  uint32_t& word = table[which][size_t{blockIdx.x} * kPageWords + threadIdx.x];
  word = word * factor + add;
}

struct Function {
  uint32_t* buffer;
  uint32_t add;
  unsigned microseconds;
};
static void onHost(void* data) {
  const auto* function = static_cast<Function*>(data);
  if (function->microseconds != 0) usleep(function->microseconds);
  for (size_t page = 0; page < kPages; ++page)
    for (int i = 0; i < kThreads; ++i) {
      uint32_t& word = function->buffer[page * kPageWords + i];
      word = word * 5 + function->add;
    }
  delete function;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  uint32_t *buffers[kBuffers], **table, expected[kBuffers] = {};
  for (uint32_t*& buffer : buffers) {
    RUNTIME_OK(cudaMallocManaged(&buffer, kWords * 4));
    memset(buffer, 0, kWords * 4);
  }
  RUNTIME_OK(cudaMalloc(&table, sizeof buffers));
  RUNTIME_OK(cudaMemcpy(table, buffers, sizeof buffers, cudaMemcpyHostToDevice));
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (uint32_t round = 0; round < 40; ++round) {
    for (uint64_t n = 1 + random.below(2); n != 0; --n) {
      const auto which = uint32_t(random.below(kBuffers)), add = uint32_t(random.below(1 << 20));
      change<<<kPages, kThreads, 0, stream>>>(buffers[which], add | 1, add);
      expected[which] = expected[which] * (add | 1) + add;
    }
    for (uint64_t n = 1 + random.below(3); n != 0; --n) {
      const auto which = uint32_t(random.below(kBuffers)), add = uint32_t(random.below(1 << 20));
      RUNTIME_OK(cudaLaunchHostFunc(
          stream, onHost, new Function{buffers[which], add, unsigned(random.below(3) * 700)}));
      expected[which] = expected[which] * 5 + add;
    }
    for (uint64_t n = 1 + random.below(2); n != 0; --n) {
      const auto which = uint32_t(random.below(kBuffers));
      changeIn<<<kPages, kThreads, 0, stream>>>(table, which, 3, round);
      expected[which] = expected[which] * 3 + round;
    }
    RUNTIME_OK(cudaGetLastError());
    // What is asked, recorded, copied and synchronised behind them, or another round.
    if (round % 4 == 1) {
      uint32_t word = 0;
      RUNTIME_OK(cudaMemcpyAsync(&word, buffers[0], 4, cudaMemcpyDeviceToHost, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
      CHECK(word == expected[0], "a copy behind them has %#x, not %#x", word, expected[0]);
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
  for (int which = 0; which < kBuffers; ++which)
    for (size_t page = 0; page < kPages; ++page)
      for (int i = 0; i < kThreads; ++i)
        CHECK(buffers[which][page * kPageWords + i] == expected[which],
              "buffer %d has %#x, not %#x", which, buffers[which][page * kPageWords + i],
              expected[which]);
  return apps::ok("kernels and host functions in turns");
}
