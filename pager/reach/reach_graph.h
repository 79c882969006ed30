// The reach graph of a pool: who may still reach what. The nodes are regions and roots (roots.h),
// the edges what pointers in their memory lead to (edge.h). Scans find the edges (scanner.h), a
// launch follows them (closure.h).
//
// Unknown reach is recorded here, so that nothing is unmapped on the strength of it:
//   dirty      regions that an operation has reached since their last scan
//   floor      operations up to this number may have reached anything
//   variables  contexts in whose module variables a copy has put what no pass has seen
//
// Locks: everything runs under PoolState::mutex, but for roots.span(). scansOfRoots() counts passes
// that read roots while the mutex is released: a root goes only when there are none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "pager/kernels/hash_and_scan.h"
#include "pager/programs/mappings.h"
#include "pager/reach/edges.h"
#include "pager/reach/roots.h"
#include "pager/residency/devices.h"
#include "pager/space/address_book.h"

namespace olpager::pager {

/// Operations up to a number whose reach nobody recorded.
struct ReachFloor {
  uint64_t number = 0;
  /// The last of these that was not known to reach everything when it was made.
  uint64_t found = 0;
  /// Operations are under way that nobody records; `number` is settled after the grace period that
  /// follows.
  bool pending = false;
  uint64_t epoch = 0;  // how often it has come to be pending

  void raise(uint64_t to) { number = std::max(number, to); }
  /// Every launch of the time that nobody recorded has been submitted, up to this number.
  void settle(uint64_t to) {
    raise(to);
    found = std::max(found, to);
    pending = false;
  }
};

/// Contexts of variables whose contents are not known. A kernel in such a context waits until a
/// pass that began after the operations up to `number` were done has scanned them.
class UnknownVariables {
 public:
  struct Write {
    uint64_t number;
    uint64_t serial;  // differs each time
  };
  /// An operation with that number writes unknown bytes.
  void note(CUcontext context, uint64_t number) { writes_[context] = {number, ++serials_}; }
  bool in(CUcontext context) const { return writes_.contains(context); }
  /// nullptr: the contents of its variables are known.
  const Write* of(CUcontext context) const {
    const auto found = writes_.find(context);
    return found != writes_.end() ? &found->second : nullptr;
  }
  void forget(CUcontext context) { writes_.erase(context); }

 private:
  std::map<CUcontext, Write> writes_;
  uint64_t serials_ = 0;
};

class ReachGraph {
 public:
  ReachGraph(Reach reach, const AddressBook& book, const Devices& devices,
             const ProgramMappings& programs)
      : reach_(reach), book_(book), devices_(devices), programs_(programs) {}

  // --- what leads where --------------------------------------------------------------------------
  /// The region, or the root, that holds `address` and is not being freed; nullptr: none.
  Region* liveAt(uint64_t address) const;
  /// Calls visit(region) for the targets of an edge.
  template <typename Visit>
  void forEdge(const Edge& edge, Visit visit) const;
  /// Calls visit(region) for what a reservation maps in [begin, end) besides its extents: regions
  /// in which handles lie that it maps a second time (nullptr: in none now), and roots, memory that
  /// is the driver's own.
  template <typename Visit>
  void forFixed(const Region& region, uint64_t begin, uint64_t end, Visit visit) const;
  template <typename Visit>
  void forFixed(const Region& region, Visit visit) const {
    forFixed(region, region.base, region.end(), visit);
  }
  /// Calls visit(word) for each word of [data, + bytes), which the CPU reads, that is an address of
  /// the range or between roots.
  template <typename Visit>
  void forPointersAmong(const void* data, uint64_t bytes, Visit visit) const;

  // --- what comes to lead somewhere --------------------------------------------------------------
  /// Pointers in `region` name `address`, of the range or between roots: an edge, unless nothing
  /// has ever been there. True: that was not known.
  bool add(Region& region, uint64_t address) const;
  /// The same, of which it is known that `target` (live; a region, or a root) holds the address.
  bool add(Region& region, const Region& target, uint64_t address) const;
  /// Pointers among the words of [data, + bytes), which the CPU reads, are in `region` by now.
  void addAmong(Region& region, const void* data, uint64_t bytes) const;
  /// Variables of `context` name what `edge` leads to: every launch reaches it from now on. `page`:
  /// which one of an arena that moves by pieces; 0: any.
  void addOfVariables(CUcontext context, const Edge& edge, uint64_t page = 0);
  /// The same of what lies at `address`.
  void addOfVariables(CUcontext context, uint64_t address);
  /// The engine goes: edges that its passes found in variables are known no more.
  void forgetKeeper(const Engine* keeper);

  // --- what is not known -------------------------------------------------------------------------
  /// An operation has reached the region: a scan is due.
  void markDirty(Region* region) {
    if (region->in_dirty_list) return;
    region->in_dirty_list = true;
    dirty.push_back(region);
  }
  /// Bytes of unknown contents have come to the region from the host or another agent: a pass looks
  /// for pointers before a kernel follows any in it. In memory that agents have in turns such
  /// passes look at pages that are due alone.
  void noteUnknown(Region& region, ExtentRange where) {
    region.host_written = true;
    ++region.host_writes;
    markDirty(&region);
    if (region.shared() == nullptr) return;
    for (size_t e = where.first; e < where.last; ++e) region.extents[e]->scan_due = true;
  }
  /// Nobody recorded operations' reach up to now: everything is to be scanned.
  void everythingIsDirty();
  /// Looks through the CPU's possible writes to a root. False: nobody knows its contents, so that
  /// an operation that reaches it may reach anything.
  bool refresh(Region& root) const;
  /// The engine whose passes scan the root; nullptr: none can.
  Engine* scannerOf(const Region& root) const;
  /// Nobody knows the root's edges, nor vouches for it.
  bool leadsAnywhere(const Region& root) const {
    return reach_ != Reach::kLearned && (!root.root->scannable || scannerOf(root) == nullptr);
  }

  // --- visit marks: each traversal takes a fresh one ---------------------------------------------
  uint32_t newRegionMark() { return ++region_mark_; }
  uint32_t newExtentMark() { return ++extent_mark_; }

  std::vector<Region*> dirty;
  RootTable roots;
  std::vector<RootEdge> of_variables;
  UnknownVariables unknown_variables;
  ReachFloor floor;
  unsigned scans_of_roots = 0;  // passes in flight that read any

 private:
  bool everUsed(uint64_t address) const;
  Edge edgeToNothing(uint64_t address) const;

  const Reach reach_;
  const AddressBook& book_;
  const Devices& devices_;
  const ProgramMappings& programs_;
  uint32_t region_mark_ = 0;
  uint32_t extent_mark_ = 0;
};

template <typename Visit>
void ReachGraph::forEdge(const Edge& edge, Visit visit) const {
  if (Region* const region = liveAt(edge.begin);
      region != nullptr && region->buffer_id == edge.buffer_id)
    return visit(*region);
  const space::PageMap& map = book_.map();
  const uint64_t end = std::min(edge.begin + edge.bytes, map.base() + map.size());
  for (uint64_t at = std::max(edge.begin, map.base()); at < end;) {
    Region* const region = liveAt(at);
    if (region != nullptr) visit(*region);
    at = std::max(at + kPageBytes, region != nullptr ? region->end() : 0);
  }
  roots.forAt(edge.begin, edge.bytes, [&](uint64_t, const Root& root) {
    if (root.region != nullptr && !root.region->dead) visit(*root.region);
  });
}

template <typename Visit>
void ReachGraph::forFixed(const Region& region, uint64_t begin, uint64_t end, Visit visit) const {
  if (region.fixed == 0) return;
  programs_.forFixedIn(
      begin, end, [&](uint64_t primary) { visit(primary == 0 ? nullptr : book_.find(primary)); });
  roots.forAt(begin, end - begin, [&](uint64_t, const Root& root) { visit(root.region); });
}

template <typename Visit>
void ReachGraph::forPointersAmong(const void* data, uint64_t bytes, Visit visit) const {
  const AddressSpan& outside = roots.span();
  kernels::scanWords(data, bytes, book_.map().base(), book_.map().size(), visit);
  kernels::scanWords(data, bytes, outside.low(), outside.bytes(), visit);
}

}  // namespace olpager::pager
