// An agent's transition table: for each state of an extent and each input the next state and the
// effects. Complete: a cell that nobody wrote does not compile. Conditions (must a demand wait? are
// the frame's bytes those that would come?) are evaluated beforehand, in agent.cpp, so that a cell
// has none.
#pragma once

#include <array>

#include "coherence/directory/types.h"

namespace olpager::directory {

enum class AgentState : uint8_t {
  kAbsent,         // no frame
  kTaking,         // the home is asked; a frame with old bytes may be there
  kLandingShared,  // the bytes of a replica are on their way into the frame
  kLandingOwn,     // those of an extent that will be owned
  kOwned,          // the only one; usable
  kOwnedShared,    // owner; read-only, there are replicas or have been
  kShared,         // a replica; read-only
  kGiven,          // no longer usable here; the bytes are kept until the taker has them
  kRetained,       // as absent; the frame still has the old bytes
};
inline constexpr size_t kAgentStates = static_cast<size_t>(AgentState::kRetained) + 1;

enum class AgentInput : uint8_t {
  kAsk,              // an operation asks the home for it
  kYieldOwn,         // the home wants it for a taker, and nobody is in the way
  kYieldShared,      // as a replica
  kYieldWait,        // somebody is in the way
  kDecline,          // it is asked for ahead only, and claimed
  kReadyOwn,         // the giver has it ready; bytes have to come
  kReadyShared,      //
  kHaveOwn,          // the giver has it ready; the frame holds the same bytes
  kHaveShared,       //
  kLanded,           // the bytes are here
  kRelease,          // the taker has it
  kReleaseAsked,     // the taker has it, and an operation here has asked for it again
  kInvalidate,       // a replica has to go, and nobody is in the way
  kInvalidateAsked,  // and an operation here has asked for it
  kInvalidateWait,   // somebody is in the way
  kGrant,            // it is the agent's alone
  kFirst,            // it is the agent's alone, and had no bytes before
  kDrop,             // the pager has other use for its frame
  kForget,           // it is freed
  kForgetWait,       // it is freed, and somebody is in the way
};
inline constexpr size_t kAgentInputs = static_cast<size_t>(AgentInput::kForgetWait) + 1;

// Effects of a transition, carried out in this order.
enum AgentEffect : uint32_t {
  kUnmapIt = 1 << 0,
  kFetchBytes = 1 << 1,
  kClearFrame = 1 << 2,
  kMapIt = 1 << 3,
  kMapReadOnly = 1 << 4,
  kFreeFrame = 1 << 5,
  kWait = 1 << 6,     // remember the demand
  kEndWait = 1 << 7,  // forget it
  kSendGet = 1 << 8,
  kSendReady = 1 << 9,
  kSendDone = 1 << 10,
  kSendDeclined = 1 << 11,
  kSendAcked = 1 << 12,
  kSendForgotten = 1 << 13,
  kArrive = 1 << 14,  // operations that wait for it claim it
  kFail = 1 << 15,    // operations that need it fail
};

struct AgentCell {
  enum Kind : uint8_t { kUnset, kGoes, kIgnored, kExcluded } kind = kUnset;
  AgentState next = AgentState::kAbsent;
  uint32_t effects = 0;
};

class AgentTable {
 public:
  constexpr AgentTable() {
    using S = AgentState;
    using I = AgentInput;
    row(I::kAsk)
        .go(S::kAbsent, S::kTaking, kSendGet)
        .go(S::kRetained, S::kTaking, kSendGet)
        .stay({S::kTaking, S::kOwnedShared, S::kShared, S::kGiven}, kSendGet)
        .rest();

    row(I::kYieldOwn).go(S::kOwned, S::kGiven, kUnmapIt | kEndWait | kSendReady);
    row(I::kYieldOwn).go(S::kOwnedShared, S::kGiven, kUnmapIt | kEndWait | kSendReady).rest();
    row(I::kYieldShared).go(S::kOwned, S::kOwnedShared, kMapReadOnly | kEndWait | kSendReady);
    row(I::kYieldShared).stay({S::kOwnedShared}, kEndWait | kSendReady).rest();
    row(I::kYieldWait).stay({S::kOwned, S::kOwnedShared}, kWait).rest();
    row(I::kDecline).stay({S::kOwned, S::kOwnedShared}, kEndWait | kSendDeclined).rest();

    for (const S held : {S::kAbsent, S::kTaking, S::kGiven, S::kRetained}) {
      row(I::kReadyOwn).go(held, S::kLandingOwn, kFetchBytes);
      row(I::kReadyShared).go(held, S::kLandingShared, kFetchBytes);
    }
    row(I::kReadyOwn).rest();
    row(I::kReadyShared).rest();
    for (const S held : {S::kTaking, S::kGiven, S::kRetained}) {
      row(I::kHaveOwn).go(held, S::kOwned, kMapIt | kSendDone | kArrive);
      row(I::kHaveShared).go(held, S::kShared, kMapReadOnly | kSendDone | kArrive);
    }
    row(I::kHaveOwn).go(S::kShared, S::kOwned, kMapIt | kEndWait | kSendDone | kArrive).rest();
    row(I::kHaveShared).stay({S::kShared}, kSendDone | kArrive).rest();
    row(I::kLanded).go(S::kLandingShared, S::kShared, kMapReadOnly | kSendDone | kArrive);
    row(I::kLanded).go(S::kLandingOwn, S::kOwned, kMapIt | kSendDone | kArrive).rest();

    row(I::kRelease).go(S::kGiven, S::kRetained, 0).stay({S::kOwnedShared}, 0).ignore();
    row(I::kReleaseAsked).go(S::kGiven, S::kTaking, 0).stay({S::kOwnedShared}, 0).ignore();

    row(I::kInvalidate).go(S::kShared, S::kRetained, kUnmapIt | kEndWait | kSendAcked).rest();
    row(I::kInvalidateAsked).go(S::kShared, S::kTaking, kUnmapIt | kEndWait | kSendAcked).rest();
    row(I::kInvalidateWait).stay({S::kShared}, kWait).rest();

    row(I::kGrant)
        .go(S::kOwnedShared, S::kOwned, kMapIt | kArrive)
        .stay({S::kOwned}, kArrive)
        .rest();
    row(I::kFirst).go(S::kAbsent, S::kOwned, kClearFrame | kMapIt | kSendDone | kArrive);
    row(I::kFirst).go(S::kTaking, S::kOwned, kClearFrame | kMapIt | kSendDone | kArrive).rest();

    row(I::kDrop).go(S::kRetained, S::kAbsent, kFreeFrame).rest();

    row(I::kForget).go(S::kAbsent, S::kAbsent, kSendForgotten | kFail);
    for (const S held : {S::kTaking, S::kGiven, S::kRetained})
      row(I::kForget).go(held, S::kAbsent, kFreeFrame | kSendForgotten | kFail);
    for (const S mapped : {S::kOwned, S::kOwnedShared, S::kShared}) {
      row(I::kForget)
          .go(mapped, S::kAbsent, kUnmapIt | kFreeFrame | kEndWait | kSendForgotten | kFail);
      row(I::kForgetWait).stay({mapped}, kWait);
    }
    row(I::kForget).rest();
    row(I::kForgetWait).rest();
  }

  constexpr const AgentCell& operator()(AgentState state, AgentInput input) const {
    return cells_[static_cast<size_t>(input)][static_cast<size_t>(state)];
  }
  constexpr bool complete() const {
    for (const Row& row : cells_) {
      for (const AgentCell& cell : row) {
        if (cell.kind == AgentCell::kUnset) return false;
      }
    }
    return true;
  }

 private:
  using Row = std::array<AgentCell, kAgentStates>;
  struct Writer {
    Row& cells;
    constexpr Writer& go(AgentState from, AgentState to, uint32_t effects) {
      cells[static_cast<size_t>(from)] = {AgentCell::kGoes, to, effects};
      return *this;
    }
    constexpr Writer& stay(std::initializer_list<AgentState> states, uint32_t effects) {
      for (const AgentState state : states) go(state, state, effects);
      return *this;
    }
    /// All other inputs are excluded by the protocol: one that arrives is a violation.
    constexpr void rest() { fill(AgentCell::kExcluded); }
    /// All other inputs are late and ignored.
    constexpr void ignore() { fill(AgentCell::kIgnored); }
    constexpr void fill(AgentCell::Kind kind) {
      for (AgentCell& cell : cells) {
        if (cell.kind == AgentCell::kUnset) cell.kind = kind;
      }
    }
  };
  constexpr Writer row(AgentInput input) { return {cells_[static_cast<size_t>(input)]}; }

  std::array<Row, kAgentInputs> cells_{};
};

inline constexpr AgentTable kAgentTable;
static_assert(kAgentTable.complete());

/// The states in which operations may use the extent.
constexpr bool usable(AgentState state, Mode mode) {
  return state == AgentState::kOwned ||
         (mode == Mode::kShared &&
          (state == AgentState::kOwnedShared || state == AgentState::kShared));
}

}  // namespace olpager::directory
