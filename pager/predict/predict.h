// The learned order of touches: which unit of memory will be used next, and how far away the next
// use of each is.
//
// A unit is what launches touch: an allocation, or a piece of an arena. touch() appends it to a
// history (a ring). The predictor keeps a cursor: the place in the history whose continuation
// predicts the future. While touches follow what stands behind the cursor, it advances; one or a
// few touches more or fewer are tolerated; otherwise it is found anew by the last three, two or one
// touches (hash of the context -> last position, so keyed by position in the order and not by the
// unit alone). The cursor then stays where it is as long as it predicts well: in a nest of loops it
// comes to rest one period of the outermost loop behind. Hot units, touched between most others
// (workspace, activations), would cut every context: they are kept out of the chain and reported as
// hot.
//
// Ideas: correlation of a context of past accesses with the next (Markov and PPM prefetching:
// Joseph and Grunwald, ISCA 1997; Vitter and Krishnan, "Optimal prefetching via data compression"),
// a cursor into a temporal history buffer (Wenisch et al., "Temporal streaming of shared memory",
// ISCA 2005), farthest next use (Belady 1966).
//
// Thread-safety: none; the caller locks. Memory: constant, about 30 bytes for each place of the
// history, touched as it fills, plus about 48 bytes for each unit id up to the highest used. Time:
// O(1) amortised for each touch. Nothing here fails or throws but for host memory exhaustion.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace olpager::predict {

/// Id of a unit, given by the caller, dense from 0; may be used again after forget().
using Unit = uint32_t;

class Predictor {
 public:
  struct Options {
    uint32_t history = 1u << 18;  // places of the ring, rounded up to a power of two
  };

  Predictor() : Predictor(Options{}) {}
  explicit Predictor(const Options& options);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  /// A launch uses `unit`. `signature` tells launches apart that use the same unit at different
  /// places of the program (such as a hash of the kernel); 0 if unknown. The same unit twice in a
  /// row counts once.
  void touch(Unit unit, uint32_t signature);
  /// The unit is gone; its id may come back as something else.
  void forget(Unit unit);

  /// Touched between most other touches: never evict it first. O(1).
  bool isHot(Unit unit) const;

  /// When a unit is used next.
  struct NextUse {
    enum class Kind : uint8_t {
      kPredicted,  // `distance` touches from now (0: the very next)
      kNever,      // the order is known and it does not occur as far as it is known: evict it first
      kUnpredicted,  // nothing can be said: fall back to recency
    };
    Kind kind = Kind::kUnpredicted;
    uint64_t distance = UINT64_MAX;  // UINT64_MAX unless predicted
  };
  /// O(1) amortised; a hot unit is predicted at a small distance.
  NextUse nextUse(Unit unit);

  /// Walks the predicted future: calls `visitor(unit, distance)` for up to `n` different units in
  /// the order of their next use, hot ones left out, until it returns false. Nothing is called
  /// while the order is not known.
  template <typename Visitor>
  void upcoming(size_t n, Visitor&& visitor);

  /// The order is known and its recent predictions were mostly right.
  bool confident() const;
  /// Touches so far (hot ones and repetitions included).
  uint64_t touches() const { return raw_; }

  struct Statistics {
    uint64_t predicted_right = 0;  // touches that were foretold as one of the next few
    uint64_t predicted_wrong = 0;  // touches that were not
    uint64_t found_anew = 0;       // times that the cursor was placed by context
    uint64_t hot_touches = 0;
  };
  const Statistics& statistics() const { return statistics_; }

 private:
  static constexpr Unit kGone = UINT32_MAX;  // an entry whose unit was forgotten
  static constexpr uint64_t kNowhere = UINT64_MAX;

  // Positions count entries ever appended; position p lies at entries_[p & mask_] while head_ - p
  // <= mask_ + 1.
  struct Entry {
    Unit unit;
    uint32_t signature;
    uint32_t back;     // to the unit's occurrence before this one; 0: none
    uint32_t forward;  // to the one after; 0: none
  };
  struct UnitState {
    uint64_t last = kNowhere;  // last position in the history
    uint64_t hint = kNowhere;  // an occurrence near the first one behind the cursor
    uint64_t touched_at = 0;   // head_ at the last touch
    float interval = 0;        // between touches, in time_; exponential average
    uint64_t counted_at = 0;   // time_ of the last touch that counts in the windows; 0: none
    uint32_t uses = 0;
    uint32_t visit = 0;
    bool hot = false;
  };
  struct Free {
    void operator()(void* memory) const;
  };
  template <typename T>
  using Array = std::unique_ptr<T[], Free>;

  Entry& at(uint64_t position) { return entries_[position & mask_]; }
  const Entry& at(uint64_t position) const { return entries_[position & mask_]; }
  bool alive(uint64_t position) const { return position < head_ && head_ - position <= mask_ + 1; }
  bool skipped(Unit unit) const { return unit == kGone || isHot(unit); }
  UnitState& state(Unit unit);
  void updateHot(Unit unit, UnitState& state);
  void countRecent(Unit unit, UnitState& state);
  bool follow(Unit unit);
  void append(Unit unit, uint32_t signature);
  void place(uint64_t position);
  uint64_t findByContext(unsigned touches) const;
  uint64_t contextKey(unsigned touches, uint64_t position) const;
  bool sameContext(unsigned touches, uint64_t a, uint64_t b) const;
  void record(bool right);
  uint64_t firstBehindCursor(Unit unit);
  uint32_t beginVisit();

  uint64_t mask_;
  Array<Entry> entries_;
  Array<uint32_t> contexts_[3];  // hash of the last 1, 2, 3 touches -> position (low 32 bits),
                                 // checked against the history
  std::vector<UnitState> units_;
  uint64_t head_ = 0;
  uint64_t cursor_ =
      kNowhere;  // entry that stands for the last touch; what follows it is the prediction
  uint64_t raw_ = 0;
  uint64_t time_ = 0;  // touches, hot ones included, repetitions not
  Unit last_unit_ = kGone;
  unsigned misses_ = 0;     // in a row
  unsigned streak_ = 0;     // right ones in a row
  unsigned probation_ = 0;  // touches after a miss in which a more recent place is preferred
  float accuracy_ = 0;      // exponential average of right
  // Different units used again within the last 64, 256, 1024 and 4096 touches: what an interval is
  // measured against.
  static constexpr unsigned kWindows = 4;
  static constexpr uint64_t windowTouches(unsigned window) { return 64ull << (2 * window); }
  std::vector<Unit> recent_;  // ring of the largest window
  uint32_t distinct_[kWindows] = {};
  uint32_t visit_ = 0;
  Statistics statistics_;
};

template <typename Visitor>
void Predictor::upcoming(size_t n, Visitor&& visitor) {
  if (n == 0 || !confident()) return;
  const uint32_t visit = beginVisit();
  // Repetitions in a short loop must not make this walk long.
  const uint64_t limit = std::min(head_, cursor_ + 1 + 64 + 32 * static_cast<uint64_t>(n));
  for (uint64_t position = cursor_ + 1; position < limit; ++position) {
    const Unit unit = at(position).unit;
    if (skipped(unit)) continue;
    UnitState& unit_state = units_[unit];
    if (unit_state.visit == visit) continue;
    unit_state.visit = visit;
    if (!visitor(unit, position - cursor_ - 1) || --n == 0) return;
  }
}

}  // namespace olpager::predict
