// CU_POINTER_ATTRIBUTE_BUFFER_ID tells allocations apart for as long as the process lives, also
// where an address comes again and whatever the memory is: caches of registered memory rely on it.
#include <map>

#include "common.h"

namespace {

enum Kind { kDevice, kManaged, kPinned, kOrdered, kKinds };

struct Block {
  char* at;
  size_t bytes;
  Kind kind;
  unsigned long long id;
};

unsigned long long idAt(const char* address) {
  unsigned long long id = 0;
  DRIVER_OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                  reinterpret_cast<CUdeviceptr>(address)));
  return id;
}

Block allocate(Kind kind, size_t bytes, cudaStream_t stream) {
  void* memory = nullptr;
  if (kind == kDevice) RUNTIME_OK(cudaMalloc(&memory, bytes));
  if (kind == kManaged) RUNTIME_OK(cudaMallocManaged(&memory, bytes));
  if (kind == kPinned) RUNTIME_OK(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped));
  if (kind == kOrdered) {
    RUNTIME_OK(cudaMallocAsync(&memory, bytes, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
  }
  return {static_cast<char*>(memory), bytes, kind, 0};
}

void release(const Block& block, cudaStream_t stream) {
  if (block.kind == kPinned) {
    RUNTIME_OK(cudaFreeHost(block.at));
  } else if (block.kind == kOrdered) {
    RUNTIME_OK(cudaFreeAsync(block.at, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
  } else {
    RUNTIME_OK(cudaFree(block.at));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  std::map<unsigned long long, int> seen;
  std::vector<Block> live;
  for (int round = 0; round < 200; ++round) {
    const auto kind = static_cast<Kind>(random.below(kKinds));
    Block block = allocate(kind, 1 + random.below(random.below(3) != 0 ? 300000 : 3 << 20), stream);
    block.id = idAt(block.at);
    for (const size_t offset : {block.bytes / 2, block.bytes - 1})
      CHECK(idAt(block.at + offset) == block.id, "%zu bytes of kind %d have two ids", block.bytes,
            int(kind));
    CHECK(seen.emplace(block.id, round).second,
          "round %d, kind %d: the id %llu was that of round %d", round, int(kind), block.id,
          seen[block.id]);
    live.push_back(block);
    if (live.size() <= 8) continue;
    std::swap(live[random.below(live.size())], live.back());
    CHECK(idAt(live.back().at) == live.back().id, "an id of kind %d has changed",
          int(live.back().kind));
    release(live.back(), stream);
    live.pop_back();
  }
  return apps::ok("%zu allocations", seen.size());
}
