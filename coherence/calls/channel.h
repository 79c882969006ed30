// A numbered two-way stream of records over a Link that may be lost and replaced: every record that
// one end wrote is read by the other exactly once and in order, or never. The meaning of records is
// its users' business. docs/internals/forwarding.md has the whole.
//
// Records go into messages; messages are numbered from 1 in each direction. Messages that the other
// end has not acknowledged are kept. After a lost link both ends name the last message that they
// took (greeting.h), and attach() sends the rest again: nothing is lost, nothing comes twice.
//
// States, moved under write_mutex_: detached (no link) <-> attached; closed is final.
//
// Thread-safety: write(), flush() and close() from any thread. read() from one thread at a time
// (its users hold a role or a lock for that). attach() at any time: it waits for a read() that is
// under way. Bounds: `kept_bytes` of unacknowledged messages; a writer beyond it waits, and
// receives in the meantime where nobody else does, so that an acknowledgement can reach it. Bytes
// that were received and not read are kept by the other end: its bound holds for them. Transfers.
// Bulk bytes go beside the records, in no order with them: between regions here and memory that the
// other end has registered, by the link's one-sided operations. A transfer that a lost link cuts is
// repeated, whole, over the next: its source has to stay as it is, and its target to be unread,
// until it is over. Errors: a peer that breaks the protocol (a gap in the numbers, a record above
// the limit) closes the channel for good; reason() says why.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "coherence/status/link_counters.h"
#include "coherence/transport/transport.h"

namespace olpager::calls {

/// A transfer under way. The memory belongs to the transport until the transfer is over; when it
/// ended because the channel was closed, until the local region has ended.
class Transfer {
 public:
  /// Why it failed, by the transport's words; for a caller that knows that it did.
  const char* why() const { return why_; }

 private:
  friend class Channel;
  enum class State : uint8_t { kWaiting, kIssued, kDone, kFailed };
  enum class Kind : uint8_t { kFetch, kPut, kShare };
  Kind kind = Kind::kFetch;
  std::vector<transport::LocalRange> near;
  transport::RemoteRange far;
  State state = State::kWaiting;  // under the channel's write_mutex_
  transport::PeerMemory memory;   // of a kShare that is done
  const char* why_ = "the channel is closed";
};
using TransferPtr = std::shared_ptr<Transfer>;

struct ChannelOptions {
  uint64_t kept_bytes =
      32ull << 20;  // not acknowledged; writers wait above it; at least 1 MiB is taken
  uint32_t record_bytes = 64u << 20;  // the longest record that is accepted
};

/// First in every message. Number 0: an acknowledgement alone.
struct MessageHead {
  uint64_t number = 0;
  uint64_t taken = 0;  // the last number that the sender has taken
};
static_assert(sizeof(MessageHead) == 16);

class Channel {  // Many members: sending, receiving and transfers go to the next link together.
 public:
  enum class Read : uint8_t {
    kRecord,
    kNothing,  // within the time
    kDown,     // no link: attach() another, or close()
  };

  enum class Over : uint8_t {
    kNotYet,  // within the time
    kDone,
    kFailed,  // the other end has no such memory, or the channel is closed
    kDown,    // no link: attach() another, or close()
  };

  explicit Channel(const ChannelOptions& options = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Uses `link`, whose completions come to `queue` (of this channel alone). `peer_taken`: the last
  /// of our messages that the peer has taken; an Error when that can't be, or when it is older than
  /// what is kept.
  Status attach(transport::LinkPtr link, transport::QueuePtr queue, uint64_t peer_taken);

  /// Appends a record of these parts; sent at the latest by the next flush(). False when closed.
  /// Waits while too much is kept, also while detached.
  bool write(std::initializer_list<std::span<const std::byte>> parts, bool flush_now = false);
  bool flush();
  /// Waits until a record can be written without waiting for the other end, and receives in the
  /// meantime where nobody else does. False: not within the time, or there is no link for it to
  /// come free. A thread that answers records asks before it reads more.
  bool awaitRoom(std::chrono::microseconds timeout);
  /// Bytes that were written and not yet given to the link: they need a flush(), or somebody who
  /// receives.
  bool unsent() const { return unsent_.load(std::memory_order_relaxed); }

  /// The next record into `record`. Flushes nothing.
  Read read(std::vector<std::byte>& record, std::chrono::microseconds timeout);
  /// True if a record may be there already without waiting: a hint.
  bool readable() const { return inbox_messages_.load(std::memory_order_relaxed) != 0; }

  /// Starts to copy the other end's memory to memory here. The link's domain has to be that of the
  /// region. At most transport::kMaxOperationBytes and transport::kMaxLocalRanges.
  TransferPtr fetch(std::span<const transport::LocalRange> into,
                    const transport::RemoteRange& from);
  TransferPtr fetch(const transport::LocalRange& into, const transport::RemoteRange& from) {
    return fetch(std::span(&into, 1), from);
  }
  /// And memory here to the other end's.
  TransferPtr put(const transport::LocalRange& from, const transport::RemoteRange& into);
  /// Asks for the other end's memory behind a key, to be mapped here: of one host alone, elsewhere
  /// it fails.
  TransferPtr share(const transport::RemoteKey& key);
  /// The memory that a share() has brought which is over with kDone; once.
  static transport::PeerMemory memoryOf(Transfer& transfer) { return std::move(transfer.memory); }
  /// Waits until it is over, and receives meanwhile where nobody else does.
  Over wait(const Transfer& transfer, std::chrono::microseconds timeout);

  /// The last message that was taken whole, as the peer is told after a lost link.
  uint64_t taken() const;
  bool attached() const { return attached_.load(std::memory_order_acquire); }
  /// True if the link itself is up, also while no receiver notices its end.
  bool linkUp() const;
  /// By which transport the link goes; nothing while there is none that is up.
  std::optional<transport::LinkKind> linkKind() const;
  /// Adds the bytes that its links have carried since they were counted last. `leads`: its present
  /// transport and rails are told as well.
  void count(status::LinkBytes& into, bool leads);
  /// Closed for good: no link will be taken any more.
  bool closed() const;
  /// Why there is no link, or why it is closed; "" while there is one.
  std::string reason() const;
  /// For good: writers and readers return.
  void close(const std::string& reason);

 private:
  struct Kept {
    uint64_t number;
    std::vector<std::byte> bytes;
  };

  void gather();
  void seal();
  void sendKept(std::unique_lock<std::mutex>& lock);
  void sendTaken();
  void dropTaken(uint64_t taken);
  bool receiveMeanwhile(std::unique_lock<std::mutex>& lock);
  void receiveForRoom(std::unique_lock<std::mutex>& lock);
  bool waitForRoom(std::unique_lock<std::mutex>& lock);
  TransferPtr start(TransferPtr transfer);
  void issueWaiting();
  transport::Outcome issue(Transfer& transfer, uint64_t context);
  void transferred(transport::Completion& completion);
  void receive(std::chrono::microseconds timeout);
  void breach(const std::string& reason);
  bool nextRecord(std::vector<std::byte>& record);
  bool takeBytes(std::byte* into, size_t count);
  void frontTaken();

  ChannelOptions options_;  // as made

  // Sending.
  mutable std::mutex write_mutex_;
  std::condition_variable room_;
  transport::LinkPtr link_;
  std::vector<std::byte> open_;  // the message that is being filled
  std::deque<Kept> kept_;        // sealed, not acknowledged
  std::vector<std::vector<std::byte>> spare_;
  uint64_t kept_bytes_ = 0;
  uint64_t next_number_ = 1;
  size_t sent_ = 0;          // of kept_, given to the link
  uint64_t peer_taken_ = 0;  // the last of our messages that the peer said it has
  bool sending_ = false;     // somebody is in the link's send(), without the mutex
  bool send_again_ = false;  // and looks again
  std::condition_variable sent_all_;
  status::CountedBytes seen_;        // of `link_`
  status::CountedBytes carried_;     // by all so far, and not counted
  size_t message_bytes_ = 32 << 10;  // the longest that the link takes, less the head
  bool ack_due_ = false;
  bool closed_ = false;
  std::string reason_;
  std::atomic<bool> attached_{false};
  std::atomic<bool> unsent_{false};
  std::unordered_map<uint64_t, TransferPtr>
      transfers_;                 // not over, by the context of their operations
  std::deque<uint64_t> waiting_;  // of them, those that were not given to the link
  uint64_t next_transfer_ = 1;
  std::condition_variable transfer_over_;

  // Receiving: by the holder of receive_mutex_. Before write_mutex_.
  std::mutex receive_mutex_;
  std::atomic<uint32_t> readers_{0};  // in read(), which receives
  transport::QueuePtr queue_;
  // Used by receive(), empty outside of it: to make and end so many takes a while.
  std::array<transport::Completion, 16> arrived_;
  std::deque<transport::Message> inbox_;
  std::atomic<size_t> inbox_messages_{0};
  uint64_t last_received_ = 0;  // into the inbox
  bool broken_ = false;         // by the peer, under receive_mutex_
  // For the reader alone.
  size_t front_offset_ = sizeof(MessageHead);
  uint32_t record_length_ = 0;  // of the record under way
  size_t record_have_ = 0;
  size_t length_have_ = 0;
  std::vector<std::byte> partial_;
  uint64_t bytes_since_ack_ = 0;
  uint32_t messages_since_ack_ = 0;
  std::atomic<uint64_t> taken_{0};
};

}  // namespace olpager::calls
