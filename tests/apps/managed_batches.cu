// Batches for managed memory (CUDA 13): prefetches of several ranges to several places, discards,
// both at once. The call's answer is all there is: no later synchronisation fails. Values stay, but
// for what is discarded, which is written again.
#include "common.h"

__global__ void add(uint32_t* at, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) at[i] += value;
}
__global__ void put(uint32_t* at, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) at[i] = value + i;
}

namespace {

constexpr int kBlocks = 4;
constexpr CUmemLocation kDevice{CU_MEM_LOCATION_TYPE_DEVICE, 0},
    kHost{CU_MEM_LOCATION_TYPE_HOST, 0};

// Accepts the native answers of a call: it does it, or the driver is without it.
bool done(const char* what, CUresult result) {
  CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED, "%s: %d", what, int(result));
  return result == CUDA_SUCCESS;
}

int lastPrefetch(CUdeviceptr at, size_t bytes) {
  int device = 7;
  DRIVER_OK(cuMemRangeGetAttribute(&device, sizeof device,
                                   CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, at, bytes));
  return device;
}

struct Blocks {
  CUdeviceptr at[kBlocks];
  size_t sizes[kBlocks];
  uint32_t words;

  uint32_t* words_of(int k) const { return reinterpret_cast<uint32_t*>(at[k]); }
};

// Nothing of a batch is done where a part of it can't be.
void checkRefusals(const Blocks& blocks, CUdeviceptr device_memory, CUstream stream) {
  CUmemLocation places[] = {kDevice, kHost};
  size_t first[] = {0, 1}, not_first[] = {1, 2}, twice[] = {0, 0};
  CUdeviceptr mixed[] = {blocks.at[0], device_memory}, all[] = {blocks.at[0], blocks.at[1]};
  size_t sizes[] = {blocks.sizes[0], 4096},
         too_large[] = {blocks.sizes[0], blocks.sizes[1] + (64 << 20)};
  const auto refused = [](const char* what, CUresult result) {
    CHECK(result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED, "%s: %d", what,
          int(result));
  };
  refused("prefetch of device memory",
          cuMemPrefetchBatchAsync(mixed, sizes, 2, places, first, 2, 0, stream));
  refused("discard of device memory", cuMemDiscardBatchAsync(mixed, sizes, 2, 0, stream));
  refused("both of device memory",
          cuMemDiscardAndPrefetchBatchAsync(mixed, sizes, 2, places, first, 2, 0, stream));
  refused("discard beyond the end", cuMemDiscardBatchAsync(all, too_large, 2, 0, stream));
  refused("discard with flags", cuMemDiscardBatchAsync(all, sizes, 2, 1, stream));
  refused("discard of none", cuMemDiscardBatchAsync(all, sizes, 0, 0, stream));
  refused("prefetch from the second on",
          cuMemPrefetchBatchAsync(all, sizes, 2, places, not_first, 2, 0, stream));
  refused("two places for one",
          cuMemPrefetchBatchAsync(all, sizes, 2, places, twice, 2, 0, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  int managed = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
  if (managed == 0) apps::skip("no managed memory");
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Blocks blocks;
  const size_t bytes = options.bytes / 64 & ~size_t{65535};
  blocks.words = uint32_t(bytes / 4);
  for (int k = 0; k < kBlocks; ++k) {
    uint32_t* words;
    RUNTIME_OK(cudaMallocManaged(&words, bytes));
    for (uint32_t i = 0; i < blocks.words; ++i) words[i] = k * 1000 + i;
    blocks.at[k] = CUdeviceptr(words);
    blocks.sizes[k] = bytes;
  }
  const unsigned grid = apps::blocks(blocks.words);
  const auto sync = [&] { RUNTIME_OK(cudaStreamSynchronize(stream)); };
  const auto holds = [&](int k, uint32_t first, const char* what) {
    for (uint32_t i = 0; i < blocks.words; ++i)
      CHECK(blocks.words_of(k)[i] == first + i, "%s: word %u of %d is %u", what, i, k,
            blocks.words_of(k)[i]);
  };
  CUmemLocation places[] = {kDevice, kHost};
  size_t from[] = {0, 3};
  if (done("prefetch",
           cuMemPrefetchBatchAsync(blocks.at, blocks.sizes, kBlocks, places, from, 2, 0, stream))) {
    CHECK(lastPrefetch(blocks.at[2], bytes) == 0, "the third went to %d",
          lastPrefetch(blocks.at[2], bytes));
    CHECK(lastPrefetch(blocks.at[3], bytes) == CU_DEVICE_CPU, "the last to %d",
          lastPrefetch(blocks.at[3], bytes));
  }
  for (int k = 0; k < kBlocks; ++k)
    add<<<grid, 256, 0, stream>>>(blocks.words_of(k), blocks.words, 7);
  sync();
  for (int k = 0; k < kBlocks; ++k) holds(k, k * 1000 + 7, "prefetched and added to");
  done("discard", cuMemDiscardBatchAsync(blocks.at, blocks.sizes, 1, 0, stream));
  sync();
  put<<<grid, 256, 0, stream>>>(blocks.words_of(0), blocks.words, 3);
  sync();
  holds(0, 3, "discarded and written");
  holds(1, 1007, "beside what was discarded");
  // Part of one: the rest stays.
  CUdeviceptr half[] = {blocks.at[3] + bytes / 2};
  size_t half_bytes[] = {bytes / 2};
  done("discard of a half", cuMemDiscardBatchAsync(half, half_bytes, 1, 0, stream));
  sync();
  for (uint32_t i = 0; i < blocks.words / 2; ++i)
    CHECK(blocks.words_of(3)[i] == 3007 + i, "a kept half: word %u", i);
  for (uint32_t i = blocks.words / 2; i < blocks.words; ++i) blocks.words_of(3)[i] = 3007 + i;
  if (done("both", cuMemDiscardAndPrefetchBatchAsync(blocks.at, blocks.sizes, 2, places, from, 1, 0,
                                                     stream)))
    CHECK(lastPrefetch(blocks.at[1], bytes) == 0, "the second went to %d",
          lastPrefetch(blocks.at[1], bytes));
  put<<<grid, 256, 0, stream>>>(blocks.words_of(0), blocks.words, 4);
  put<<<grid, 256, 0, stream>>>(blocks.words_of(1), blocks.words, 5);
  sync();
  holds(0, 4, "discarded, prefetched and written");
  holds(1, 5, "discarded, prefetched and written");
  holds(3, 3007, "written by the CPU after a discard");
  uint32_t* device;
  RUNTIME_OK(cudaMalloc(&device, bytes));
  checkRefusals(blocks, CUdeviceptr(device), stream);
  holds(0, 4, "after refusals");
  RUNTIME_OK(cudaDeviceSynchronize());
  for (int k = 0; k < kBlocks; ++k) RUNTIME_OK(cudaFree(blocks.words_of(k)));
  RUNTIME_OK(cudaFree(device));
  return apps::ok("managed_batches of %d times %zu KiB", kBlocks, bytes >> 10);
}
