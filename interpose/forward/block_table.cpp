#include "interpose/forward/block_table.h"

#include <iterator>

#include "base/log.h"

namespace olpager::forward {

Block* BlockTable::find(uint64_t address, uint64_t* base) {
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return nullptr;
  --after;
  if (address - after->first >= after->second.bytes) return nullptr;
  *base = after->first;
  return &after->second;
}

Block* BlockTable::findThere(uint64_t address, uint64_t* base) {
  auto mirror = mirrors.upper_bound(address);
  if (mirror != mirrors.begin()) {
    --mirror;
    Block& block = blocks.at(mirror->second);
    if (address - mirror->first < block.bytes) {
      *base = mirror->second;
      return &block;
    }
  }
  Block* const block = find(address, base);
  return block != nullptr && !block->registered ? block : nullptr;
}

bool BlockTable::name(unsigned slot, uint64_t address) {
  uint64_t base = 0;
  Block* const block = findThere(address, &base);
  if (block == nullptr || block->leaving) return false;
  if (block->sides[slot].kind != BlockSide::Kind::kExchanged || block->isNamed(slot)) return false;
  block->sides[slot].agreed.resize(block->bytes);
  named[slot].emplace(block, base);
  counts[slot].unnamed.fetch_sub(1);
  base::logDebug(
      "kernels can reach pinned memory at %p (%llu bytes): it is exchanged with every launch from "
      "now on",
      reinterpret_cast<void*>(base), static_cast<unsigned long long>(block->bytes));
  return true;
}

void BlockTable::nameBesideShared(unsigned slot) {
  if (counts[slot].shared.load() == 0 || counts[slot].unnamed.load() == 0) return;
  for (const auto& [base, block] : blocks) (void)name(slot, block.there);
}

void BlockTable::setKind(Block& block, unsigned slot, BlockSide::Kind kind) {
  const auto count = [&](uint32_t by) {
    Counts& count_of = counts[slot];
    BlockSide& side = block.sides[slot];
    if (side.kind == BlockSide::Kind::kShared) count_of.shared.fetch_add(by);
    if (side.kind == BlockSide::Kind::kExchanged) count_of.exchanged.fetch_add(by);
    if (side.kind == BlockSide::Kind::kExchanged && side.agreed.empty())
      count_of.unnamed.fetch_add(by);
  };
  count(UINT32_MAX);  // one less
  block.sides[slot].kind = kind;
  block.sides[slot].agreed.clear();
  named[slot].erase(&block);
  count(1);
}

void BlockTable::setLeaving(uint64_t address, bool leaving) {
  std::lock_guard lock(mutex);
  if (const auto found = blocks.find(address); found != blocks.end())
    found->second.leaving = leaving;
}

}  // namespace olpager::forward
