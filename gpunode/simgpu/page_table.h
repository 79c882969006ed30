// One simulated device's page table: device virtual address -> bytes of this process, at 2 MiB,
// with 4 KiB tables below an entry where host memory of any alignment is mapped. Addresses up to
// 2^47.
//
// Readers (kernels, copies) take no lock. The target of a translation stays mapped in the process
// after an unmap (VRAM and host chunks have permanent aliases), so a reader that races an unmap
// reads old or reused bytes, never crashes; it has to drop cached translations when the generation
// moves.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace olpager::simgpu {

inline constexpr uint64_t kPageBytes = 2ull << 20;  // mapping granularity of device memory
inline constexpr uint64_t kSmallPageBytes = 4096;   // of registered host memory
inline constexpr unsigned kAddressBits = 47;

/// The memory at a device address: `bytes` contiguous bytes at `host`, up to the end of the page.
struct Translation {
  std::byte* host = nullptr;
  uint64_t bytes = 0;
  bool writable = false;
};

class PageTable {
 public:
  PageTable();
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  /// Translates; false when nothing is mapped there. Wait-free.
  bool translate(uint64_t address, Translation* out) const noexcept;
  /// Moves with every unmap and every loss of write access. Acquire.
  const std::atomic<uint64_t>& generationCounter() const noexcept { return generation_; }

  /// A reader that keeps translations brackets their use; see waitForReaders(). Not nested in one
  /// thread.
  void enterSlice() noexcept;
  void leaveSlice() noexcept;
  /// Returns when every slice that was entered before the call has been left: then nobody uses a
  /// translation that was taken before the last unmap, and what it led to may be reused. Some
  /// milliseconds at most.
  void waitForReaders();

  /// Maps [address, + bytes), both multiples of 4 KiB, to `host` (4 KiB-aligned), replacing what
  /// was there.
  void map(uint64_t address, uint64_t bytes, std::byte* host, bool writable);
  void unmap(uint64_t address, uint64_t bytes);

 private:
  static constexpr unsigned kLeafBits = 13;
  static constexpr unsigned kTopBits = kAddressBits - 21 - kLeafBits;
  using Entry = std::atomic<uint64_t>;  // host address of the page | flags; 0: nothing mapped
  struct Leaf {
    std::array<Entry, 1u << kLeafBits> entries{};
  };
  struct alignas(kSmallPageBytes) Split {
    std::array<Entry, kPageBytes / kSmallPageBytes> entries{};
  };
  Entry& entryFor(uint64_t address);
  Split& splitFor(Entry& entry);
  void setSmall(uint64_t address, uint64_t value);

  std::array<std::atomic<Leaf*>, 1u << kTopBits> top_{};
  std::atomic<uint64_t> generation_{1};
  std::atomic<uint32_t> slice_phase_{0};
  std::atomic<uint32_t> slices_[2]{};
  std::mutex phase_mutex_;
  std::mutex mutex_;
};

}  // namespace olpager::simgpu
