// The words of the ownership protocol: extents, agents, ages, modes, and the messages and actions
// that both sides of it produce. Plain values. docs/internals/coherence.md tells the protocol as a
// whole.
//
//   extent   a run of pages that moves as one; a dense number, given by whoever cuts regions
//   agent    who makes extents usable: a GPU's pager, the program's CPU
//   home     who holds the directory: at each moment it knows the owner of each extent
//   age      the number of an operation, in program order; the least is the oldest. Ages decide
//            every conflict
//   number   of a transaction of one extent; grows by one each time. A message with an old
//            number is late, or a duplicate
//
// No agent is lost while the session goes on: a link that ends for good ends the session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace olpager::directory {

using ExtentId = uint32_t;
using AgentId = uint8_t;
using Age = uint64_t;
using Number = uint64_t;  // 48 bits are kept
using Content =
    uint64_t;  // names bytes: equal names are equal bytes, of one extent. 48 bits; 0: none
using AgentSet = uint64_t;  // a bit for each agent

inline constexpr AgentId kMostAgents = 64;
inline constexpr AgentId kHome = 254;
inline constexpr AgentId kNoAgent = 255;
inline constexpr Age kNobody = std::numeric_limits<Age>::max();  // infinitely young
static_assert(kMostAgents <= 64, "an AgentSet has a bit for each");
inline constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

enum class Mode : uint8_t {
  kShared,  // a replica, to read
  kOwn,     // ownership, to write
};

enum class MessageKind : uint8_t {
  // From an agent to the home.
  kGet,        // an operation of that age needs the extent (mode)
  kDone,       // the taker has the extent (number)
  kDeclined,   // the owner does not give what is asked for ahead: the extent is claimed
  kAcked,      // a replica is gone
  kForgotten,  // nothing of a freed extent is left
  kCompleted,  // the operation of that age is complete
  // From the home to an agent.
  kYield,       // give the extent to the taker, whole (kOwn) or as a replica (kShared)
  kUrge,        // the demand of that number is as old as that age now
  kInvalidate,  // drop the replica
  kGrant,       // the extent is yours alone: its bytes are with you already
  kFirst,       // the extent is yours alone: it never had any bytes
  kRelease,     // the taker has what you gave: forget it, or retain it; of a replica: has read it
  kForget,      // the extent is freed
  kOver,        // the operation of that age will not come; `served`: all below are complete
  // From the giver to the taker.
  kReady,  // the bytes can be fetched
};
inline constexpr size_t kMessageKinds = static_cast<size_t>(MessageKind::kReady) + 1;

/// About one extent.
struct Message {
  MessageKind kind = MessageKind::kGet;
  AgentId from = kHome;
  AgentId to = kHome;
  Mode mode = Mode::kShared;
  AgentId taker = kNoAgent;  // kYield, kReady
  ExtentId extent = 0;
  Number number = 0;
  Age age = kNobody;  // that the message acts with: of the oldest operation that waits for what it
                      // brings about; kNobody: none does yet, it was asked for ahead
  Age served = kNobody;  // of the operation that the transaction is for
  Content content = 0;   // kReady: of the giver's bytes
  friend bool operator==(const Message&, const Message&) = default;
};

enum class ActionKind : uint8_t {
  kSend,
  // An agent's: its pager carries them out, in this order, before it goes on.
  kMap,    // make the extent usable (mode: kShared read-only)
  kUnmap,  // no operation reaches it any more; its bytes stay
  kFetch,  // bring the bytes from agent `peer`, then call landed(); content: what the frame still
           // holds, or 0
  kStop,   // operations that the agent is not told of: none begins to use the extent before the
           // next kMap for writing, or kGo. Then, when none uses it any more, quiet()
  kGo,     // they may again
  kLend,   // the taker of a replica reads the bytes: they stay where they are
  kLendOver,   // it has them
  kClear,      // the extent has no bytes yet: the frame is to be zeros
  kFree,       // the frame is free
  kRunnable,   // the operation of that age claims all it needs: submit() it
  kClaimLost,  // for the pager to know only: the operation of that age claims the extent no more;
               // one of age `to` does
  kFailed,     // the operation of that age needs an extent that is freed
  // The home's: news for the layer above.
  kReleased,  // a freed extent is nowhere any more
  // From either: a message that the protocol excludes; the session can't go on.
  kViolation,
};

struct Action {
  ActionKind kind = ActionKind::kSend;
  Mode mode = Mode::kShared;
  AgentId peer = kNoAgent;
  ExtentId extent = 0;
  Number number = 0;
  Age age = kNobody;
  Content content = 0;
  Age to = kNobody;
  Message message;
};

/// Filled by a step, emptied by the caller, which keeps it: after a while steps allocate nothing.
using Actions = std::vector<Action>;

struct Need {
  ExtentId extent;
  Mode mode;
};

}  // namespace olpager::directory
