// 10 000 allocations of mixed sizes alive at once, each marked at both ends, freed in random order
//    while others take
// their place.
#include <algorithm>

#include "common.h"

struct Block {
  char* memory;
  size_t bytes;
  uint32_t mark;
};

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kBlocks = 10'000;
  apps::Random random(options.seed);
  // Most are small; one in 500 is of a MiB or so; together about --bytes.
  const size_t small = options.bytes / 2 / kBlocks;
  const size_t large = options.bytes / 2 / (kBlocks / 500);
  const auto make = [&] {
    Block block;
    block.bytes =
        random.below(500) == 0 ? large / 2 + random.below(large) : 16 + random.below(2 * small);
    block.bytes = block.bytes & ~size_t{7};
    block.mark = uint32_t(random.next());
    RUNTIME_OK(cudaMalloc(&block.memory, block.bytes));
    const uint32_t marks[2] = {block.mark, block.mark + 1};
    RUNTIME_OK(cudaMemcpyAsync(block.memory, marks, 8, cudaMemcpyHostToDevice));
    RUNTIME_OK(cudaMemcpyAsync(block.memory + block.bytes - 8, marks, 8, cudaMemcpyHostToDevice));
    return block;
  };
  const auto check = [&](const Block& block) {
    uint32_t got[2];
    for (const size_t at : {size_t{0}, block.bytes - 8}) {
      RUNTIME_OK(cudaMemcpy(got, block.memory + at, 8, cudaMemcpyDeviceToHost));
      CHECK(got[0] == block.mark && got[1] == block.mark + 1,
            "block of %zu bytes: %#x %#x at %zu, expected %#x", block.bytes, got[0], got[1], at,
            block.mark);
    }
  };
  std::vector<Block> blocks;
  for (size_t i = 0; i < kBlocks; ++i) blocks.push_back(make());
  // No two overlap.
  std::vector<Block> sorted = blocks;
  std::sort(sorted.begin(), sorted.end(),
            [](const Block& a, const Block& b) { return a.memory < b.memory; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    CHECK(sorted[i - 1].memory + sorted[i - 1].bytes <= sorted[i].memory,
          "two allocations overlap");
  }
  for (size_t i = 0; i < kBlocks / 4; ++i) {  // a quarter is replaced
    Block& block = blocks[random.below(kBlocks)];
    if (i % 8 == 0) check(block);
    RUNTIME_OK(cudaFree(block.memory));
    block = make();
  }
  // All of them in the order of their addresses: what lies side by side is looked at together.
  sorted = blocks;
  std::sort(sorted.begin(), sorted.end(),
            [](const Block& a, const Block& b) { return a.memory < b.memory; });
  for (const Block& block : sorted) check(block);
  // Freed in random order; now and then one that is left is looked at.
  for (size_t i = kBlocks - 1; i > 0; --i) std::swap(blocks[i], blocks[random.below(i + 1)]);
  while (!blocks.empty()) {
    if (blocks.size() % 16 == 0) check(blocks[random.below(blocks.size())]);
    RUNTIME_OK(cudaFree(blocks.back().memory));
    blocks.pop_back();
  }
  return apps::ok("churn of %zu allocations", kBlocks + kBlocks / 4);
}
