// The tier below host RAM: copies of extents in frames of memservers (memserver/client.h). Knows
// bytes by an id that the caller gives, not extents; decides which memserver gets what, keeps
// replicas, checks hashes, follows lost slabs and recalls.
//
// States of a copy:   none -> kSending -> kHeld -> (kReceiving -> kHeld)* -> none
//                     kHeld -> kSending again over the same frames; kHeld -> kLost when no replica
//                     is left
// A copy stays kHeld after it was received: it is a lower copy of what is in host RAM then, until
// the bytes change (send again) or it is dropped.
//
// Thread-safety: any thread; one caller at a time for each id. Never calls back but what setWake()
// was given, which may take the caller's locks: none that the other calls take are held then.
// Threads: two of its own, beside those of the Clients. Nothing blocks but connect() and the
// destructor (a second or two). Time: a memserver whose connection is lost delays a transfer by as
// long as that takes to notice (milliseconds where its process was killed); one that is stopped
// delays a receive by about kLateMs (tier.h) where another replica can be read, and a send by the
// second after which it counts as stalled. Only a receive of what no other memserver has waits for
// the lease time, and not once it is given up. Memory: of a transfer it is this tier's from send()
// or receive() until take() returned its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/transport/options.h"
#include "pager/kernels/page_pass.h"

namespace olpager::pager {

struct RemoteOptions {
  std::vector<std::string> memservers;  // "host:port" or "unix:/path"
  unsigned replicas = 1;                // 1 or 2
  transport::Options transport;         // keys, TLS, lanes
  std::string label;                    // what memservers show of this session
  uint32_t stall_ms = 0;  // silence after which a memserver counts as stalled; 0: a second
};

/// Hash of an extent: those of its pages, combined (kernels::combineHashes).
using RemoteHash = kernels::PageHash;
/// Of `bytes` (whole pages) at `memory`, by the CPU: about 10 GB/s.
RemoteHash hashOf(const void* memory, uint64_t bytes);

struct RemoteFigures {
  uint64_t capacity_bytes = 0;  // that can be held, replicas taken off; includes what is held
  uint64_t held_bytes = 0;      // without replicas
  uint64_t lost_bytes = 0;      // so far: no replica was left
  uint64_t sent_bytes = 0, received_bytes = 0;  // over the network, replicas counted
  uint64_t rebuilt_bytes = 0;                   // replicas made anew
  uint64_t hedged_bytes =
      0;  // received from another replica since the first one's memserver was late
  unsigned memservers = 0, connected = 0;
  bool degraded = false;  // fewer replicas than asked for
};

class RemoteTier {
 public:
  enum class Outcome : uint8_t {
    kDone,
    kNoRoom,  // a send: no memserver has frames. The former copy, if there was one, is gone
    kLost,    // a receive: no replica is left, or none has the right bytes. The copy is gone
    kNotNow,  // a receive: given up, or refused memory for itself. The copy is still held
  };
  struct Finished {
    uint64_t id = 0;
    bool sent = false;  // else received
    Outcome outcome = Outcome::kDone;
    RemoteHash hash;  // of what was sent or received; kNotNow: of the copy
  };

  /// Connects to all memservers; one that can't be reached is an Error that names it.
  static Result<std::unique_ptr<RemoteTier>> connect(const RemoteOptions& options);
  /// Ends all transfers and gives everything back.
  virtual ~RemoteTier() = default;

  /// From now on `wake` is called, from any thread, when take() has something and when capacity
  /// changed. An empty one: no longer. When this returns no former one runs, so not under a lock
  /// that one takes.
  virtual void setWake(std::function<void()> wake) = 0;

  /// Begins to copy `bytes` (a power of two of 2 MiB pages, at most 32 MiB) at `memory` into
  /// frames. `hash`: nullptr, it is worked out.
  virtual void send(uint64_t id, const void* memory, uint64_t bytes, const RemoteHash* hash) = 0;
  /// Begins to copy back what is held. `urgent`: a launch waits.
  virtual void receive(uint64_t id, void* memory, uint64_t bytes, bool urgent) = 0;
  /// A launch waits now for the end of a transfer that is under way. A receive goes first. A send
  /// is not begun any more, waits for no lease, and is given up (kNoRoom) where it would have to
  /// wait for a memserver that does not answer.
  virtual void raise(uint64_t id) = 0;
  /// Nobody wants the bytes of a receive any more, but its end is waited for: it ends soon, kNotNow
  /// where it would have to wait for a memserver that does not answer.
  virtual void giveUp(uint64_t id) = 0;
  /// A copy with that hash is held.
  virtual bool holds(uint64_t id, const RemoteHash& hash) const = 0;
  /// The ids of all copies that are held, in no order.
  virtual std::vector<uint64_t> heldIds() const = 0;
  /// Forgets the copy; false: there is none. Not while it is sent or received. A send after this
  /// has its room.
  virtual bool drop(uint64_t id) = 0;
  /// Transfers that have ended since the last call.
  virtual std::vector<Finished> take() = 0;

  virtual RemoteFigures figures() const = 0;
};

}  // namespace olpager::pager
