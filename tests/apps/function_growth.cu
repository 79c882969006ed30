// Kernels behind a host function that reach more than when they were launched: the function writes
// pointers to large buffers into the managed memory that they follow. There is room for each of
// them, and not for two. Natively each runs when its turn comes.
#include <unistd.h>

#include "common.h"

namespace {

constexpr uint32_t kKernels = 4, kStep = 4096;
constexpr size_t kTableBytes = 2 << 20;

__global__ void visit(uint32_t** table, size_t count) {
  uint32_t* const words = table[0];
  if (words == nullptr) return;
  for (size_t i = threadIdx.x * size_t{kStep}; i < count; i += blockDim.x * size_t{kStep})
    words[i] += 1;
}

struct Pointers {
  uint32_t** tables[kKernels];
  uint32_t* buffers[kKernels];
};
void CUDART_CB write(void* data) {
  const auto* const all = static_cast<Pointers*>(data);
  usleep(300'000);
  for (uint32_t i = 0; i < kKernels; ++i) all->tables[i][0] = all->buffers[i];
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t bytes = options.bytes & ~size_t{4095}, count = bytes / 4;
  Pointers all{};
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (uint32_t i = 0; i < kKernels; ++i) {
    RUNTIME_OK(cudaMalloc(&all.buffers[i], bytes));
    RUNTIME_OK(cudaMemset(all.buffers[i], 0, bytes));
    RUNTIME_OK(cudaMallocManaged(&all.tables[i], kTableBytes));
    all.tables[i][0] = nullptr;
    visit<<<1, 64, 0, stream>>>(all.tables[i], count);
    RUNTIME_OK(cudaGetLastError());
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaLaunchHostFunc(stream, write, &all));
  for (uint32_t i = 0; i < kKernels; ++i) {
    visit<<<1, 64, 0, stream>>>(all.tables[i], count);
    RUNTIME_OK(cudaGetLastError());
  }
  RUNTIME_OK(cudaStreamSynchronize(stream));
  std::vector<uint32_t> words(count);
  for (uint32_t i = 0; i < kKernels; ++i) {
    RUNTIME_OK(cudaMemcpy(words.data(), all.buffers[i], bytes, cudaMemcpyDeviceToHost));
    for (size_t at = 0; at < count; at += kStep)
      CHECK(words[at] == 1, "word %zu of buffer %u is %u", at, i, words[at]);
  }
  return apps::ok("%u kernels behind a function", kKernels);
}
