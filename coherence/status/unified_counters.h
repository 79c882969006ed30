// Counters of a unified view's home about its executors, in shared memory: a part of the counters'
// file of its program (pager/counters/counters.h), which olpagestat reads while the program runs.
// docs/reference/counters.md describes the layout for other readers; a change of it raises
// kCountersVersion there.
//
// Owner: the program's counters; the home's process writes, for as long as its session lives.
// Readers of other processes copy it whenever they like, and change nothing.
//
// Thread-safety: each counter has one writer at a time, which holds the lock that the counter's
// comment names ([order]: Executors::order_, or who moves, [home]: Home::mutex_,
// [managed]: ManagedMemory::mutex_). So it is changed by a relaxed
// load and a relaxed store (grow), without an atomic read-modify-write. Each figure is true by
// itself; sums over several may be a moment apart. Names and `count` are written once, before the
// first operation: `count` last, with release. Errors: none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "coherence/directory/types.h"

namespace olpager::status {

using Counter = std::atomic<uint64_t>;

inline constexpr unsigned kMaxCountedExecutors = 32;
inline constexpr unsigned kKeptMoves = 16;

/// Why an operation went where it did.
enum class RouteReason : uint8_t {
  // The operation went to the active executor.
  kInPlace,    // no page that it names is placed elsewhere
  kPagesCome,  // nowhere else fewer pages would move: some come, or make room; or those of a short
               // turn come (interpose/unified/turns.h)
  kNotEnded,   // it would go elsewhere, but what runs at the active one does not end
  kCapturing,  // it might go elsewhere, but a stream captures
  kBound,      // all runs there from now on
  // Another executor became the active one for it.
  kPages,      // more of what it names is there
  kRoom,       // the former one would have had more pages than its VRAM has room for
  kCapacity,   // the former one would have had more pages than it can hold
  kVariables,  // the program's addresses of variables are that one's
  kAsked,      // the program's settings say so (route)
};
inline constexpr unsigned kRouteReasons = 10;

/// As the end of "went there because". An unknown number: "?".
constexpr std::string_view textOf(RouteReason reason) {
  constexpr std::string_view kTexts[kRouteReasons] = {
      "none of its pages is elsewhere",
      "nowhere else fewer pages would move",
      "work at the active executor has not ended, or has failed",
      "a stream captures",
      "all is bound to one executor",
      "more of its pages are there",
      "the former executor's VRAM has no room for its pages",
      "the former executor can't hold its pages",
      "addresses of variables are of that executor",
      "the setting route says so",
  };
  const auto number = static_cast<unsigned>(reason);
  return number < kRouteReasons ? kTexts[number] : "?";
}

/// One executor. (g): a gauge, the present value; others only grow.
struct alignas(64) ExecutorCounters {
  // Site::name (interpose/forward/sites.h), NUL-terminated, cut where it is longer.
  char gpunode[128];
  Counter room_bytes;      // (g) of pages, that its VRAM has room for
  Counter capacity_bytes;  // (g) of pages, that it can hold in all
  Counter reserved[6];

  // [order]
  alignas(64) Counter routed[kRouteReasons];  // operations that went there, by RouteReason
  Counter launches;                           // of these, launches of kernels and graphs
  Counter kept;  // of these, operations that were kept while all moved: their threads went on
  Counter reserved_routed[4];

  // [home]
  alignas(64) Counter owned_bytes;  // (g) of pages whose owner it is
  Counter bytes_in;                 // of pages that it has taken from other executors, whole
  Counter bytes_out;                // of pages that others have taken from it, whole
  // Of bytes_in, as the executor says it while pages come:
  Counter read_bytes;       // what crossed a link
  Counter unchanged_bytes;  // of pages that were there already: none of these did
  Counter in_part_bytes;    // of pages of which an older one was there: not all of these did
  Counter retained_bytes;   // (g) of pages that it keeps though others have taken them: they come
                            // back without crossing a link where they come back as they left
  Counter pushed_bytes;     // of bytes_out, pages that were sent away to make room
};
static_assert(sizeof(ExecutorCounters) == 384);

/// A move of all. [order]
struct MoveRecord {
  Counter sequence;  // number of the move + 1, written last; 0 while the rest is written
  Counter begun_ns;  // CLOCK_MONOTONIC: an operation was to go elsewhere
  Counter ended_ns;  // the other executor was active
  Counter about;     // from | to << 8 | RouteReason << 16
  // Pages that the operation names: placed at the new executor before, and at others.
  Counter pages_there;
  Counter pages_coming;
  Counter finishing_ns;  // until the former executor had nothing to do
  Counter reserved;
};
static_assert(sizeof(MoveRecord) == 64);

struct alignas(64) UnifiedCounters {
  Counter count;         // of executors; 0: the program has no such view
  Counter active;        // [order] number of the executor where operations run
  Counter moves;         // [order] moves of all; raised, with release, behind the move's record
  Counter finishing_ns;  // [order] in all, until the former executor had nothing to do
  Counter bringing_ns;   // [order] in all, for variables of code
  // [managed] Of managed memory that the program's CPU has in turns with the executors:
  Counter cpu_faults;     // touches of the CPU's that waited for pages
  Counter cpu_bytes_in;   // of pages that came to the CPU
  Counter cpu_bytes_out;  // of pages that went back
  ExecutorCounters executors[kMaxCountedExecutors];
  MoveRecord last_moves[kKeptMoves];  // move n is in n % kKeptMoves

  /// The figures of an executor; those beyond share the last.
  ExecutorCounters& of(unsigned executor) noexcept {
    return executors[executor < kMaxCountedExecutors ? executor : kMaxCountedExecutors - 1];
  }
};
static_assert(sizeof(UnifiedCounters) == 64 + kMaxCountedExecutors * sizeof(ExecutorCounters) +
                                             kKeptMoves * sizeof(MoveRecord));

/// For the counter's one writer.
inline void grow(Counter& counter, uint64_t n = 1) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}
inline void shrink(Counter& gauge, uint64_t n) noexcept {
  gauge.store(gauge.load(std::memory_order_relaxed) - n, std::memory_order_relaxed);
}

/// A move of all, as it is written and read.
struct Move {
  unsigned from = 0, to = 0;
  RouteReason reason = RouteReason::kPages;
  uint64_t begun_ns = 0, ended_ns = 0;
  uint64_t pages_there = 0, pages_coming = 0;
  uint64_t finishing_ns = 0;
};

/// The next one: by the holder of the order.
inline void noteMove(UnifiedCounters& counters, const Move& move) noexcept {
  const uint64_t number = counters.moves.load(std::memory_order_relaxed);
  MoveRecord& record = counters.last_moves[number % kKeptMoves];
  const auto put = [](Counter& to, uint64_t value) { to.store(value, std::memory_order_relaxed); };
  put(record.sequence, 0);
  std::atomic_thread_fence(std::memory_order_release);
  put(record.begun_ns, move.begun_ns);
  put(record.ended_ns, move.ended_ns);
  put(record.about, move.from | uint64_t{move.to} << 8 | static_cast<uint64_t>(move.reason) << 16);
  put(record.pages_there, move.pages_there);
  put(record.pages_coming, move.pages_coming);
  put(record.finishing_ns, move.finishing_ns);
  record.sequence.store(number + 1, std::memory_order_release);
  put(counters.active, move.to);
  counters.moves.store(number + 1, std::memory_order_release);
}

/// Move `number` out of a copy of the counters. False: it is not there (any more), or was not whole
/// when it was copied, or is damaged. The oldest one may be taken for whole and not be it, where
/// two moves are written while the copy is made.
inline bool moveOf(const UnifiedCounters& copy, uint64_t number, Move& into) noexcept {
  const MoveRecord& record = copy.last_moves[number % kKeptMoves];
  const auto get = [](const Counter& from) { return from.load(std::memory_order_relaxed); };
  if (get(record.sequence) != number + 1) return false;
  const uint64_t about = get(record.about);
  into = {.from = static_cast<unsigned>(about & 0xff),
          .to = static_cast<unsigned>(about >> 8 & 0xff),
          .reason = static_cast<RouteReason>(about >> 16 & 0xff),
          .begun_ns = get(record.begun_ns),
          .ended_ns = get(record.ended_ns),
          .pages_there = get(record.pages_there),
          .pages_coming = get(record.pages_coming),
          .finishing_ns = get(record.finishing_ns)};
  const uint64_t count = get(copy.count);
  return into.from < count && into.to < count;
}

}  // namespace olpager::status
