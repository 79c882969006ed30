// Pinned host memory of the client, at the same addresses here. What both sides last agreed on is kept, so that what a kernel changed
// can be told from what the client did. Thread-safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace olpager::gpunode {

class HostMemory {
 public:
  /// The most that all blocks together may have; UINT64_MAX until then.
  void setLimit(uint64_t bytes);
  /// What they have.
  uint64_t bytes();
  /// Maps [address, + bytes) in the window; false when it is not free, not in the window, or beyond the limit.
  bool map(uint64_t address, uint64_t bytes);
  /// Unmaps a block; false when there is none at `address`.
  bool unmap(uint64_t address);
  bool has(uint64_t address, uint64_t bytes);
  /// What the client changed.
  bool apply(uint64_t address, std::span<const std::byte> bytes);
  /// What was changed here since, as runs of address, length, bytes, appended to `into`; from now on agreed on.
  void changes(uint64_t block, std::vector<std::byte>& into);

 private:
  struct Block {
    uint64_t bytes;
    std::vector<std::byte> agreed;  // empty: all zeros so far, as it was mapped
  };
  Block* find(uint64_t address, uint64_t* base);

  std::mutex mutex_;
  std::map<uint64_t, Block> blocks_;
  uint64_t limit_ = UINT64_MAX, bytes_ = 0;
};

}  // namespace olpager::gpunode
