// Messages between client and worker about copies that go straight from one worker of the program
// to another.
#pragma once

#include <cstdint>

namespace olpager::forward {

/// Arguments of kPeerLink, which connects to the worker of another of the program's sessions; its
/// address follows as text. The answer is a PeerLinked, then text: how they are linked, or why not.
struct PeerLinkHead {
  uint32_t slot = 0;      // of that session
  uint32_t tls = 0;       // transport::Tls, the least that the client wants
  uint32_t tcp_only = 0;  // the client wants no shared memory
  uint32_t reserved = 0;
  uint64_t route = 0;    // to that worker, at the address
  uint8_t key[32] = {};  // peerKey()
};
static_assert(sizeof(PeerLinkHead) == 56);
enum class PeerLinked : uint32_t { kNo, kTcp, kShm };

/// Arguments of kStraightOut and kStraightIn: one end of a copy; the call returns when this end is
/// done. The answer is a Straight, when nothing else has failed.
struct StraightHead {
  uint64_t copy = 0;     // the same number at both ends, never used again
  uint64_t address = 0;  // of device memory
  uint64_t bytes = 0;
  uint64_t stream = 0;
  uint32_t slot = 0;        // of the other end's session
  uint16_t per_thread = 0;  // `stream` is the thread's default one
  uint16_t now = 0;         // in order with nothing: in a stream of the worker's own
};
static_assert(sizeof(StraightHead) == 40);
enum class Straight : uint32_t {
  kDone,
  kNoLink,   // there is no link to the other worker, or it was lost
  kStopped,  // by the other end, or by kStraightStop
};

/// Arguments of kStraightStop: this end of the copy has nothing to wait for any more.
struct StraightStopHead {
  uint64_t copy = 0;
  uint32_t slot = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(StraightStopHead) == 16);

}  // namespace olpager::forward
