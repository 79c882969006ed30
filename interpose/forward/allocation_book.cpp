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
  }
  return addresses != nullptr;
}

uint64_t AllocationBook::usedPages() const {
  uint64_t empty = 0;
  for (const auto& [context, of_context] : slabs) empty += of_context->emptySlabs();
  return pages - empty;
}

uint64_t AllocationBook::takePages(uint64_t count) {
  const auto address = addresses->allocate(count);
  if (!address) return 0;
  pages += count;
  return *address;
}

void AllocationBook::givePages(uint64_t address) {
  pages -= addresses->runPages(address);
  addresses->release(address);
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

void AllocationBook::know(CUdeviceptr address, const Held& memory) {
  std::unique_lock lock(known_mutex);
  known[address] = memory;
}

bool AllocationBook::forget(CUdeviceptr address) {
  std::unique_lock lock(known_mutex);
  return known.erase(address) != 0;
}

std::optional<uint64_t> AllocationBook::leftInKnown(CUdeviceptr address) const {
  std::shared_lock lock(known_mutex);
  auto after = known.upper_bound(address);
  if (after == known.begin()) return std::nullopt;
  --after;
  const uint64_t offset = address - after->first;
  const uint64_t bytes = after->second.bytes;
  return offset < bytes ? std::optional(bytes - offset) : std::nullopt;
}

bool AllocationBook::knowsAny(uint64_t context) const {
  std::shared_lock lock(known_mutex);
  return std::any_of(known.begin(), known.end(),
                     [&](const auto& one) { return one.second.context == context; });
}

MemoryOfContext::~MemoryOfContext() {
  std::lock_guard lock(book_.mutex);
  for (auto one = book_.held.begin(); one != book_.held.end();) {
    if (one->second.context != context_) {
      ++one;
      continue;
    }
    book_.give(context_, one->first, one->second.bytes);
    one = book_.held.erase(one);
  }
  if (const auto slabs = book_.slabs.find(context_); slabs != book_.slabs.end()) {
    slabs->second->dropKept();
    book_.slabs.erase(slabs);
  }
  book_.credit = {};
  std::unique_lock known_lock(book_.known_mutex);
  std::erase_if(book_.known, [&](const auto& one) { return one.second.context == context_; });
}

}  // namespace olpager::forward
