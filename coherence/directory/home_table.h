// The home's transition table: for each phase of an extent's transaction and each input the next
// phase and the effects. Complete, as agent_table.h.
#pragma once

#include <array>

#include "coherence/directory/types.h"

namespace olpager::directory {

enum class Phase : uint8_t {
  kRest,       // no transaction
  kRecalling,  // replicas have been told to go; not all are gone
  kYielding,   // the owner has been told to give; the taker does not have it yet
  kFirsting,   // nobody owns it; the taker has been told that it may
  kFreeing,    // all agents have been told to forget it
  kGone,       // it is not allocated
};
inline constexpr size_t kPhases = static_cast<size_t>(Phase::kGone) + 1;

enum class HomeInput : uint8_t {
  kOpenShared,         // the oldest request is served: a replica
  kOpenOwn,            // ownership, there are no replicas
  kOpenOwnRecall,      // ownership, replicas first
  kOpenUpgrade,        // the owner wants it for itself alone; there are no replicas
  kOpenUpgradeRecall,  // replicas first
  kOpenFirst,          // nobody owns it
  kOlder,              // a request came that is older than the open transaction
  kAckMore,            // a replica is gone, not the last
  kAckLast,            // the last; then the owner gives
  kAckLastUpgrade,     // the last; the owner wants it for itself
  kDoneShared,         // the taker has its replica
  kDoneOwn,            // the taker owns it
  kDeclined,           // the owner does not give what is asked for ahead
  kFree,               // the program has freed it
  kForgottenMore,      // an agent has forgotten it, not the last
  kForgottenLast,      // the last
  kAllocate,           // it is allocated again
};
inline constexpr size_t kHomeInputs = static_cast<size_t>(HomeInput::kAllocate) + 1;

// Effects of a transition, carried out in this order.
enum HomeEffect : uint32_t {
  kTellInvalidate = 1 << 0,
  kTellYield = 1 << 1,
  kTellGrant = 1 << 2,
  kTellFirst = 1 << 3,
  kTellUrge = 1 << 4,
  kTellRelease = 1 << 5,
  kTellForget = 1 << 6,
  kAddReplica = 1 << 7,
  kNoReplicas = 1 << 8,
  kTakerOwns = 1 << 9,
  kNobodyOwns = 1 << 10,
  kDropAsks = 1 << 11,  // those that the taker sent before it had the extent are satisfied
  kClose = 1 << 12,     // the next request, or rest
};

struct HomeCell {
  enum Kind : uint8_t { kUnset, kGoes, kIgnored, kExcluded } kind = kUnset;
  Phase next = Phase::kRest;
  uint32_t effects = 0;
};

class HomeTable {
 public:
  constexpr HomeTable() {
    using P = Phase;
    using I = HomeInput;
    row(I::kOpenShared).go(P::kRest, P::kYielding, kTellYield).rest();
    row(I::kOpenOwn).go(P::kRest, P::kYielding, kTellYield).rest();
    row(I::kOpenOwnRecall).go(P::kRest, P::kRecalling, kTellInvalidate).rest();
    row(I::kOpenUpgrade)
        .go(P::kRest, P::kRest, kTellGrant | kNoReplicas | kDropAsks | kClose)
        .rest();
    row(I::kOpenUpgradeRecall).go(P::kRest, P::kRecalling, kTellInvalidate).rest();
    row(I::kOpenFirst).go(P::kRest, P::kFirsting, kTellFirst).rest();
    row(I::kOlder)
        .go(P::kRecalling, P::kRecalling, kTellUrge)
        .go(P::kYielding, P::kYielding, kTellUrge)
        .ignore();

    row(I::kAckMore).go(P::kRecalling, P::kRecalling, 0).ignore();
    row(I::kAckLast).go(P::kRecalling, P::kYielding, kTellYield).ignore();
    row(I::kAckLastUpgrade)
        .go(P::kRecalling, P::kRest, kTellGrant | kNoReplicas | kDropAsks | kClose)
        .ignore();

    row(I::kDoneShared)
        .go(P::kYielding, P::kRest, kTellRelease | kAddReplica | kDropAsks | kClose)
        .ignore();
    row(I::kDoneOwn)
        .go(P::kYielding, P::kRest, kTellRelease | kNoReplicas | kTakerOwns | kDropAsks | kClose);
    row(I::kDoneOwn).go(P::kFirsting, P::kRest, kTakerOwns | kDropAsks | kClose).ignore();
    row(I::kDeclined).go(P::kYielding, P::kRest, kClose).ignore();

    row(I::kFree).go(P::kRest, P::kFreeing, kTellForget).rest();
    row(I::kForgottenMore).go(P::kFreeing, P::kFreeing, 0).ignore();
    row(I::kForgottenLast).go(P::kFreeing, P::kGone, kNoReplicas | kNobodyOwns | kClose).ignore();
    row(I::kAllocate).go(P::kGone, P::kRest, 0).rest();
  }

  constexpr const HomeCell& operator()(Phase phase, HomeInput input) const {
    return cells_[static_cast<size_t>(input)][static_cast<size_t>(phase)];
  }
  constexpr bool complete() const {
    for (const Row& row : cells_) {
      for (const HomeCell& cell : row) {
        if (cell.kind == HomeCell::kUnset) return false;
      }
    }
    return true;
  }

 private:
  using Row = std::array<HomeCell, kPhases>;
  struct Writer {
    Row& cells;
    constexpr Writer& go(Phase from, Phase to, uint32_t effects) {
      cells[static_cast<size_t>(from)] = {HomeCell::kGoes, to, effects};
      return *this;
    }
    /// All other inputs are excluded: one that arrives is a mistake of the home's own.
    constexpr void rest() { fill(HomeCell::kExcluded); }
    /// All other inputs are late and ignored.
    constexpr void ignore() { fill(HomeCell::kIgnored); }
    constexpr void fill(HomeCell::Kind kind) {
      for (HomeCell& cell : cells) {
        if (cell.kind == HomeCell::kUnset) cell.kind = kind;
      }
    }
  };
  constexpr Writer row(HomeInput input) { return {cells_[static_cast<size_t>(input)]}; }

  std::array<Row, kHomeInputs> cells_{};
};

inline constexpr HomeTable kHomeTable;
static_assert(kHomeTable.complete());

}  // namespace olpager::directory
