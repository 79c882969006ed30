// Memory and messages between nodes: registered memory, one-sided reads and writes, ordered
// messages, completions. docs/internals/transport.md explains the whole; this header is the
// contract. RDMA gave the shape: a Domain is a protection domain, a Region a registration, a Link
// a connected pair of queues, a CompletionQueue one that may serve many links.
//
// Thread-safety: everything may be called from any thread at any time, unless it says otherwise.
// Time: nothing here blocks, except connect(), wait(), and waitIdle() and the end of a Region,
// which say for how long.
//
// Ownership of memory. The bytes of an operation's local ranges belong to the transport from the
// call until the operation's completion has been taken from the queue. A message is copied by
// send(). Memory behind a remote key belongs to its owner, who has to expect reads and writes (as
// far as granted) until the Region has ended or the link's kDown has been taken.
//
// Completions. Every read(), write() and askMemory() that returned kOk completes exactly once, also
// when the link fails. A write's kOk means that any later read, by any node, returns its bytes.
// Operations of a link complete in no particular order; messages of a link arrive in the order in
// which they were sent.
//
// Failure. A link fails as a whole and for good (a lost connection, a silent peer, a breach of the
// protocol). First everything that could touch memory is stopped, on this side; then each
// outstanding operation completes with kLinkDown; kDown comes last. The effect of a failed write on
// its target is unknown: any part of it may have landed, and a rest on its way could land while the
// peer has not noticed. A new link with ConnectOptions::replaces closes that hole: the peer has
// stopped the old link before the new one is up.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "coherence/transport/options.h"
#include "coherence/transport/regions.h"

namespace olpager::transport {

/// The urgency of a transfer. Control and demand go first on a link; prefetch is asked for
/// only while no demand is outstanding; write-back keeps a small share always.
enum class Class : uint8_t { kControl, kDemand, kPrefetch, kWriteBack };
inline constexpr size_t kClasses = 4;

/// Messages have room of their own at the receiver, by class, so that no class can keep another one
/// out. Room for a reply is set aside when the request is sent: a reply never waits.
enum class MessageClass : uint8_t { kNotice, kRequest, kReply, kStream };
inline constexpr size_t kMessageClasses = 4;

enum class Outcome : uint8_t {
  kOk,
  kLinkDown,  // the link has failed or was closed
  kFull,      // too many operations outstanding: try again after a completion
  kNoCredit,  // the receiver has no room for this class: a kCredit completion follows when it has
  kBadRange,  // outside of what is registered or granted, or without the right
  kTooLong,   // message or operation above the link's limits
  kRevoked,   // the key was granted and has since been taken back (transports that can't tell fail
              // the link)
  kUnreachable,  // memory without a CPU address, here or there, and no card of this link reaches it
};
const char* outcomeName(Outcome outcome);
const char* className(Class klass);

enum class LinkKind : uint8_t { kTcp, kShm, kVerbs };
inline constexpr size_t kLinkKinds = 3;
const char* linkKindName(LinkKind kind);

struct PeerInfo {
  LinkKind kind = LinkKind::kTcp;
  std::string node;      // as the peer calls itself: not proved
  std::string key_name;  // proved; "" without a key
  std::string address;   // "10.0.0.2:7000", "unix:/..."
  Tls tls = Tls::kOff;   // what is encrypted
  uint8_t version = 0;   // the newest that both ends speak (Options::versions)
  bool same_host = false;
  std::string why;  // one line: why this transport
};

/// A rail of a link over verbs: a pair of cards.
struct RailStats {
  uint32_t number = 0;  // its place in Options::rails
  std::string device;   // this side's card, as libibverbs names it
  uint8_t port = 0;     // of that card, from 1 on
  bool in_use = true;   // else set aside
  uint64_t bytes = 0;   // read and written by it, by this side
};

/// Figures of a link so far. Each value is read by itself.
struct LinkStats {
  uint64_t bytes_read[kClasses] = {};     // into local memory by read()
  uint64_t bytes_written[kClasses] = {};  // from local memory by write()
  uint64_t bytes_served = 0;  // read and written here by the peer through the link's threads
  // All that has crossed it, each way, as far as this side knows: messages, what this side read
  // and wrote, and what the peer did. Over shared memory this side believes the peer's figures;
  // over verbs the peer alone knows them.
  uint64_t sent = 0, received = 0;
  uint64_t reads = 0, writes = 0, slices = 0;
  uint64_t messages_sent = 0, messages_received = 0;
  uint64_t no_credit = 0;        // sends refused for want of room at the peer
  uint64_t bounced_bytes = 0;    // shm: copied twice because the peer's memory can't be mapped;
                                 // verbs: by the lane because a card can't have the memory
  std::vector<RailStats> rails;  // verbs: those that the link was made of
  uint64_t repeated_bytes = 0;   // of rails that were set aside, moved by others
  size_t railsSetAside() const {
    return static_cast<size_t>(std::count_if(rails.begin(), rails.end(),
                                             [](const RailStats& rail) { return !rail.in_use; }));
  }
};

/// Bytes of a region here.
struct LocalRange {
  const Region* region = nullptr;
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// Bytes of a region at the peer, whose owner sent its key.
struct RemoteRange {
  RemoteKey key;
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// The peer's memory behind a key, as a mapping of its own needs it.
struct PeerMemory {
  base::UniqueFd fd;    // a memfd of at least offset + length bytes, sealed against shrinking
  uint64_t offset = 0;  // of the region in it
  uint64_t length = 0;  // of the region
};

inline constexpr size_t kMaxLocalRanges = 64;
inline constexpr uint64_t kMaxOperationBytes = 64ull << 20;

enum class LinkState : uint8_t { kUp, kFailing, kDown };

using OperationId = uint64_t;

/// A connection to one peer. Ended by close() or by failure; destroying the last reference closes
/// it.
class Link {
 public:
  virtual ~Link() = default;

  /// Copies bytes from the peer's memory into local memory, or back. The local ranges, in order,
  /// have together the length of the remote one. `context` comes back in the completion. kOk: a
  /// completion follows.
  virtual Outcome read(std::span<const LocalRange> into, const RemoteRange& from, Class klass,
                       uint64_t context, OperationId* id = nullptr) = 0;
  virtual Outcome write(std::span<const LocalRange> from, const RemoteRange& into, Class klass,
                        uint64_t context, OperationId* id = nullptr) = 0;
  /// Asks for the memory behind a key, to be mapped here for reading and writing. Once the request
  /// succeeds, the program and the peer share the memory, whatever becomes of the link and of the
  /// region: the program has to be told by other means when it is to let go of it. kOk: a kMemory
  /// completion follows, with kBadRange where the peer has no memfd for it or does not grant both
  /// rights.
  virtual Outcome askMemory(const RemoteKey& /*key*/, uint64_t /*context*/) {
    return Outcome::kBadRange;
  }
  /// Makes an operation more urgent, as far as it has not been asked for yet (a demand now waits
  /// for a write-back's frame, or for what was a prefetch). Without effect when it is done.
  virtual void raise(OperationId id, Class klass) = 0;

  /// Sends one message, `head` followed by `body`. Delivered once and in order, or the link fails.
  virtual Outcome send(MessageClass klass, std::span<const std::byte> head,
                       std::span<const std::byte> body = {}) = 0;
  virtual uint32_t maxMessageBytes() const = 0;

  virtual LinkState state() const = 0;
  /// Why it is no longer up; "" while it is.
  virtual std::string reason() const = 0;
  /// Ends it here and tells the peer; completions follow as for a failure. Returns at once.
  virtual void close(const std::string& reason) = 0;

  virtual const PeerInfo& peer() const = 0;
  /// The memory that the peer may touch here, as connect() or the AcceptFn said.
  virtual const DomainPtr& domain() const = 0;
  /// Names the link for ConnectOptions::replaces, at both ends.
  virtual std::string id() const = 0;
  virtual LinkStats stats() const = 0;

 private:
  friend class Message;
  virtual void messageTaken(MessageClass klass, size_t bytes) = 0;
};
using LinkPtr = std::shared_ptr<Link>;

/// A message that has arrived. The receiver's room for it is free again when it is destroyed.
class Message {
 public:
  Message() = default;
  Message(LinkPtr link, MessageClass klass, std::vector<std::byte> bytes)
      : link_(std::move(link)), class_(klass), bytes_(std::move(bytes)), arrived_(bytes_.size()) {}
  Message(Message&& other) noexcept = default;
  Message& operator=(Message&& other) noexcept {
    free();
    link_ = std::move(other.link_);
    class_ = other.class_;
    bytes_ = std::move(other.bytes_);
    arrived_ = other.arrived_;
    return *this;
  }
  ~Message() { free(); }

  MessageClass messageClass() const { return class_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte>& mutableBytes() { return bytes_; }

 private:
  void free() {
    if (link_) link_->messageTaken(class_, arrived_);
    link_.reset();
  }
  LinkPtr link_;
  MessageClass class_ = MessageClass::kNotice;
  std::vector<std::byte> bytes_;
  size_t arrived_ = 0;  // bytes, as it came
};

/// An event of a link. Holds the link alive.
struct Completion {
  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kMemory,   // `memory`, when the outcome is kOk
    kMessage,  // `message`
    kCredit,   // room again for messages of `message_class`, after kNoCredit
    kUp,       // an accepted link: the first that is heard of it
    kDown,     // the last that is heard of it; link->reason() says why
  };
  Kind kind = Kind::kDown;
  Outcome outcome = Outcome::kOk;
  MessageClass message_class = MessageClass::kNotice;
  uint64_t context = 0;  // of the operation
  uint64_t bytes = 0;    // of the operation
  LinkPtr link;
  Message message;
  PeerMemory memory;
};

/// Links put their completions here. Bounded by the limits of the links that use it. Need not
/// outlive the links: when the last QueuePtr goes, completions that were not polled are dropped,
/// and so are later ones.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  /// Takes up to `into.size()` completions; how many.
  virtual size_t poll(std::span<Completion> into) = 0;
  /// As poll, but waits for the first one; 0 only when the time is over. A thread that waits here
  /// also receives messages itself, which saves a change of threads.
  virtual size_t wait(std::span<Completion> into, std::chrono::microseconds timeout) = 0;
  /// For the caller's own loop: readable while there is something to poll. Owned by the queue. Poll
  /// until 0 is returned after each time that it was readable.
  virtual int eventFd() = 0;
};
using QueuePtr = std::shared_ptr<CompletionQueue>;

struct ConnectOptions {
  DomainPtr domain;  // what the peer may touch, and where local ranges come from
  QueuePtr queue;
  std::string
      replaces;  // id() of an earlier link to the same node: stopped there before the new one is up
  uint64_t route = 0;  // of who is meant behind the address (routes.h); 0: who listens there
  // Set by a connect() that fails. True: to try again gives the same, since the peer itself has
  // said no (another key, another version). False: an outage, or a peer that has no place at the
  // moment.
  bool* lasts = nullptr;
};

/// The acceptor's answer: where the new link belongs, or an Error whose line the peer is told.
struct Accepted {
  DomainPtr domain;
  QueuePtr queue;
};
using AcceptFn = std::function<Result<Accepted>(const PeerInfo&)>;

class Routes;  // routes.h
using RoutesPtr = std::shared_ptr<Routes>;

/// An address at which peers are accepted, until it is destroyed. Links that are up stay up.
class Listener {
 public:
  virtual ~Listener() = default;
  /// The address in the form that connect() takes, with the port that was chosen; "" of one that
  /// listens behind another's.
  virtual const std::string& address() const = 0;
  /// Removes the file of its Unix socket, which goes with the listener otherwise: for a process
  /// that ends without ending it. Nobody new comes to shared memory from then on. Any thread.
  virtual void removeSocketFile() const noexcept = 0;
};

/// A node's part in the network: its threads, its keys, its links.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual QueuePtr makeQueue() = 0;
  /// Connects to "host:port" or "unix:/path". Waits for at most Options::connect_ms, and
  /// for each answer no longer than connect_answer_ms.
  virtual Result<LinkPtr> connect(const std::string& address, const ConnectOptions& options) = 0;
  /// Listens on "host:port" (port 0: any) or "unix:/path". `accept` runs on an I/O thread after the
  /// peer has proved its key, and must not block. Refuses an address beyond loopback when there is
  /// no key. Connections that come with a route are handed to `routes` as soon as they have said
  /// so, and closed where there is nobody by that route, or no `routes`.
  virtual Result<std::unique_ptr<Listener>> listen(const std::string& address, AcceptFn accept,
                                                   RoutesPtr routes = nullptr) = 0;
  /// Takes the connections that another listener hands over (HandoverSockets::to) as if they had
  /// been made here: the same handshake, the same limits. Peers on this host still come to shared
  /// memory by a Unix socket of its own. Without a key peers beyond this host are refused.
  virtual Result<std::unique_ptr<Listener>> listenBehind(base::UniqueFd socket,
                                                         AcceptFn accept) = 0;
};

/// Links of the endpoint are closed with it; queues, domains and the links themselves may live on.
Result<std::unique_ptr<Endpoint>> makeEndpoint(const Options& options);

}  // namespace olpager::transport
