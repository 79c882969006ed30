// Memory of transfers that stays registered. A network card takes long to pin memory, and the
// pager's host chunks are used again and again: each is made known to cards by its first transfer,
// and stays so until KeptRegions::letGo(). Without a card at any link, a region that stays is an
// entry in a table.
//
// Pinned memory is bounded: by half of what the process may pin (ulimit -l; the other half is for
// transfers beyond the bound, which register their memory for themselves, as hedges and moves do),
// and, once a card has refused memory, by half of what was pinned then. Either is told once.
//
// Thread-safety: use() and done() are one thread's, the tier's worker; letGo() any thread's. Lock:
// mutex_, a leaf: regions end without it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/result.h"
#include "coherence/transport/regions.h"

namespace olpager::memserver {

using SharedRegion = std::shared_ptr<transport::Region>;

/// Half of the memory that the process may pin; UINT64_MAX where there is no limit.
uint64_t mostPinned();

class KeptRegions {
 public:
  /// `most`: bytes that may stay pinned.
  explicit KeptRegions(transport::DomainPtr domain, uint64_t most = mostPinned());

  /// Memory of a device stays registered from now on, as what use() finds; it counts nowhere. Any
  /// thread. The Error: a card can't have it, and nothing stays.
  Status keep(const void* memory, uint64_t bytes, int dma_buf);
  /// The memory as a region of the domain, for one transfer. The Error is registerMemory()'s.
  Result<SharedRegion> use(void* memory, uint64_t bytes);
  /// The transfer is over: nothing moves the region's bytes for it any more. An empty one is none.
  void done(SharedRegion region);
  /// Ends the region that stays for the memory that begins here. Waits until cards have let it go.
  /// Not while it is used.
  void letGo(const void* memory);
  /// Ends all of them. Links that could move them have ended.
  void clear();

 private:
  void tell(const char* why) const;

  const transport::DomainPtr domain_;
  uint64_t most_;  // the worker's
  std::mutex mutex_;
  std::unordered_map<const void*, SharedRegion> kept_;  // by where the memory begins
};

}  // namespace olpager::memserver
