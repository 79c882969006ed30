// The tier below host RAM, as the pager is given it (PoolOptions::lower): it holds copies of
// extents. The pager names no implementation: memserver/tier/ is the one over memservers, disk/ the
// one over files. A tier knows bytes by the global address at which they live and their number, no
// extent, no region and no program. The tier decides where a copy lies, keeps replicas, checks
// hashes, and follows what is lost or wanted back.
//
// States of a copy:   none -> kSending -> kHeld -> (kReceiving -> kHeld)* -> none
//                     kHeld -> kSending again over the same memory; kHeld -> kLost when no replica
//                     is left
// A copy stays kHeld after it was received: it is a lower copy of what is in host RAM then, until
// the bytes change (send again) or it is dropped.
//
// Thread-safety: any thread; one caller at a time for each address. A tier never calls back but
// what setWake() was given, which may take the caller's locks: a tier holds none of the locks that
// its other calls take. Nothing blocks but the destructor (a second or two) and letGo() (while
// network cards let go of memory: milliseconds). Time: a receive that no other replica can serve
// may last as long as a lease; giveUp() ends such a wait. Memory: the memory of a transfer is the
// tier's from send() or receive() until take() returned its end. Network cards may go on knowing
// the memory after that, so that the next transfer costs less; letGo() ends that.
//
// Memory of a device. If network cards reach it (whyNotDirect()) and know it (makeKnown()), a
// transfer may name it as any other; no processor touches it. So the caller gives the hash of what
// it sends, and checks what it has received: a receive into it ends twice, with kUnchecked first,
// and for good after checked().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "pager/kernels/hash_and_scan.h"

namespace olpager::pager {

struct TierFigures {
  uint64_t capacity_bytes = 0;  // that can be held, replicas taken off; includes what is held
  uint64_t held_bytes = 0;      // without replicas
  uint64_t lost_bytes = 0;      // so far: no replica was left
  uint64_t disk_bytes = 0;      // of the capacity, on disks
  uint64_t sent_bytes = 0, received_bytes = 0;  // over the network or to disks, replicas counted
  uint64_t rebuilt_bytes = 0;                   // replicas made anew
  uint64_t hedged_bytes =
      0;  // received from another replica since the first one's memserver was late
  uint64_t card_registrations = 0;  // made so far at network cards: each pins memory
  uint64_t card_bytes = 0;          // that network cards know now, each card counted by itself
  unsigned memservers = 0, connected = 0;
  bool degraded = false;  // fewer replicas than asked for
};

class LowerTier {
 public:
  enum class Outcome : uint8_t {
    kDone,
    kNoRoom,     // a send: no memserver has frames, or no disk room. The former copy is gone
    kLost,       // a receive: no replica is left, or none has the right bytes. The copy is gone
    kNotNow,     // a receive: given up, or refused memory for itself. The copy is still held
    kUnchecked,  // a receive into memory of a device: the bytes are there, and checked() is awaited
  };
  struct Finished {
    uint64_t address = 0;
    bool sent = false;  // else received
    Outcome outcome = Outcome::kDone;
    ContentHash hash;  // of what was sent or received; kNotNow: of the copy
  };

  /// Ends all transfers and gives everything back.
  virtual ~LowerTier() = default;

  /// From now on `wake` is called, from any thread, when take() has something and when capacity
  /// changed. An empty one: no longer. When this returns no former one runs, so not under a lock
  /// that one takes.
  virtual void setWake(std::function<void()> wake) = 0;

  /// Begins to copy `bytes` (a power of two of 2 MiB pages, at most 32 MiB) at `memory` into
  /// frames. `hash`: nullptr, it is worked out.
  virtual void send(uint64_t address, const void* memory, uint64_t bytes,
                    const ContentHash* hash) = 0;
  /// Begins to copy back what is held. `urgent`: a launch waits.
  virtual void receive(uint64_t address, void* memory, uint64_t bytes, bool urgent) = 0;
  /// A launch waits now for the end of a transfer that is under way. A receive goes first. A send
  /// is not begun any more, waits for no lease, and is given up (kNoRoom) where it would have to
  /// wait for a memserver that does not answer.
  virtual void raise(uint64_t address) = 0;
  /// Nobody wants the bytes of a receive any more, but its end is waited for: it ends soon, kNotNow
  /// where it would have to wait for a memserver that does not answer.
  virtual void giveUp(uint64_t address) = 0;
  /// A copy with that hash is held.
  virtual bool holds(uint64_t address, const ContentHash& hash) const = 0;
  /// The addresses of all copies that are held, in no order.
  virtual std::vector<uint64_t> heldAddresses() const = 0;
  /// Forgets the copy; false: there is none. Not while it is sent or received. A send after this
  /// has its room.
  virtual bool drop(uint64_t address) = 0;
  /// The memory that begins here may be unmapped when this returns: no network card knows it any
  /// more. For memory that a transfer has used, and no transfer of which is under way; without
  /// effect for other memory. Not under a lock that the function of setWake() takes.
  virtual void letGo(const void* memory) = 0;
  /// Why memory of a device can't be given to transfers, in one line; "": it can, as far as is
  /// known before it is made known. May change when a memserver is connected anew.
  virtual std::string whyNotDirect() const { return "the tier moves host memory alone"; }
  /// Makes memory of a device known to network cards by its dma-buf, which is the caller's, until
  /// letGo(). `memory` names it in transfers of just these bytes. The Error says who can't have it.
  /// Takes milliseconds; not under a lock that the function of setWake() takes.
  virtual Status makeKnown(const void* /*memory*/, uint64_t /*bytes*/, int /*dma_buf*/) {
    return Error{whyNotDirect()};
  }
  /// The answer to kUnchecked: whether the caller has found the bytes of Finished::hash. If so the
  /// receive ends with kDone, else with kNotNow, or with kLost where the last replica has gone
  /// meanwhile. A receive into host memory then finds out whether the tier's bytes are wrong.
  virtual void checked(uint64_t /*address*/, bool /*right*/) {}
  /// Transfers that have ended since the last call.
  virtual std::vector<Finished> take() = 0;

  virtual TierFigures figures() const = 0;
};

}  // namespace olpager::pager
