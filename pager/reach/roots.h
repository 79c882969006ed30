// Memory outside the range in which kernels may find pointers into it: roots. Pointers in them keep
// what they name from being unmapped, and a launch reaches what it can get to through them.
//
//   kind       who writes it        what is known of its contents
//   kVariable  kernels, copies      each pass scans those of its engine's context; every kernel of
//                                   the context reaches what they named then (RootEdge), and what
//                                   copies have put there since
//   kHost      the CPU, too         as kDevice, and the CPU looks through it anew for each launch
//                                   that reaches it
//   kManaged   the CPU, too         likewise, the pages that the CPU has mapped: others the CPU has
//                                   not written
//   kDevice    kernels, copies      a Region without extents: dirty once a launch reached it, then
//                                   scanned by the next pass
//   kUnknown   anybody              nothing
//
// Some memory can't be looked through (kUnknown; kHost and kManaged above kLargestScanned; managed
// memory that CPU and GPU may not use at once; registered memory that the program has unmapped or
// protected since; device memory or variables of a context that no engine lives in). Such memory
// may name anything: a launch that reaches it reaches all, and nothing is evicted beside it
// (ReachFloor). Under reach = learned the user vouches that it names nothing.
//
// Everything runs under PoolState::mutex unless it says otherwise.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/own_memory.h"
#include "pager/reach/edge.h"
#include "pager/types.h"

namespace olpager::pager {

class Engine;
struct Region;

/// The root state of a Region of kind kRoot. The region's `base` is the memory's address,
/// `requested_bytes` its size; it has no pages of the range.
struct RootMemory {
  RootKind kind = RootKind::kHost;
  CUcontext context = nullptr;
  bool scannable = true;    // as of when it was made known; no more once the CPU could not read it
  bool registered = false;  // the program's own memory, which it may take away
  uint64_t written = 0;     // number of the last copy that wrote what is not known
};

struct Root {
  uint64_t bytes = 0;
  RootKind kind = RootKind::kVariable;
  CUcontext context = nullptr;
  Region* region = nullptr;  // none of a variable
};

/// An edge from variables of a context, as of the last passes.
struct RootEdge {
  Edge edge;
  const Engine* keeper;  // whose passes scan that root
  unsigned missed = 0;   // passes in a row that did not find it
  uint64_t page = 0;     // which one, of an arena that moves by pieces; 0: any
};

/// Addresses between the lowest and the highest of those added. Grows only; added to under the
/// mutex, read without.
class AddressSpan {
 public:
  void add(uint64_t address, uint64_t size) {
    const uint64_t before = bytes_.load(), low = low_.load();
    const uint64_t first = before == 0 ? address : std::min(low, address);
    // In this order: a reader that sees one of the two alone sees a span that holds the one before.
    bytes_.store(std::max(before == 0 ? 0 : low + before, address + size) - first,
                 std::memory_order_release);
    low_.store(first, std::memory_order_release);
  }
  bool contains(uint64_t address) const {
    const uint64_t low = low_.load(std::memory_order_acquire);
    return address - low < bytes_.load(std::memory_order_relaxed);
  }
  bool overlaps(uint64_t address, uint64_t size) const {
    const uint64_t low = low_.load(std::memory_order_acquire),
                   bytes = bytes_.load(std::memory_order_relaxed);
    return address - low < bytes || (bytes != 0 && low - address < size);
  }
  uint64_t low() const { return low_.load(); }
  uint64_t bytes() const { return bytes_.load(); }

 private:
  std::atomic<uint64_t> low_{0}, bytes_{0};
};

/// The roots by address. Roots do not overlap.
class RootTable {
 public:
  /// False: there is one at that address already. `spans`: it counts for span().
  bool add(uint64_t address, const Root& root, bool spans);
  /// The one at `address`, taken out; `bytes` is 0 when there is none.
  Root remove(uint64_t address);
  void dropContext(CUcontext context, std::vector<Region*>& regions);

  /// The addresses between the lowest and the highest root. Read without the mutex.
  const AddressSpan& span() const { return span_; }
  /// True if kernels of the context read variables.
  bool hasVariables(CUcontext context) const { return variables_.contains(context); }

  /// The region of the root that holds `address`; none of a variable's.
  Region* regionAt(uint64_t address) const;
  /// Calls visit(address, root) for each root that overlaps [address, + bytes).
  template <typename Visit>
  void forAt(uint64_t address, uint64_t bytes, Visit visit) const {
    auto it = roots_.upper_bound(address);
    if (it != roots_.begin()) --it;
    for (; it != roots_.end() && (it->first <= address || it->first - address < bytes); ++it)
      if (it->first >= address || address - it->first < it->second.bytes)
        visit(it->first, it->second);
  }
  auto begin() const { return roots_.begin(); }
  auto end() const { return roots_.end(); }

 private:
  std::map<uint64_t, Root> roots_;
  std::map<CUcontext, unsigned> variables_;  // how many
  AddressSpan span_;
};

/// The largest host or managed memory that is looked through: a millisecond of a CPU.
inline constexpr uint64_t kLargestScanned = 16ull << 20;

/// Runs of bytes, 8-byte aligned at both ends.
struct ByteRun {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool may_be_gone = false;  // registered memory
};

/// Splits [address, + bytes) into the runs that the CPU has mapped and those that it has not. In
/// managed memory the CPU has written only the runs that it has mapped: memory that the GPU uses is
/// taken from it. Everything counts as mapped where the system does not tell. Without the mutex
/// too.
void splitByPresence(uint64_t address, uint64_t bytes, std::vector<ByteRun>& present,
                     std::vector<ByteRun>& absent);

/// Splits a scannable root into the runs for the CPU and those that only the GPU can look through.
/// Without the mutex too.
void rootRuns(const Region& root, std::vector<ByteRun>& by_cpu, std::vector<ByteRun>& by_gpu);

/// Calls visit(data, bytes) for a run that the CPU looks through, piece by piece. For registered
/// memory these are copies: the program may have unmapped it, or protected it from being read,
/// which is no fault of its as long as nothing uses it. False: it has; `visit` was called for a
/// part at most. Without the mutex too.
template <typename Visit>
bool forPieces(const ByteRun& run, Visit visit) {
  if (!run.may_be_gone) {
    visit(reinterpret_cast<const void*>(run.begin), run.end - run.begin);
    return true;
  }
  constexpr uint64_t kPiece = 256 << 10;
  const uint64_t room = std::min(kPiece, run.end - run.begin);
  const auto words = std::make_unique_for_overwrite<uint64_t[]>(room / sizeof(uint64_t));
  for (uint64_t at = run.begin; at < run.end;) {
    const uint64_t bytes = std::min(room, run.end - at);
    if (!base::readUnlessGone(words.get(), at, bytes)) return false;
    visit(static_cast<const void*>(words.get()), bytes);
    at += bytes;
  }
  return true;
}

}  // namespace olpager::pager
