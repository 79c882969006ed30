// A session's end of one memserver: memory leased in slabs, read and written by ranges.
// docs/internals/memserver.md explains the whole; this header is the contract.
//
// A Client keeps one connection. The Client renews its leases, connects again when the connection
// is lost, shows its lease ids there and carries on: transfers that were under way are repeated, so
// that a memserver which stalls, or a connection which is lost, for less than the lease time only
// delays. Slabs that the memserver no longer knows are lost, and reported (kSlabLost).
//
// The caller decides which page goes to which frame of which memserver (FramePool keeps one's
// slabs), and checks a hash of the bytes that come back: a memserver is not trusted to be right.
//
// Thread-safety: everything may be called from any thread, also from within the Observer, unless it
// says otherwise. One caller at a time for each frame: two transfers of overlapping frames, one of
// them a write, have no order. Threads: one for each Client, which calls the Observer, and one more
// while it connects. The Observer must return soon, and neither wait for this Client nor end it.
// Time: milliseconds; leases are counted on CLOCK_BOOTTIME. Nothing blocks except connect(),
// lease(), and the destructor. Memory: local ranges are regions of ClientOptions::domain
// (transport::registerMemory(domain, memory, kLocalOnly)), with or without a memfd; the transport's
// from the call until transferDone. Errors: one line. Nothing throws.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/transport/transport.h"
#include "memserver/protocol.h"

namespace olpager::memserver {

/// Names a slab at its Client; 0 is none. Never used twice.
using SlabId = uint64_t;

/// Memory at the memserver that this session holds: zeroed when it comes, nobody else's until it is
/// released or lost.
struct Slab {
  SlabId id = 0;
  uint64_t bytes = 0;  // a multiple of 2 MiB; not the same for all
};

/// Bytes of a slab: at most transport::kMaxOperationBytes at once.
struct FrameRange {
  SlabId slab = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const FrameRange&) const = default;
};

enum class TransferResult : uint8_t {
  kOk,           // the bytes are in place; a write's will be seen by every later read
  kLost,         // the slab is lost: its bytes are gone
  kInterrupted,  // by interrupt(): a read has left its target undefined, a write its frame
  kBadRange,     // not within a slab of this client, the lengths differ, or a local range is not
                 // registered
  kClosed,       // the Client is being destroyed
};
const char* transferResultName(TransferResult result);

struct Event {
  enum class Kind : uint8_t {
    kUp,        // connected (again); slabs that were not reported lost are there
    kDown,      // the connection is lost: transfers wait, for the lease time at most
    kStalled,   // connected, but nothing was answered for stall_ms: transfers wait likewise
    kResumed,   // after kStalled: it answers
    kSlabLost,  // `slab` and its bytes are gone; its transfers end with kLost. No release is due
    kRecall,    // the memserver wants `bytes` back within `deadline_ms`: move pages elsewhere,
                // release slabs. The amount replaces that of an earlier kRecall; 0: no longer. A
                // session that doesn't keeps its slabs, unless the memserver insists (kSlabLost)
    kCapacity,  // what can be leased has grown from nothing
  };
  Kind kind = Kind::kUp;
  SlabId slab = 0;
  uint64_t bytes = 0;
  uint32_t deadline_ms = 0;
  std::string text;  // one line for the log: what happened, at which memserver
};
const char* eventName(Event::Kind kind);

/// Called on the Client's thread, one call at a time. Has to outlive the Client.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Each read() and write() ends here exactly once. The local ranges are the caller's again.
  virtual void transferDone(uint64_t context, TransferResult result) = 0;
  virtual void happened(const Event& event) = 0;
};

struct ClientOptions {
  /// Made with sessionTransport(); shared by all Clients of the process, which have to end before
  /// it.
  transport::Endpoint* endpoint = nullptr;
  transport::DomainPtr domain;
  std::string address;       // "host:port" or "unix:/path"
  std::string label;         // what the memserver shows of this session: the program's name
  uint32_t stall_ms = 1000;  // unanswered for so long is kStalled
  uint32_t in_flight = 256;  // transfers given to the transport at a time; others wait here
  /// connect() gives a Client also where the memserver can't be reached, as one that is down
  /// (kDown): kUp follows when it can.
  bool may_be_away = false;
};

/// Transport options for Clients: as `base`, but a memserver that is stopped and connected is kept
/// (Clients have clocks of their own), and an attempt to connect ends when nothing is answered for
/// 2 s.
transport::Options sessionTransport(transport::Options base);

/// The memserver's present state. Speeds are of this Client's own transfers, averaged over the last
/// seconds in which there were any; 0: not known yet.
struct Figures {
  bool up = false;
  bool stalled = false;
  uint64_t total_bytes = 0;  // that the memserver donates
  uint64_t free_bytes = 0;   // of that, lent to nobody
  uint64_t available_bytes =
      0;                        // that this session can still lease: what is free, within its quota
  uint64_t leased_bytes = 0;    // by this Client
  uint64_t recalled_bytes = 0;  // wanted back and not yet released
  uint32_t lease_ms = 0;
  uint64_t read_bytes_per_s = 0, write_bytes_per_s = 0;
  uint32_t round_trip_us = 0;  // of a renewal
  uint64_t bytes_read = 0, bytes_written = 0;
  uint64_t connects = 0;  // the first included
  std::string away;       // why there is no first one yet (may_be_away)
  uint64_t slabs_lost = 0;
  transport::LinkKind transport = transport::LinkKind::kTcp;
  std::vector<transport::RailStats> rails;  // of the link, where it is up and by verbs
  std::string node;                         // as the memserver calls itself
};

class Client {
 public:
  /// Connects, or says why not. An attempt waits for at most the endpoint's connect_ms and 5 s for
  /// the answer. An attempt that fails at once is repeated for two seconds: it may be an outage.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options, Observer& observer);
  /// Ends all transfers, gives everything back and tells the memserver so, which then frees it at
  /// once. Waits for at most 1 s (while it connects anew: for the endpoint's connect_ms).
  virtual ~Client() = default;

  /// Leases about `bytes` (rounded up to slabs), or as much of it as there is. An Error: nothing,
  /// and why. Waits for at most `timeout_ms`; not on the Observer's thread. (A slab can be lost,
  /// and kSlabLost told, before this returns.)
  virtual Result<std::vector<Slab>> lease(uint64_t bytes, uint32_t timeout_ms = 10000) = 0;
  /// Gives a slab back. Transfers that were posted before are done first; later ones end with
  /// kBadRange.
  virtual void release(SlabId slab) = 0;
  /// The slabs that are held now.
  virtual std::vector<Slab> slabs() const = 0;

  /// Copies a frame into local ranges (in order, together of its length), or back. Ends with one
  /// transferDone, always: a transfer that can't be ends with kBadRange there. Returns its id, for
  /// raise().
  virtual uint64_t read(std::span<const transport::LocalRange> into, const FrameRange& from,
                        transport::Class klass, uint64_t context) = 0;
  virtual uint64_t write(std::span<const transport::LocalRange> from, const FrameRange& into,
                         transport::Class klass, uint64_t context) = 0;
  /// Makes a transfer more urgent, as far as it is not under way. Without effect when it is done.
  virtual void raise(uint64_t transfer, transport::Class klass) = 0;
  /// Ends all outstanding transfers with kInterrupted, at once even if the memserver is stalled, by
  /// giving the connection up for a new one (leases stay). For a caller that has a replica
  /// elsewhere and does not want to wait. False: no connection was given up, since none was used;
  /// true: its kDown comes.
  virtual bool interrupt() = 0;

  virtual Figures figures() const = 0;
  virtual const std::string& address() const = 0;
};

}  // namespace olpager::memserver
