// What an agent does with an extent: for each state and each input the next state and what goes
// with it. Complete: a cell that nobody wrote does not compile. Whether a demand has to wait,
// whether there is a frame, whether the frame's bytes are those that would come: agent.cpp finds
// that out first, so that a cell has no condition.
#pragma once

#include <array>

#include "coherence/directory/types.h"

namespace olpager::directory {

enum class AgentState : uint8_t {
  kAbsent,         // no frame
  kTaking,         // a frame is reserved, the home is asked; the frame may hold old bytes
  kLandingShared,  // the bytes of a replica are on their way into the frame
  kLandingOwn,     // those of an extent that will be owned
  kOwned,          // the only one; usable
  kOwnedShared,    // owner; read-only, there are replicas or have been
  kShared,         // a replica; read-only
  kGiven,          // no longer usable here; the bytes are kept until the taker has them
  kRetained,       // as absent; the frame still has the old bytes
  kPoisoned,       // the bytes are lost
};
inline constexpr size_t kAgentStates = static_cast<size_t>(AgentState::kPoisoned) + 1;

enum class AgentInput : uint8_t {
  kAsk,              // an operation asks the home for it
  kYieldOwn,         // the home wants it for a taker, and nobody is in the way
  kYieldShared,      // as a replica
  kYieldWait,        // somebody is in the way
  kDecline,          // it is wanted for room only, and claimed
  kReadyOwn,         // the giver has it ready; bytes have to come
  kReadyShared,      //
  kHaveOwn,          // the giver has it ready; the frame holds the same bytes
  kHaveShared,       //
  kNoRoom,           // the giver has it ready; there is no frame
  kLanded,           // the bytes are here
  kSourceLost,       // the bytes will not come
  kRelease,          // the taker has it
  kReleaseAsked,     // the taker has it, and an operation here has asked for it again
  kKeep,             // the taker does not take it
  kInvalidate,       // a replica has to go, and nobody is in the way
  kInvalidateAsked,  // and an operation here has asked for it
  kInvalidateWait,   // somebody is in the way
  kGrant,            // it is the agent's alone
  kFirst,            // it is the agent's alone, and had no bytes before
  kAdoptReplica,     // the owner is lost: own it by the replica
  kAdoptKept,        // own it by the bytes that were given to the lost one
  kAdoptNot,         // there is nothing to own it by
  kDrop,             // its frame is wanted for another extent
  kForget,           // it is freed
  kForgetWait,       // it is freed, and somebody is in the way
  kPoison,           // its bytes are lost
};
inline constexpr size_t kAgentInputs = static_cast<size_t>(AgentInput::kPoison) + 1;

// What goes with it, carried out in this order.
enum AgentEffect : uint32_t {
  kAbortFetch = 1 << 0,
  kUnmapIt = 1 << 1,
  kTakeFrame = 1 << 2,
  kFetchBytes = 1 << 3,
  kClearFrame = 1 << 4,
  kMapIt = 1 << 5,
  kMapReadOnly = 1 << 6,
  kFreeFrame = 1 << 7,
  kWait = 1 << 8,     // remember the demand
  kEndWait = 1 << 9,  // forget it
  kSendGet = 1 << 10,
  kSendReady = 1 << 11,
  kSendDone = 1 << 12,
  kSendRefused = 1 << 13,
  kSendDeclined = 1 << 14,
  kSendAcked = 1 << 15,
  kSendAdopted = 1 << 16,
  kSendNotHere = 1 << 17,
  kSendForgotten = 1 << 18,
  kArrive = 1 << 19,  // operations that wait for it claim it
  kFail = 1 << 20,    // operations that need it fail
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
        .go(S::kAbsent, S::kTaking, kTakeFrame | kSendGet)
        .go(S::kTaking, S::kTaking, kSendGet);
    row(I::kAsk)
        .go(S::kRetained, S::kTaking, kSendGet)
        .stay({S::kOwnedShared, S::kShared, S::kGiven}, kSendGet)
        .rest();

    row(I::kYieldOwn).go(S::kOwned, S::kGiven, kUnmapIt | kEndWait | kSendReady);
    row(I::kYieldOwn).go(S::kOwnedShared, S::kGiven, kUnmapIt | kEndWait | kSendReady).rest();
    row(I::kYieldShared).go(S::kOwned, S::kOwnedShared, kMapReadOnly | kEndWait | kSendReady);
    row(I::kYieldShared).stay({S::kOwnedShared}, kEndWait | kSendReady).rest();
    row(I::kYieldWait).stay({S::kOwned, S::kOwnedShared}, kWait).rest();
    row(I::kDecline).stay({S::kOwned, S::kOwnedShared}, kEndWait | kSendDeclined).rest();

    row(I::kReadyOwn).go(S::kAbsent, S::kLandingOwn, kTakeFrame | kFetchBytes).rest();
    row(I::kReadyShared).go(S::kAbsent, S::kLandingShared, kTakeFrame | kFetchBytes).rest();
    for (const S held : {S::kTaking, S::kGiven, S::kRetained}) {
      row(I::kReadyOwn).go(held, S::kLandingOwn, kFetchBytes);
      row(I::kReadyShared).go(held, S::kLandingShared, kFetchBytes);
      row(I::kHaveOwn).go(held, S::kOwned, kMapIt | kSendDone | kArrive);
      row(I::kHaveShared).go(held, S::kShared, kMapReadOnly | kSendDone | kArrive);
      row(I::kAdoptKept).go(held, S::kOwned, kMapIt | kSendAdopted | kArrive);
    }
    row(I::kHaveOwn).go(S::kShared, S::kOwned, kMapIt | kEndWait | kSendDone | kArrive).rest();
    row(I::kHaveShared).stay({S::kShared}, kSendDone | kArrive).rest();
    row(I::kNoRoom).stay({S::kAbsent}, kSendRefused).rest();
    row(I::kLanded).go(S::kLandingShared, S::kShared, kMapReadOnly | kSendDone | kArrive);
    row(I::kLanded).go(S::kLandingOwn, S::kOwned, kMapIt | kSendDone | kArrive).rest();
    row(I::kSourceLost).go(S::kLandingShared, S::kAbsent, kAbortFetch | kFreeFrame);
    row(I::kSourceLost).go(S::kLandingOwn, S::kAbsent, kAbortFetch | kFreeFrame).rest();

    row(I::kRelease).go(S::kGiven, S::kRetained, 0).stay({S::kOwnedShared}, 0).ignore();
    row(I::kReleaseAsked).go(S::kGiven, S::kTaking, 0).stay({S::kOwnedShared}, 0).ignore();
    row(I::kKeep)
        .go(S::kGiven, S::kOwned, kMapIt | kArrive)
        .stay({S::kOwned, S::kOwnedShared}, kEndWait)
        .ignore();

    row(I::kInvalidate).go(S::kShared, S::kRetained, kUnmapIt | kEndWait | kSendAcked);
    row(I::kInvalidateAsked).go(S::kShared, S::kTaking, kUnmapIt | kEndWait | kSendAcked);
    for (const I gone : {I::kInvalidate, I::kInvalidateAsked}) {
      row(gone).stay({S::kAbsent, S::kTaking, S::kGiven, S::kRetained}, kSendAcked).rest();
    }
    row(I::kInvalidateWait).stay({S::kShared}, kWait).rest();

    row(I::kGrant)
        .go(S::kOwnedShared, S::kOwned, kMapIt | kArrive)
        .stay({S::kOwned}, kArrive)
        .rest();
    row(I::kFirst).go(S::kAbsent, S::kOwned,
                      kTakeFrame | kClearFrame | kMapIt | kSendDone | kArrive);
    row(I::kFirst).go(S::kTaking, S::kOwned, kClearFrame | kMapIt | kSendDone | kArrive).rest();

    row(I::kAdoptReplica).go(S::kShared, S::kOwnedShared, kEndWait | kSendAdopted).rest();
    row(I::kAdoptKept).rest();
    row(I::kAdoptNot)
        .stay({S::kAbsent, S::kTaking, S::kShared, S::kGiven, S::kRetained}, kSendNotHere)
        .rest();

    row(I::kDrop).go(S::kTaking, S::kAbsent, kFreeFrame).go(S::kRetained, S::kAbsent, kFreeFrame);
    row(I::kDrop).go(S::kShared, S::kAbsent, kUnmapIt | kFreeFrame | kEndWait).rest();

    row(I::kForget)
        .go(S::kAbsent, S::kAbsent, kSendForgotten | kFail)
        .go(S::kPoisoned, S::kAbsent, kSendForgotten | kFail);
    for (const S held : {S::kTaking, S::kGiven, S::kRetained}) {
      row(I::kForget).go(held, S::kAbsent, kFreeFrame | kSendForgotten | kFail);
      row(I::kPoison).go(held, S::kPoisoned, kFreeFrame | kFail);
    }
    for (const S mapped : {S::kOwned, S::kOwnedShared, S::kShared}) {
      row(I::kForget)
          .go(mapped, S::kAbsent, kUnmapIt | kFreeFrame | kEndWait | kSendForgotten | kFail);
      row(I::kForgetWait).stay({mapped}, kWait);
    }
    row(I::kForget).rest();
    row(I::kForgetWait).rest();
    row(I::kPoison).go(S::kAbsent, S::kPoisoned, kFail).stay({S::kPoisoned}, kFail).rest();
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
    /// What is left is excluded by the protocol: if it happens, somebody does not keep to it.
    constexpr void rest() { fill(AgentCell::kExcluded); }
    /// What is left is late, and of no more use.
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
constexpr bool hasFrame(AgentState state) {
  return state != AgentState::kAbsent && state != AgentState::kPoisoned;
}

}  // namespace olpager::directory
