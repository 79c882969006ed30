// Many small blocks of registered and of pinned memory, in a program that may open few files: all
// are used by copies, some by kernels through a table. Natively a block takes no descriptor of the
// program's.
#include <sys/mman.h>
#include <sys/resource.h>

#include "common.h"

namespace {

constexpr uint32_t kRegistered = 400, kPinned = 120, kBlocks = kRegistered + kPinned;
constexpr uint32_t kWords = 1024, kBytes = kWords * 4, kEach = 7, kRounds = 5;

__global__ void bump(uint32_t* words) {
  for (uint32_t block = threadIdx.x; block < kBlocks; block += blockDim.x) {
    words[block * kWords] += 1;
    words[block * kWords + kWords - 1] += 2;
  }
}
__global__ void visit(uint32_t* const* table, uint32_t count) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) table[i][5] += table[i][6];
}

uint32_t first(uint32_t block, uint32_t i) { return block * 7 + i; }

}  // namespace

int main(int argc, char** argv) {
  apps::parse(argc, argv);
  rlimit few{};
  CHECK(getrlimit(RLIMIT_NOFILE, &few) == 0, "no limit of open files");
  few.rlim_cur = 200;
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0, "the limit of open files stays");
  // Half of them side by side, half with a page between.
  char* const area =
      static_cast<char*>(mmap(nullptr, size_t{kRegistered} * 2 * kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(area != MAP_FAILED, "no memory");
  std::vector<uint32_t*> blocks;
  for (uint32_t i = 0; i < kRegistered; ++i) {
    const uint32_t page = i < kRegistered / 2 ? i : 2 * i - kRegistered / 2;
    blocks.push_back(reinterpret_cast<uint32_t*>(area + size_t{page} * kBytes));
    RUNTIME_OK(cudaHostRegister(blocks.back(), kBytes, cudaHostRegisterDefault));
  }
  for (uint32_t i = 0; i < kPinned; ++i) {
    void* block;
    RUNTIME_OK(cudaHostAlloc(&block, kBytes, cudaHostAllocMapped));
    blocks.push_back(static_cast<uint32_t*>(block));
  }
  uint32_t* device;
  cudaStream_t stream;
  RUNTIME_OK(cudaMalloc(&device, size_t{kBlocks} * kBytes));
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (uint32_t b = 0; b < kBlocks; ++b) {
    for (uint32_t i = 0; i < kWords; ++i) blocks[b][i] = first(b, i);
    RUNTIME_OK(cudaMemcpyAsync(device + size_t{b} * kWords, blocks[b], kBytes,
                               cudaMemcpyHostToDevice, stream));
  }
  bump<<<1, 128, 0, stream>>>(device);
  RUNTIME_OK(cudaGetLastError());
  for (uint32_t b = 0; b < kBlocks; ++b)
    RUNTIME_OK(cudaMemcpyAsync(blocks[b], device + size_t{b} * kWords, kBytes,
                               cudaMemcpyDeviceToHost, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  for (uint32_t b = 0; b < kBlocks; ++b)
    for (uint32_t i = 0; i < kWords; ++i) {
      const uint32_t expected = first(b, i) + (i == 0 ? 1 : 0) + (i == kWords - 1 ? 2 : 0);
      CHECK(blocks[b][i] == expected, "word %u of block %u is %u, not %u", i, b, blocks[b][i],
            expected);
    }

  std::vector<uint32_t*> table;
  for (uint32_t b = kRegistered; b < kBlocks; b += kEach) {
    table.emplace_back();
    RUNTIME_OK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&table.back()), blocks[b], 0));
  }
  uint32_t** there;
  RUNTIME_OK(cudaMalloc(&there, table.size() * sizeof(uint32_t*)));
  RUNTIME_OK(cudaMemcpyAsync(there, table.data(), table.size() * sizeof(uint32_t*),
                             cudaMemcpyHostToDevice, stream));
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint32_t b = kRegistered; b < kBlocks; b += kEach) blocks[b][6] = round + b;
    visit<<<1, 64, 0, stream>>>(there, uint32_t(table.size()));
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaStreamSynchronize(stream));
  }
  for (uint32_t b = kRegistered; b < kBlocks; b += kEach) {
    const uint32_t expected = first(b, 5) + kRounds * b + kRounds * (kRounds - 1) / 2;
    CHECK(blocks[b][5] == expected, "pinned block %u has %u, not %u", b, blocks[b][5], expected);
  }
  for (uint32_t b = 0; b < kBlocks; ++b)
    RUNTIME_OK(b < kRegistered ? cudaHostUnregister(blocks[b]) : cudaFreeHost(blocks[b]));
  RUNTIME_OK(cudaDeviceSynchronize());
  return apps::ok("%u registered and %u pinned blocks", kRegistered, kPinned);
}
