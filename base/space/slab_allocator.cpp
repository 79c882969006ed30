// Slots of one size class in slabs of one page; a bitmap of used slots and each slot's requested
// size.
#include "base/space/slab_allocator.h"

#include <algorithm>
#include <array>
#include <bit>

namespace olpager::space {

namespace {

constexpr uint64_t alignDown(uint64_t value) { return value & ~(SlabAllocator::kAlignment - 1); }

// Multiples of 512 up to 2 KiB, then four steps in each doubling up to 256 KiB, then the largest
// slots of which 7, 6, 5, 4, 3, 2 and 1 fit a slab.
constexpr auto makeClasses() {
  std::array<uint32_t, 64> classes{};
  size_t count = 0;
  for (uint32_t bytes = 512; bytes <= 2048; bytes += 512) classes[count++] = bytes;
  for (uint32_t power = 2048; power < (256u << 10); power *= 2) {
    for (uint32_t step = 1; step <= 4; ++step) classes[count++] = power + power / 4 * step;
  }
  for (uint32_t slots = 7; slots >= 1; --slots)
    classes[count++] = static_cast<uint32_t>(alignDown(kPageBytes / slots));
  return std::pair{classes, count};
}
constexpr auto kClasses = makeClasses().first;
constexpr unsigned kClassCount = makeClasses().second;
static_assert(kClasses[kClassCount - 1] == kPageBytes);
static_assert(std::is_sorted(kClasses.begin(), kClasses.begin() + kClassCount));

}  // namespace

struct SlabAllocator::Slab {
  Slab(uint64_t slab_address, unsigned slab_class)
      : address(slab_address),
        size_class(slab_class),
        slot_bytes(kClasses[slab_class]),
        slots(static_cast<uint32_t>(kPageBytes / slot_bytes)),
        used_bits((slots + 63) / 64),
        requested(slots) {}

  uint32_t firstFree() const {
    for (size_t word = 0; word < used_bits.size(); ++word) {
      if (~used_bits[word] != 0)
        return static_cast<uint32_t>(word * 64) + std::countr_one(used_bits[word]);
    }
    return slots;
  }
  bool isUsed(uint32_t slot) const { return (used_bits[slot / 64] >> (slot % 64) & 1) != 0; }
  void flip(uint32_t slot) { used_bits[slot / 64] ^= 1ull << (slot % 64); }
  Slot describe(uint32_t slot) const {
    return {address + static_cast<uint64_t>(slot) * slot_bytes, requested[slot], slot_bytes,
            address};
  }

  uint64_t address;
  unsigned size_class;
  uint32_t slot_bytes;
  uint32_t slots;
  uint32_t used = 0;
  std::vector<uint64_t> used_bits;
  std::vector<uint32_t> requested;
};

SlabAllocator::SlabAllocator(Callbacks callbacks, Empty empty)
    : callbacks_(std::move(callbacks)), empty_(empty), partial_(kClassCount), kept_(kClassCount) {}
SlabAllocator::~SlabAllocator() = default;

unsigned SlabAllocator::classOf(uint64_t bytes) {
  if (bytes > kLargestShared) return kClassCount - 1;
  const auto* const found =
      std::lower_bound(kClasses.begin(), kClasses.begin() + kClassCount, bytes);
  return static_cast<unsigned>(found - kClasses.begin());
}

uint64_t SlabAllocator::slotBytes(uint64_t bytes) { return kClasses[classOf(bytes)]; }

std::optional<uint64_t> SlabAllocator::allocate(uint64_t bytes) {
  if (bytes == 0 || bytes >= kPageBytes) return std::nullopt;
  const unsigned size_class = classOf(bytes);
  auto& partial = partial_[size_class];
  Slab* slab = nullptr;
  if (partial.empty()) {
    const std::optional<uint64_t> address = callbacks_.make(0);
    if (!address) return std::nullopt;
    slab = &add(*address, size_class);
  } else {
    slab = slabs_.at(*partial.begin() >> kPageShift).get();
  }
  const uint32_t slot = slab->firstFree();
  take(*slab, slot, bytes);
  return slab->describe(slot).address;
}

bool SlabAllocator::allocateAt(uint64_t address, uint64_t bytes) {
  if (bytes == 0 || bytes >= kPageBytes) return false;
  const unsigned size_class = classOf(bytes);
  const uint64_t page = address / kPageBytes * kPageBytes;
  const auto slot = static_cast<uint32_t>((address - page) / kClasses[size_class]);
  if ((address - page) % kClasses[size_class] != 0 || slot >= kPageBytes / kClasses[size_class])
    return false;
  const auto found = slabs_.find(page >> kPageShift);
  if (found != slabs_.end()) {
    if (found->second->size_class != size_class || found->second->isUsed(slot)) return false;
    take(*found->second, slot, bytes);
    return true;
  }
  if (!callbacks_.make(page)) return false;
  take(add(page, size_class), slot, bytes);
  return true;
}

SlabAllocator::Slab& SlabAllocator::add(uint64_t address, unsigned size_class) {
  partial_[size_class].insert(address);
  return *slabs_.emplace(address >> kPageShift, std::make_unique<Slab>(address, size_class))
              .first->second;
}

void SlabAllocator::take(Slab& slab, uint32_t slot, uint64_t bytes) {
  slab.flip(slot);
  slab.requested[slot] = static_cast<uint32_t>(bytes);
  if (slab.address == kept_[slab.size_class]) {
    kept_[slab.size_class] = 0;
    --empty_slabs_;
  }
  ++used_slots_;
  if (++slab.used == slab.slots) partial_[slab.size_class].erase(slab.address);
}

bool SlabAllocator::release(uint64_t address) {
  const auto found = slabs_.find(address >> kPageShift);
  if (found == slabs_.end()) return false;
  Slab& slab = *found->second;
  const uint64_t offset = address - slab.address;
  const auto slot = static_cast<uint32_t>(offset / slab.slot_bytes);
  if (offset % slab.slot_bytes != 0 || slot >= slab.slots || !slab.isUsed(slot)) return false;
  slab.flip(slot);
  slab.requested[slot] = 0;
  --used_slots_;
  partial_[slab.size_class].insert(slab.address);
  if (--slab.used != 0) return true;
  if (empty_ == Empty::kKeepOne && kept_[slab.size_class] == 0) {
    kept_[slab.size_class] = slab.address;
    ++empty_slabs_;
    return true;
  }
  drop(slab);
  return true;
}

void SlabAllocator::drop(const Slab& slab) {
  const uint64_t address = slab.address;
  partial_[slab.size_class].erase(address);
  slabs_.erase(address >> kPageShift);
  callbacks_.drop(address);
}

void SlabAllocator::dropKept() {
  for (uint64_t& kept : kept_) {
    if (kept == 0) continue;
    drop(*slabs_.at(kept >> kPageShift));
    kept = 0;
    --empty_slabs_;
  }
}

const SlabAllocator::Slab* SlabAllocator::slabAt(uint64_t address) const {
  // The guard page behind a slab is never a slab itself.
  for (const uint64_t page : {address >> kPageShift, (address >> kPageShift) - 1}) {
    const auto found = slabs_.find(page);
    if (found != slabs_.end()) return found->second.get();
  }
  return nullptr;
}

std::optional<SlabAllocator::Slot> SlabAllocator::find(uint64_t address) const {
  const Slab* slab = slabAt(address);
  if (slab == nullptr) return std::nullopt;
  const auto slot = static_cast<uint32_t>(
      std::min<uint64_t>((address - slab->address) / slab->slot_bytes, slab->slots - 1));
  if (!slab->isUsed(slot)) return std::nullopt;
  return slab->describe(slot);
}

void SlabAllocator::forEachSlot(uint64_t slab,
                                const std::function<void(const Slot&)>& visitor) const {
  const auto found = slabs_.find(slab >> kPageShift);
  if (found == slabs_.end()) return;
  for (uint32_t slot = 0; slot < found->second->slots; ++slot) {
    if (found->second->isUsed(slot)) visitor(found->second->describe(slot));
  }
}

void SlabAllocator::forgetAll() {
  slabs_.clear();
  std::fill(kept_.begin(), kept_.end(), 0);
  empty_slabs_ = 0;
  for (auto& partial : partial_) partial.clear();
  used_slots_ = 0;
}

}  // namespace olpager::space
