#include "gpunode/simgpu/page_table.h"

#include <thread>

namespace olpager::simgpu {

namespace {

constexpr uint64_t kPresent = 1;
constexpr uint64_t kWritable = 2;
constexpr uint64_t kSplit = 4;
constexpr uint64_t kFlags = kSmallPageBytes - 1;

__attribute__((tls_model("initial-exec"))) thread_local uint32_t t_slice_phase = 0;

uint64_t pack(const std::byte* host, bool writable) {
  return reinterpret_cast<uint64_t>(host) | kPresent | (writable ? kWritable : 0);
}

}  // namespace

PageTable::PageTable() = default;

PageTable::~PageTable() {
  for (auto& slot : top_) {
    Leaf* leaf = slot.load(std::memory_order_relaxed);
    if (leaf == nullptr) continue;
    for (auto& entry : leaf->entries) {
      const uint64_t value = entry.load(std::memory_order_relaxed);
      if (value & kSplit) delete reinterpret_cast<Split*>(value & ~kFlags);
    }
    delete leaf;
  }
}

bool PageTable::translate(uint64_t address, Translation* out) const noexcept {
  if (address >> kAddressBits) return false;
  const Leaf* leaf = top_[address >> (21 + kLeafBits)].load(std::memory_order_acquire);
  if (leaf == nullptr) return false;
  uint64_t value =
      leaf->entries[(address >> 21) & ((1u << kLeafBits) - 1)].load(std::memory_order_acquire);
  uint64_t page = kPageBytes;
  if (value & kSplit) {
    const auto* split = reinterpret_cast<const Split*>(value & ~kFlags);
    value = split->entries[(address & (kPageBytes - 1)) / kSmallPageBytes].load(
        std::memory_order_acquire);
    page = kSmallPageBytes;
  }
  if (!(value & kPresent)) return false;
  const uint64_t offset = address & (page - 1);
  out->host = reinterpret_cast<std::byte*>(value & ~kFlags) + offset;
  out->bytes = page - offset;
  out->writable = (value & kWritable) != 0;
  return true;
}

void PageTable::enterSlice() noexcept {
  const uint32_t phase = slice_phase_.load(std::memory_order_seq_cst) & 1;
  slices_[phase].fetch_add(1, std::memory_order_seq_cst);
  t_slice_phase = phase;
}

void PageTable::leaveSlice() noexcept {
  slices_[t_slice_phase].fetch_sub(1, std::memory_order_release);
}

void PageTable::waitForReaders() {
  // Two phases, as in user-space RCU: a reader that read the old phase number just before a flip is
  // counted in one of the two counters that are waited for.
  std::scoped_lock lock(phase_mutex_);
  for (int i = 0; i < 2; ++i) {
    const uint32_t old = slice_phase_.fetch_add(1, std::memory_order_seq_cst) & 1;
    while (slices_[old].load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  }
}

PageTable::Entry& PageTable::entryFor(uint64_t address) {
  auto& slot = top_[address >> (21 + kLeafBits)];
  Leaf* leaf = slot.load(std::memory_order_relaxed);
  if (leaf == nullptr) {
    leaf = new Leaf;
    slot.store(leaf, std::memory_order_release);
  }
  return leaf->entries[(address >> 21) & ((1u << kLeafBits) - 1)];
}

PageTable::Split& PageTable::splitFor(Entry& entry) {
  const uint64_t value = entry.load(std::memory_order_relaxed);
  if (value & kSplit) return *reinterpret_cast<Split*>(value & ~kFlags);
  // Split tables are aligned so that the flags fit; they stay until the table goes, since readers
  // take no lock.
  auto* split = new Split;
  if (value & kPresent) {
    const uint64_t host = value & ~kFlags;
    for (size_t i = 0; i < split->entries.size(); ++i)
      split->entries[i].store((host + i * kSmallPageBytes) | (value & kFlags),
                              std::memory_order_relaxed);
  }
  entry.store(reinterpret_cast<uint64_t>(split) | kSplit, std::memory_order_release);
  return *split;
}

void PageTable::setSmall(uint64_t address, uint64_t value) {
  splitFor(entryFor(address))
      .entries[(address & (kPageBytes - 1)) / kSmallPageBytes]
      .store(value, std::memory_order_release);
}

void PageTable::map(uint64_t address, uint64_t bytes, std::byte* host, bool writable) {
  std::scoped_lock lock(mutex_);
  while (bytes != 0) {
    if ((address & (kPageBytes - 1)) == 0 && bytes >= kPageBytes &&
        !(entryFor(address).load(std::memory_order_relaxed) & kSplit)) {
      entryFor(address).store(pack(host, writable), std::memory_order_release);
      address += kPageBytes, host += kPageBytes, bytes -= kPageBytes;
    } else {
      setSmall(address, pack(host, writable));
      address += kSmallPageBytes, host += kSmallPageBytes, bytes -= kSmallPageBytes;
    }
  }
  // A replaced translation must not be used any more, and one that became writable has to be looked
  // up again.
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

void PageTable::unmap(uint64_t address, uint64_t bytes) {
  std::scoped_lock lock(mutex_);
  while (bytes != 0) {
    if ((address & (kPageBytes - 1)) == 0 && bytes >= kPageBytes &&
        !(entryFor(address).load(std::memory_order_relaxed) & kSplit)) {
      entryFor(address).store(0, std::memory_order_release);
      address += kPageBytes, bytes -= kPageBytes;
    } else {
      setSmall(address, 0);
      address += kSmallPageBytes, bytes -= kSmallPageBytes;
    }
  }
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace olpager::simgpu
