// Registered memory. A Domain is shared by a set of links: memory registered in it is used by
// operations of those links here, and their peers can name it by key, as far as granted. A daemon
// gives each peer, or each lease, a domain of its own: a key means nothing on a link of another
// domain.
//
// A region's key is drawn before any network card is asked, and is all that a program sends. If a
// card needs more (an address, an rkey), a link asks its peer for it, once for each key, and keeps
// the answer (core/peer_keys.h). For each card that its links use a domain holds a protection
// domain; a region is made known to a card once, when the first link over that card needs it, and
// until the region ends (core/region_entry.h). A peer that can reach a region by itself is told of
// the region's end, which takes the right from the card: a transfer of the peer's that is under way
// then ends the link.
//
// Thread-safety: any thread. Ownership: the memory is the caller's; the Region only names it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace olpager::transport {

/// A peer's rights to a region. kLends: nothing with the region itself, but parts of it can be lent
/// (lendMemory).
enum Access : uint32_t {
  kLocalOnly = 0,
  kRemoteRead = 1,
  kRemoteWrite = 2,
  kRemoteReadWrite = 3,
  kLends = 4
};

/// Names a region at its owner; sent to peers in messages. Meaningless elsewhere, hard to guess,
/// never used twice.
struct RemoteKey {
  uint64_t key = 0;
  uint64_t length = 0;
  uint32_t access = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(RemoteKey) == 24);

struct Memory {
  /// Null: a device's memory without a CPU address, which `dma_buf` names. Only a link whose card
  /// reaches it moves it; any other completes with kUnreachable.
  void* base = nullptr;
  uint64_t length = 0;
  /// A memfd that `base` maps from `fd_offset` on, sealed against shrinking. With it a peer on the
  /// same host maps the memory and copies once; it then holds all of the memfd, for as long as it
  /// likes (Region::handedOut). -1: none.
  int fd = -1;
  uint64_t fd_offset = 0;
  /// A dma-buf that is the memory from `dma_buf_offset` on, for cards. -1: none.
  int dma_buf = -1;
  uint64_t dma_buf_offset = 0;
};

struct RegionEntry;
class Domain;
class Region;
using DomainPtr = std::shared_ptr<Domain>;
using RegionPtr = std::unique_ptr<Region>;

/// `within`: where the memory is registered that is lent in the new domain. The two have nothing
/// else in common, but that a card with memory windows knows them as one: memory that is registered
/// in the new one itself is kept from peers of its siblings by the card's 32-bit key alone.
DomainPtr makeDomain(DomainPtr within = nullptr);

/// Memory of a domain that network cards know, counted for each card; zeros where no link of it has
/// a card.
struct CardMemory {
  uint64_t registrations = 0;  // made so far
  uint64_t bytes = 0;          // of host memory, pinned now
};
CardMemory cardMemory(const DomainPtr& domain);
/// Why the cards of the domain's links can't have a device's memory by its dma-buf, in one line
/// that names the card; "": they can, as far as they say. Without a card at any link, that is the
/// reason.
std::string whyNoDmaBufs(const DomainPtr& domain);
/// Makes a region known to all cards that the domain's links use now, instead of when the first
/// transfer needs it. The Error is the first card's that can't have it. Milliseconds.
Status makeKnown(const Region& region);
/// The Error says what is wrong with the memory, the memfd or the dma-buf.
Result<RegionPtr> registerMemory(const DomainPtr& domain, const Memory& memory, uint32_t access);
/// Lends [offset, offset + length) of `whole`, which is registered with kLends, to the peers of
/// `domain`: a region of its own there, with a key of its own. A card that has memory windows pins
/// the whole once, whatever is lent of it how often; another card pins each part for itself.
/// `whole` has to outlive it.
Result<RegionPtr> lendMemory(const DomainPtr& domain, const Region& whole, uint64_t offset,
                             uint64_t length, uint32_t access);

/// A registration. Destroying it takes the key back: the destructor returns when no transfer of any
/// link touches the memory any more (it waits for slices in progress and for the own operations on
/// it; a link that hangs fails in its time).
class Region {
 public:
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  RemoteKey key() const;
  std::byte* base() const;  // null without a CPU address
  uint64_t length() const;
  /// True once a peer has got the memfd. The peer may touch the memory until it ends, whatever
  /// happens to the link: lend it to nobody else, let it go instead.
  bool handedOut() const;
  /// True once a card could not have it: what a link over that card moves of it goes by TCP, for as
  /// long as the Region lasts.
  bool refusedByCard() const;

  /// Ends it as the destructor does; whether a peer has got the memfd: what handedOut() says while
  /// it still could is not the last word.
  static bool end(std::unique_ptr<Region> region);
  /// Waits until nothing that is under way on this side touches the memory; false: something does
  /// so all the time. For a caller that has heard from the peer that it has read: this side may be
  /// about to let go of what it sent. Mappings at the peer are not known here.
  bool waitIdle(std::chrono::milliseconds timeout) const;

  const std::shared_ptr<RegionEntry>& entry() const { return entry_; }
  const DomainPtr& domain() const { return domain_; }

 private:
  friend Result<RegionPtr> registerMemory(const DomainPtr& domain, const Memory& memory,
                                          uint32_t access);
  friend Result<RegionPtr> lendMemory(const DomainPtr& domain, const Region& whole, uint64_t offset,
                                      uint64_t length, uint32_t access);
  Region(DomainPtr domain, std::shared_ptr<RegionEntry> entry);
  DomainPtr domain_;
  std::shared_ptr<RegionEntry> entry_;
};

}  // namespace olpager::transport
