// The common part of links: the state, outstanding operations, room for messages, signs of life.
//
// State, under mutex_: kUp -> kFailing (fail() or close(): the first reason stays; nothing new is
// accepted or asked for) -> kDown (stopped(): called once by the transport when no thread of it
// touches memory any more; completes what is outstanding, then kDown).
//
// An operation is a slot and a generation. Slices of it are asked for (open), accepted once (taken)
// and answered; it completes when all are answered. Between a slice's openness and its answer the
// operation can't go away.
//
// Lock: mutex_, a leaf: no call out while it is held.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "coherence/transport/core/completion_queue.h"
#include "coherence/transport/core/reactor.h"
#include "coherence/transport/core/region_entry.h"
#include "coherence/transport/core/scheduler.h"
#include "coherence/transport/core/unread.h"
#include "coherence/transport/core/wire.h"
#include "coherence/transport/transport.h"

namespace olpager::transport {

using LinkId = std::array<uint8_t, 16>;

/// The agreement of both ends, and the link's place.
struct LinkSetup {
  Options options;
  PeerInfo peer;
  LinkId id{};
  wire::Hello peer_hello;
  DomainPtr domain;
  std::shared_ptr<EventQueue> queue;
  Unread::OfKeyPtr unread;  // of links that were accepted
};

// Many members: three transports share what any link does.
class LinkCore : public Link,
                 public Reactor::Ticker,
                 public std::enable_shared_from_this<LinkCore> {
 public:
  explicit LinkCore(LinkSetup setup);

  Outcome read(std::span<const LocalRange> into, const RemoteRange& from, Class klass,
               uint64_t context, OperationId* id) final;
  Outcome write(std::span<const LocalRange> from, const RemoteRange& into, Class klass,
                uint64_t context, OperationId* id) final;
  void raise(OperationId id, Class klass) final;
  Outcome send(MessageClass klass, std::span<const std::byte> head,
               std::span<const std::byte> body) final;
  uint32_t maxMessageBytes() const final { return setup_.peer_hello.message_bytes; }
  LinkState state() const final { return state_.load(); }
  std::string reason() const final;
  void close(const std::string& reason) final { fail(reason, true); }
  const PeerInfo& peer() const final { return setup_.peer; }
  const DomainPtr& domain() const final { return setup_.domain; }
  std::string id() const final;
  LinkStats stats() const final;

  void onTick(bool late) final;

  /// Ends the link; the first reason stays. `tell`: the peer hears it too.
  void fail(const std::string& reason, bool tell = false);

 protected:
  struct Slice {
    OperationId operation = 0;
    uint32_t index = 0;
    bool write = false;
    Class klass = Class::kControl;
    uint64_t key = 0, offset = 0;  // at the peer
    uint32_t bytes = 0;
  };

  // For transports to implement.
  /// `under_way`: bytes of the class that were asked for and are not answered.
  virtual uint32_t sliceBytes(bool write, Class klass, uint64_t length,
                              uint64_t under_way) const = 0;
  /// True if it may reach memory without a CPU address.
  virtual bool reachesDevices() const { return false; }
  virtual void issue() = 0;  // asks for what nextSlice() gives, until it gives nothing
  virtual void transmit(const wire::Header& header, std::span<const std::byte> head,
                        std::span<const std::byte> body) = 0;
  virtual void stop(bool tell) = 0;  // after kFailing; leads to one stopped()
  /// Adds the transport's own figures to stats().
  virtual void addStats(LinkStats& /*into*/) const {}
  /// On each tick: why the transport knows that the link can't go on; "" when it can.
  virtual std::string standstill(int64_t /*now_ms*/, bool /*late*/) { return ""; }

  // Reports of a transport.
  void stopped();
  void heard() { heard_.store(true, std::memory_order_relaxed); }
  bool nextSlice(Slice& slice);
  /// The local bytes of an outstanding slice; at most kMaxLocalRanges parts. How many.
  size_t localBytes(const Slice& slice, iovec* into);
  /// The same by regions, whose memory may have no CPU address.
  size_t localRanges(const Slice& slice, LocalRange* into);
  /// As localBytes(), for a write whose bytes go out bit by bit: until endSend() the operation does
  /// not complete, whatever the peer answers meanwhile. 0: nobody waits for it any more.
  size_t beginSend(const Slice& slice, iovec* into);
  void endSend(OperationId operation, uint32_t index);
  /// A slice's bytes (kData) are about to arrive: false when nobody asked for exactly that.
  bool takeSlice(OperationId operation, uint32_t index, uint32_t bytes, iovec* into, size_t& parts);
  /// Bytes that were about to arrive do not: it is as if takeSlice() had not been called.
  void untakeSlice(OperationId operation, uint32_t index);
  /// A slice is answered. False when it was not outstanding (or, for data, not taken).
  bool answerSlice(OperationId operation, uint32_t index, bool write, Outcome outcome);
  /// kMessage, kCredit, kPing and kPong frames, payload and all; "" or what rule was broken.
  /// Completions go to `into`.
  std::string control(const wire::Header& header, std::span<const std::byte> payload,
                      std::vector<Completion>& into);
  /// True if the peer can't have asked for so many answers as it leaves waiting.
  bool tooManyAnswers(size_t waiting) const;
  /// The same of messages that are replies.
  bool tooManyReplies(size_t waiting) const;
  static constexpr const char* kDeaf = "the peer asks and does not read the answers";
  /// True for codes that kRefuse may have.
  static bool isRefusal(uint32_t code) {
    return code == static_cast<uint32_t>(Outcome::kRevoked) ||
           code == static_cast<uint32_t>(Outcome::kUnreachable);
  }
  static bool isAnswer(wire::Frame frame) {
    return frame == wire::Frame::kAck || frame == wire::Frame::kRefuse ||
           frame == wire::Frame::kPong || frame == wire::Frame::kMapped ||
           frame == wire::Frame::kReached;
  }
  static bool isReply(const wire::Header& header) {
    return header.frame == wire::Frame::kMessage &&
           header.klass == static_cast<uint8_t>(MessageClass::kReply);
  }
  bool transferring() const { return outstanding_.load(std::memory_order_relaxed) != 0; }
  /// By the link's threads, for the peer: to it, or from it.
  void countServed(uint64_t bytes, bool to_peer) {
    (to_peer ? served_out_ : served_in_).fetch_add(bytes, std::memory_order_relaxed);
  }
  void countBounced(uint64_t bytes) { bounced_.fetch_add(bytes, std::memory_order_relaxed); }

  const LinkSetup setup_;
  // Queued messages, answers to the peer, and its requests that wait here.
  Unread unread_;

 private:
  struct Operation {
    uint32_t generation = 1;
    bool used = false;
    bool write = false;
    Class klass = Class::kControl;
    Outcome outcome = Outcome::kOk;
    uint64_t context = 0;
    RemoteRange remote;
    std::vector<LocalRange> local;
    std::vector<Pin> pins;
    uint32_t slice_bytes = 0;
    uint32_t slices = 0;
    uint32_t next = 0;  // first slice that was not asked for
    uint32_t answered = 0;
    uint64_t outstanding = 0;       // bytes
    std::vector<uint64_t> open;     // bits: asked for, not yet taken (reads) or answered (writes)
    std::vector<int64_t> asked_us;  // background only: when each slice was asked for
    std::vector<uint64_t> taken;    // bits: bytes arriving (reads), bytes being sent (writes)
    std::vector<std::pair<uint32_t, Outcome>>
        early;  // writes: slices answered while they are being sent
  };
  struct Room {
    uint32_t there = 0;    // messages that the peer still takes
    uint32_t here = 0;     // messages that we still take
    uint32_t window = 0;   // of ours
    uint32_t taken = 0;    // taken by the program, not yet told to the peer
    bool refused = false;  // a send was, since the last kCredit
  };

  Outcome post(bool write, std::span<const LocalRange> local, const RemoteRange& remote,
               Class klass, uint64_t context, OperationId* id);
  Operation* find(OperationId id);
  static uint32_t bytesOf(const Operation& operation, uint32_t index);
  size_t localParts(const Operation& operation, uint32_t index, iovec* into) const;
  template <typename Take>
  static void forEachPart(const Operation& operation, uint32_t index, Take&& take);
  bool finishSlice(Operation& operation, uint32_t slot, uint32_t index, Outcome outcome);
  Completion complete(uint32_t slot);
  void messageTaken(MessageClass klass, size_t bytes) final;

  mutable std::mutex mutex_;
  std::atomic<LinkState> state_{LinkState::kUp};
  std::string reason_;
  IssueScheduler scheduler_;
  std::vector<Operation> operations_;
  std::vector<uint32_t> free_;
  std::atomic<uint32_t> outstanding_{0};  // operations
  std::array<Room, kMessageClasses> room_;
  uint32_t unanswered_ = 0;        // requests sent whose reply was not taken yet
  uint32_t replies_expected_ = 0;  // requests sent whose reply did not arrive yet
  uint32_t replies_due_ = 0;       // requests received and not replied to
  LinkStats stats_;
  std::atomic<uint64_t> served_out_{0}, served_in_{0}, bounced_{0};
  std::atomic<bool> heard_{false};  // since the last tick
  int64_t last_heard_ms_ = 0;       // the ticking reactor's
  bool pinged_ = false;             // and nothing was heard since
};

}  // namespace olpager::transport
