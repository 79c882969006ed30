// Two endpoints in one process with a link between them, over real sockets, by either transport.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "coherence/transport/core/wire.h"
#include "coherence/transport/shm/channel.h"
#include "coherence/transport/tcp/stream.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"
#include "coherence/transport/verbs/queue_pairs.h"
#include "tests/catch.h"

namespace olpager::transport::test {

using namespace std::chrono_literals;
using Kind = Completion::Kind;

inline constexpr std::chrono::seconds kLong{20};  // what has to happen happens within

struct Tcp {
  static constexpr Choice kChoice = Choice::kTcp;
  static constexpr LinkKind kKind = LinkKind::kTcp;
};
struct Shm {
  static constexpr Choice kChoice = Choice::kShm;
  static constexpr LinkKind kKind = LinkKind::kShm;
};
/// On the card whose address OL_TEST_RDMA_ADDRESS is. Without it (or a card) there is nothing to
/// run: tests/guest/ has one.
struct Rdma {
  static constexpr Choice kChoice = Choice::kVerbs;
  static constexpr LinkKind kKind = LinkKind::kVerbs;
};
bool haveCard();
/// In a test of several transports, before anything else.
#define NEEDS_CARD(type)                                              \
  if (type::kChoice == Choice::kVerbs && !haveCard()) {               \
    SUCCEED("skipped: OL_TEST_RDMA_ADDRESS names no card's address"); \
    return;                                                           \
  }
/// The address at which a test listens with these options.
std::string addressFor(const Options& options);

/// Two mappings of one memory in one process: the sanitizer sees neither that they are the same nor
/// what orders them.
#define UNSEEN_BY_TSAN __attribute__((no_sanitize("thread")))

/// Memory of its own with a pattern that depends on the seed; `shared`: a sealed memfd.
class Buffer {
 public:
  explicit Buffer(uint64_t length, bool shared = false);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  UNSEEN_BY_TSAN void fill(uint64_t seed);
  /// True if [offset, + length) is what fill(seed) put there.
  UNSEEN_BY_TSAN bool holds(uint64_t seed, uint64_t offset, uint64_t length) const;
  static std::byte patternAt(uint64_t seed, uint64_t offset);
  Memory memory() const { return {base, length, fd, 0}; }

  std::byte* base = nullptr;
  const uint64_t length;
  int fd = -1;
};

/// One side: an endpoint, a domain, a queue.
struct Side {
  explicit Side(const Options& options);
  std::unique_ptr<Endpoint> endpoint;
  DomainPtr domain = makeDomain();
  QueuePtr queue;
  RegionPtr add(const Buffer& buffer, uint32_t access);
  /// The next completion of this kind; others that come before stay for later. Fails the test when
  /// none comes.
  Completion await(Kind kind, std::chrono::microseconds timeout = kLong);
  /// Any completion, or nothing in this time.
  std::optional<Completion> next(std::chrono::microseconds timeout);
  std::deque<Completion> early;
};

/// With RDMA: with a key, which a card's address needs, and nothing encrypted.
Options optionsFor(Choice choice);
/// A test of its own with several threads that copy, also where there are few processors.
Options anyThreads(Choice choice);

struct Pair {
  explicit Pair(const Options& options) : Pair(options, options) {}
  Pair(const Options& server_options, const Options& client_options);
  ~Pair();
  /// A further link of the same client.
  LinkPtr connect(const std::string& replaces = "");

  Side server, client;
  std::unique_ptr<Listener> listener;
  LinkPtr up;    // the client's end
  LinkPtr peer;  // the server's end
};

/// A peer that shakes hands properly over TCP, without a key and with one lane, and then does what
/// a test makes it do.
struct RawPeer {
  /// `receive_buffer`: of both sockets, 0 as the system likes. `pause`: before its greeting, and
  /// again before the lane.
  explicit RawPeer(const std::string& address, int receive_buffer = 0,
                   std::chrono::milliseconds pause = {});
  base::UniqueFd control, lane;  // blocking
  wire::Hello hello;             // the acceptor's
};

/// The same by shared memory.
struct RawShmPeer {
  explicit RawShmPeer(const std::string& address);
  base::UniqueFd socket;  // on which the link is
  std::unique_ptr<Channel> channel;
};

/// The same by RDMA, with the key of optionsFor(): a link's connections and queue pairs, in the
/// clear once hands are shaken.
struct RawVerbsPeer {
  explicit RawVerbsPeer(const std::string& address);
  /// The way by which this one's card reaches a peer's region. The acceptor is asked as a link asks
  /// it.
  wire::Reach reach(uint64_t key);
  /// Sends a frame on the first connection; false: it takes no more.
  bool say(const wire::Header& header, std::span<const std::byte> payload);
  /// Posts one request in the class's queue pair and waits until it has ended, well or not.
  ibv_wc_status move(Class klass, ibv_wr_opcode how, uint64_t address, uint32_t rkey,
                     uint32_t bytes);
  static constexpr uint32_t kBytes = 1 << 20;
  DomainPtr domain = makeDomain();
  Buffer memory{kBytes};  // of this side
  Stream control, lane;
  RegionPtr region;
  std::unique_ptr<verbs::QueuePairs> pairs;
};

/// Listens at an address of 127.0.0.1, without a key, and answers one greeting with the same
/// greeting, as changed by `change`; then it waits until the other end goes.
struct RawAcceptor {
  explicit RawAcceptor(std::function<void(wire::Hello&)> change);
  ~RawAcceptor() { thread.join(); }
  std::string address;
  base::UniqueFd listener;
  std::thread thread;
};

/// The system takes no more than about `bytes` at a time of what the other end of `to`, in this
/// process, sends there.
void limitSending(const base::UniqueFd& to, int bytes);

std::vector<std::byte> bytesOf(const std::string& text);
std::string textOf(const Message& message);
RemoteRange whole(const RegionPtr& region);
LocalRange wholeLocal(const RegionPtr& region);
std::mt19937_64 seededRandom(const char* test);
/// `rounds` times OL_TEST_SCALE (a number above 0; 1 when it is not set), at least 1.
int scaled(int rounds);

}  // namespace olpager::transport::test
