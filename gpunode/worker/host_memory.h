// Pinned host memory of the client, at the same addresses here. A block is of one of two kinds,
// from its beginning to its end:
//   shared     the client's own memory, mapped here as well: both sides and the GPU see it at once,
//              nothing is ever moved
//   exchanged  memory of this process. The bytes that both sides last agreed on are kept, so that a
//              kernel's changes can be told from the client's. Variables in managed memory are such
//              blocks too, wherever the driver has placed them
// Thread-safety: any thread. Errors: what the client asks for and can't have is false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "coherence/transport/transport.h"
#include "forwarding/wire/runs.h"

namespace olpager::gpunode {

class HostMemory {
 public:
  /// The most that all blocks together may have; UINT64_MAX until then.
  void setLimit(uint64_t bytes);
  /// The bytes that blocks have.
  uint64_t bytes();
  /// Maps [address, + bytes) in the window, exchanged; false when it is not free, not in the
  /// window, or beyond the limit.
  bool map(uint64_t address, uint64_t bytes);
  /// The same, shared: the client's memory. False also when that is too short, not at a page, or
  /// can't be mapped.
  bool share(uint64_t address, uint64_t bytes, const transport::PeerMemory& memory);
  /// Unmaps a block; false when there is none at `address`.
  bool unmap(uint64_t address);
  /// [address, + bytes) is the driver's, which both the GPU and this process can use at any time:
  /// exchanged from now on, until it is released. The range does not count as what blocks have.
  /// True as well when it is that already; false where another block lies there.
  bool adopt(uint64_t address, uint64_t bytes);
  bool isAdopted(uint64_t address);
  bool release(uint64_t address);
  bool has(uint64_t address, uint64_t bytes);
  /// Writes what the client changed in an exchanged block.
  bool apply(const forward::Run& run);
  /// Appends to `into`, as runs, what was changed since in `bytes` of an exchanged block from
  /// `offset` on; both sides agree on it from now on. False: the block ends before, or is none.
  bool changes(uint64_t block, uint64_t offset, uint64_t bytes, std::vector<std::byte>& into);

 private:
  struct Block {
    uint64_t bytes;
    bool shared;
    std::vector<std::byte> agreed;  // exchanged; empty: all zeros so far, as it was mapped
    bool adopted = false;
  };
  bool mapAt(uint64_t address, uint64_t bytes, int fd, uint64_t offset);
  Block* find(uint64_t address, uint64_t* base);

  std::mutex mutex_;
  std::map<uint64_t, Block> blocks_;
  uint64_t limit_ = UINT64_MAX, bytes_ = 0;
};

}  // namespace olpager::gpunode
