// The reach of one operation: the regions that it names and those that pointers in memory lead it
// to, and which of their extents have to be mapped before it may be made.
//
// Part of an Acquisition (launch/); every member runs under PoolState::mutex. Pointers are followed
// again after each wait: a scan may have shown more of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pager/pool_state.h"
#include "pager/reach/working_set.h"

namespace olpager::pager {

class Closure {
 public:
  /// `follows`: a kernel or a graph, which goes on from what it names. `signature`: of the
  /// operation, in the learned order.
  Closure(PoolState& state, CUcontext context, bool follows, uint32_t signature)
      : used(state),
        state_(state),
        context_(context),
        signature_(signature),
        follows_(follows),
        mark_(state.reach.newRegionMark()) {}

  /// The learned order and arenas are not told the names. Call it first.
  void tellNobody() { tells_ = false; }
  /// A parameter that lies in the range; or, outside of it, in a root.
  void name(uint64_t address);
  void nameOutside(uint64_t address);
  /// An exact range. CUDA_ERROR_INVALID_VALUE: it is not all in one region's pages.
  CUresult nameRange(uint64_t address, uint64_t bytes, Mode mode);
  /// A node of the graph that is named may write there.
  void mayWrite(uint64_t address, uint64_t bytes);
  /// All names have been given. From here on regions are reached by pointers.
  void nothingElseIsNamed();

  /// As it was made: nothing is named.
  void clear();
  /// Something that it reaches has been freed since.
  bool reachesFreed() const;

  /// From now on it reaches everything.
  void reachEverything();
  /// Follows pointers from all that is reached so far.
  void follow();
  /// True if the operation may be made. `in_vain`: extents that would be better fetched are not
  /// waited for any more.
  bool settled(bool in_vain) const;
  /// True if the region has to be scanned before its pointers are known.
  bool mustScan(const Region& region) const {
    return follows_ && !everything && region.host_written;
  }
  /// The engine that has to scan the context's variables first; nullptr: none has to.
  Engine* scannerOfVariables() const;
  Engine* engineOf(const Region& region) const {
    return region.isRoot() ? state_.reach.scannerOf(region) : region.engine;
  }

  bool follows() const { return follows_; }
  /// Regions that the operation itself names.
  std::span<Region* const> named() const { return {regions.data(), named_}; }

  std::vector<Region*> regions;  // reached; live and with an engine, or roots
  std::vector<Region*> sources;  // of them, those that a copy reads
  bool source_unseen = false;    // it reads what no region holds
  std::vector<Extent*> needed;   // have to be mapped
  std::vector<Extent*> fetched;  // in host memory in place, worth waiting for; also in `needed`
  std::vector<Extent*> written;  // of ranges, of arenas that are streamed
  WorkingSet used;               // of arenas that move by pieces, or are streamed
  bool everything = false;

 private:
  void visit(Region* region);
  void visitWhole(Region* region);
  void visitPage(uint64_t address);
  void followVariables();
  void list(Region& region);
  void listTaken();
  void notLookedThrough(const Region& root);

  PoolState& state_;
  CUcontext context_;
  uint32_t signature_;
  bool follows_;
  uint32_t mark_;
  bool tells_ = true;
  bool everything_found_ = false;  // something that it reaches may name anything
  size_t named_ = 0;
  size_t listed_ = 0;  // of `regions`: their extents are in `needed`, roots are looked through
  size_t listed_pieces_ = 0;  // of used.extents()
  // Reached as a whole; no other agent had any of it, and one may take some while the launch
  // waits. Then all of it is needed: what the launch claims it claims at one moment. Likewise
  // arenas whose parts change place for other launches.
  std::vector<Region*> shared_;
};

}  // namespace olpager::pager
