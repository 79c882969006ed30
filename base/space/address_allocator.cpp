// Free runs by address (for coalescing) and by size (for best fit); both name the same runs.
#include "base/space/address_allocator.h"

#include <algorithm>

namespace olpager::space {

namespace {

constexpr uint64_t alignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace

AddressAllocator::AddressAllocator(uint64_t base, uint64_t bytes)
    : base_(base), total_pages_(bytes >> kPageShift), base_page_(base >> kPageShift) {
  insertFree(0, total_pages_);
}

void AddressAllocator::insertFree(Page first, uint64_t pages) {
  free_.emplace(first, pages);
  sizes_.emplace(pages, first);
}

void AddressAllocator::eraseFree(FreeMap::iterator free) {
  sizes_.erase({free->second, free->first});
  free_.erase(free);
}

std::optional<AddressAllocator::Page> AddressAllocator::findFree(uint64_t pages,
                                                                 uint64_t alignment_pages) const {
  // Alignment counts from address 0, pages from the base.
  const auto fit = [&](const std::pair<uint64_t, Page>& run) -> std::optional<Page> {
    const Page first = alignUp(base_page_ + run.second, alignment_pages) - base_page_;
    if (first + pages > run.second + run.first) return std::nullopt;
    return first;
  };
  // Some runs of just the size may lie aligned; a run longer by the alignment always fits. Only
  // when there is none of those is every run between looked at.
  auto run = sizes_.lower_bound({pages, 0});
  for (unsigned tries = 0; run != sizes_.end() && tries < 8; ++run, ++tries) {
    if (auto first = fit(*run)) return first;
  }
  auto roomy = sizes_.lower_bound({pages + alignment_pages - 1, 0});
  if (roomy != sizes_.end()) return fit(*roomy);
  for (; run != sizes_.end(); ++run) {
    if (auto first = fit(*run)) return first;
  }
  return std::nullopt;
}

void AddressAllocator::take(FreeMap::iterator free, Page first, uint64_t pages) {
  const Page run_first = free->first;
  const uint64_t run_pages = free->second;
  eraseFree(free);
  if (first > run_first) insertFree(run_first, first - run_first);
  const uint64_t behind = run_first + run_pages - (first + pages);
  if (behind != 0) insertFree(first + pages, behind);
}

void AddressAllocator::give(Page first, uint64_t pages) {
  auto next = free_.lower_bound(first);
  if (next != free_.end() && next->first == first + pages) {
    pages += next->second;
    auto merged = next++;
    eraseFree(merged);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == first) {
      first = before->first;
      pages += before->second;
      eraseFree(before);
    }
  }
  insertFree(first, pages);
}

std::optional<uint64_t> AddressAllocator::allocate(uint64_t pages, uint64_t alignment,
                                                   uint64_t hint) {
  if (pages == 0 || pages >= total_pages_ || (alignment & (alignment - 1)) != 0)
    return std::nullopt;
  const uint64_t alignment_pages = std::max<uint64_t>(1, alignment >> kPageShift);
  if (alignment_pages > total_pages_) return std::nullopt;
  const uint64_t with_guard = pages + kGuardPages;

  std::optional<Page> first;
  if (hint != 0 && contains(hint) && hint % std::max(alignment, kPageBytes) == 0) {
    const Page wanted = (hint - base_) >> kPageShift;
    if (isFree(wanted, with_guard)) first = wanted;
  }
  if (!first) first = findFree(with_guard, alignment_pages);
  if (!first) return std::nullopt;
  return takeRun(*first, with_guard);
}

bool AddressAllocator::allocateAt(uint64_t address, uint64_t pages) {
  if (pages == 0 || pages >= total_pages_ || !contains(address) || address % kPageBytes != 0)
    return false;
  const Page first = (address - base_) >> kPageShift;
  if (!isFree(first, pages + kGuardPages)) return false;
  takeRun(first, pages + kGuardPages);
  return true;
}

bool AddressAllocator::isFree(Page first, uint64_t pages) const {
  auto free = free_.upper_bound(first);
  if (free == free_.begin()) return false;
  --free;
  return first + pages <= free->first + free->second;
}

uint64_t AddressAllocator::takeRun(Page first, uint64_t with_guard) {
  take(std::prev(free_.upper_bound(first)), first, with_guard);
  used_.emplace(first, with_guard);
  used_pages_ += with_guard;
  high_water_ = std::max(high_water_, first + with_guard);
  return base_ + (first << kPageShift);
}

uint64_t AddressAllocator::runPages(uint64_t address) const {
  if (!contains(address) || address % kPageBytes != 0) return 0;
  const auto run = used_.find((address - base_) >> kPageShift);
  return run == used_.end() ? 0 : run->second - kGuardPages;
}

bool AddressAllocator::release(uint64_t address) {
  const uint64_t pages = runPages(address);
  if (pages == 0) return false;
  const Page first = (address - base_) >> kPageShift;
  used_.erase(first);
  used_pages_ -= pages + kGuardPages;
  give(first, pages + kGuardPages);
  return true;
}

}  // namespace olpager::space
