#include "interpose/forward/allocation_book.h"

#include <algorithm>
#include <utility>

#include "interpose/forward/executor.h"
#include "interpose/forward/session.h"

namespace olpager::forward {
namespace {

using space::kPageBytes;

}  // namespace

bool AllocationBook::ready(const Session& session) {
  if (!tried) {
    tried = true;
    const Description& description = session.executor().description();
    const uint64_t base = description.placed, bytes = description.placed_bytes;
    if (bytes == 0 || base % kPageBytes != 0 || bytes % kPageBytes != 0 || base + bytes < base)
      return false;
    addresses = std::make_unique<space::AddressAllocator>(base, bytes);
    group = session.group();
  }
  return addresses != nullptr;
}

uint64_t AllocationBook::usedPages() const {
  uint64_t empty = 0;
  for (const auto& [context, of_context] : slabs) empty += of_context->emptySlabs();
  return pages - empty;
}

// Addresses of pages that the group has released serve again.
void AllocationBook::takeReleased(bool wait) {
  for (const uint64_t address : group->released(wait)) addresses->release(address);
}

// Freed memory may still be on its way back, one region after the other: it is waited for as long
// as some comes.
bool AllocationBook::addToGroup(uint64_t address, uint64_t count) {
  while (!group->add(address, count * kPageBytes)) {
    const std::vector<uint64_t> released = group->released(true);
    if (released.empty()) return false;
    for (const uint64_t one : released) addresses->release(one);
  }
  return true;
}

uint64_t AllocationBook::takePages(uint64_t count) {
  if (group != nullptr) takeReleased(false);
  const auto address = addresses->allocate(count);
  if (!address) return 0;
  if (group != nullptr && !addToGroup(*address, count)) {
    addresses->release(*address);
    return 0;
  }
  pages += count;
  return *address;
}

void AllocationBook::givePages(uint64_t address) {
  pages -= addresses->runPages(address);
  if (group != nullptr) {
    group->remove(address);
  } else {
    addresses->release(address);
  }
}

space::SlabAllocator& AllocationBook::slabsOf(uint64_t context) {
  auto& made = slabs[context];
  if (made == nullptr)
    made = std::make_unique<space::SlabAllocator>(
        space::SlabAllocator::Callbacks{[this](uint64_t) -> std::optional<uint64_t> {
                                          const uint64_t address = takePages(1);
                                          return address != 0 ? std::optional(address)
                                                              : std::nullopt;
                                        },
                                        [this](uint64_t address) { givePages(address); }},
        space::SlabAllocator::Empty::kKeepOne);
  return *made;
}

uint64_t AllocationBook::take(uint64_t context, uint64_t bytes) {
  return bytes < kPageBytes ? slabsOf(context).allocate(bytes).value_or(0)
                            : takePages((bytes + kPageBytes - 1) / kPageBytes);
}

void AllocationBook::give(uint64_t context, uint64_t address, uint64_t bytes) {
  const uint64_t before = usedPages();
  if (bytes < kPageBytes) {
    slabsOf(context).release(address);
  } else {
    givePages(address);
  }
  credit.bytes += (before - usedPages()) * kPageBytes;
}

void AllocationBook::giveFreedInOrder() {
  for (const auto& [address, context, bytes] : in_order.takeCome()) {
    (void)forget(address);
    give(context, address, bytes);
  }
}

void AllocationBook::know(CUdeviceptr address, const Held& memory) {
  std::unique_lock lock(known_mutex);
  Held& one = known[address] = memory;
  one.number = ++newest;
}

bool AllocationBook::forget(CUdeviceptr address) {
  std::unique_lock lock(known_mutex);
  return known.erase(address) != 0;
}

std::optional<uint64_t> AllocationBook::leftInKnown(CUdeviceptr address) const {
  const auto found = findKnown(address);
  return found ? std::optional(found->first + found->second - address) : std::nullopt;
}

std::optional<std::pair<CUdeviceptr, uint64_t>> AllocationBook::findKnown(
    CUdeviceptr address) const {
  std::shared_lock lock(known_mutex);
  auto after = known.upper_bound(address);
  if (after == known.begin()) return std::nullopt;
  --after;
  const uint64_t bytes = after->second.bytes;
  return address - after->first < bytes ? std::optional(std::pair(after->first, bytes))
                                        : std::nullopt;
}

uint64_t AllocationBook::numberOf(CUdeviceptr address) const {
  std::shared_lock lock(known_mutex);
  const auto found = known.find(address);
  return found != known.end() ? found->second.number : 0;
}

bool AllocationBook::knowsAny(uint64_t context) const {
  std::shared_lock lock(known_mutex);
  return std::any_of(known.begin(), known.end(),
                     [&](const auto& one) { return one.second.context == context; });
}

void AllocationBook::dropOf(uint64_t context) {
  std::lock_guard lock(mutex);
  for (auto one = held.begin(); one != held.end();) {
    if (one->second.context != context) {
      ++one;
      continue;
    }
    give(context, one->first, one->second.bytes);
    one = held.erase(one);
  }
  std::erase_if(later, [&](const auto& freed) {
    const bool its = freed.second.context == context;
    if (its) give(context, freed.first, freed.second.bytes);
    return its;
  });
  for (const auto& freed : in_order.takeOf(context)) give(context, freed.address, freed.bytes);
  if (const auto of_context = slabs.find(context); of_context != slabs.end()) {
    of_context->second->dropKept();
    slabs.erase(of_context);
  }
  credit = {};
  std::unique_lock known_lock(known_mutex);
  std::erase_if(known, [&](const auto& one) { return one.second.context == context; });
}

MemoryOfContext::~MemoryOfContext() { book_.dropOf(context_); }

}  // namespace olpager::forward
