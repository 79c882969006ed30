// The memserver's sessions, their leases and quotas, and the answers to their messages.
//
// A session is one connection. The session's leases are attached to it: registered in the
// connection's own domain, under keys that mean nothing elsewhere. When the connection is down the
// session is detached, and its leases wait for a session with the same key's name that shows their
// ids (kAttach); they are then registered anew, after the old registration has ended. Leases
// unclaimed at the end of the lease time are ended.
//
// The end of a lease, always in this order: it is taken from the table (its id is unknown from here
// on); its registration ends (nothing touches the memory any more); the slab is zeroed, or replaced
// if the session had its memfd; only then it is lent again, and no longer counts as lent. Nobody
// waits for a peer that is still at the memory: the end goes on when it is not, and a connection
// that keeps that from happening for kEndMs is closed. Nor does who attaches a lease whose old
// registration has not ended: it is told to come again.
//
// Places. As many sessions as `most_sessions` are connected at a time. When all places are taken, a
// session that holds no memory makes room (coherence/transport/making_room.h): at once for another
// key or address that has fewer of those, else when it has held none for the lease time. When few
// places for links are left, a link that has not greeted makes room likewise.
//
// Threads: one takes completions and hands each to its session's queue, which is worked off in
// order on the arena's threads, one at a time for each session, kTurn of them before the next
// session's turn; renewals it answers itself, whatever the arena is busy with. One (the janitor)
// looks at the clocks. Both are the service's own.
//
// Locks, in this order: Lease::mutex -> Session::mutex -> Service::mutex_ -> the store's. Messages
// are sent without a lock.
#pragma once

#include <oneapi/tbb/concurrent_hash_map.h>
#include <oneapi/tbb/concurrent_queue.h>
#include <oneapi/tbb/task_arena.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coherence/status/status.h"
#include "coherence/transport/transport.h"
#include "memserver/protocol.h"
#include "memserver/server/slabs.h"

namespace olpager::memserver {

inline constexpr uint32_t kEndMs = 2000;
inline constexpr unsigned kTurn = 32;
/// A link that is no session has a place that no figure shows: it has this long to greet, or to ask
/// for the state, and to ask again. Sessions greet as soon as they are connected; who asks less
/// often connects anew.
inline constexpr uint32_t kGreetMs = 10'000;
/// Links beside those of most_sessions, so that a question for the state finds a place.
inline constexpr uint32_t kSpareLinks = 64;

struct ServiceOptions {
  uint32_t lease_ms = 30'000;
  uint64_t session_quota = 0;                  // bytes for each session; 0: no bound
  std::map<std::string, uint64_t> key_quotas;  // bytes for all sessions of a key
  bool hard_recall = false;                    // take what was recalled and not released
  uint32_t most_sessions = 1024;               // connected
  uint32_t greet_ms = kGreetMs;
};

/// Counted since the start, but what is said to be now.
struct ServiceFigures {
  static constexpr size_t kKinds = transport::kLinkKinds;
  uint64_t sessions = 0, connected = 0;     // now
  std::array<uint64_t, kKinds> links{};     // of these, by transport
  uint64_t rails = 0, rails_set_aside = 0;  // now, of links over verbs
  uint64_t sessions_accepted = 0;
  std::array<uint64_t, kKinds> accepted{};  // of these
  uint64_t moved = 0;  // bytes read and written by sessions through the daemon's threads; by shared
                       // memory they do it themselves
  uint64_t leases_granted = 0, leases_released = 0, leases_expired = 0, leases_revoked = 0,
           leases_moved = 0;
  uint64_t waiting =
      0;  // now: messages that have come and are not worked off, and leases that are being ended
  uint64_t requests = 0, refused = 0, broken = 0;
  uint64_t recalls = 0, recalled_bytes = 0;
};

// Many members: a function for each message of the protocol.
class Service {
 public:
  Service(const ServiceOptions& options, SlabStore& store, tbb::task_arena& arena,
          transport::QueuePtr queue);
  ~Service();  // ends every session and every lease

  /// For Endpoint::listen().
  Result<transport::Accepted> accept(const transport::PeerInfo& peer);

  /// Wants this much back from the sessions, in all, within this time; replaces an earlier wish. 0:
  /// nothing any more.
  void recall(uint64_t bytes, uint32_t deadline_ms, const std::string& why);
  /// Lends nothing new from here on.
  void stopLending();
  /// Tells every session that its memory here is gone, so that none waits for its lease to run out,
  /// and gives them a moment to hang up. The last thing that is done with it.
  void dismiss();
  uint64_t lentBytes() const;
  /// Wanted back and not yet released.
  uint64_t recalledBytes() const;
  ServiceFigures figures() const;
  /// Status with the sessions from number `first` on. `asker` sees those of its key; one over
  /// shared memory is this daemon's own user and sees all, as nullptr does.
  status::Status status(uint64_t first, const transport::PeerInfo* asker) const;

 private:
  struct Session;
  struct Lease;
  class About;
  using SessionPtr = std::shared_ptr<Session>;
  using LeasePtr = std::shared_ptr<Lease>;
  struct IdHash {
    static size_t hash(const LeaseId& id) {
      size_t value = 0;
      std::memcpy(&value, id.bytes.data(), sizeof value);  // random already
      return value;
    }
    static bool equal(const LeaseId& a, const LeaseId& b) { return a == b; }
  };
  struct LinkHash {
    static size_t hash(const transport::Link* link) { return std::hash<const void*>()(link); }
    static bool equal(const transport::Link* a, const transport::Link* b) { return a == b; }
  };
  enum class Cause : uint8_t { kReleased, kExpired, kRevoked, kEnded };

  void takeCompletions();
  void hand(const SessionPtr& session, transport::Completion completion);
  void giveTurn(const SessionPtr& session);
  void work(const SessionPtr& session);
  void process(const SessionPtr& session, transport::Completion& completion);
  void closeFor(const SessionPtr& session, const std::string& wrong);
  bool admit(const SessionPtr& session);
  void makeRoomForLinks();
  transport::Outcome tell(const SessionPtr& session, transport::MessageClass klass,
                          const std::vector<std::byte>& bytes);
  std::string message(const SessionPtr& session, const transport::Message& message);
  bool renew(const SessionPtr& session, const transport::Completion& completion);
  protocol::Body answer(const SessionPtr& session, const protocol::Body& request,
                        std::string& wrong);
  protocol::LeaseReply grant(const SessionPtr& session, uint64_t bytes);
  std::optional<protocol::LeasedSlab> attach(const SessionPtr& session, const LeaseId& id);
  protocol::Capacity capacity(Session& session) const;
  uint64_t quotaLeft(const Session& session) const;
  bool reserve(Session& session, uint64_t bytes);
  void unreserve(Session& session, uint64_t bytes);

  LeasePtr find(const LeaseId& id) const;
  /// Ends it if it is (still) `owner`'s.
  bool end(const LeaseId& id, const Session* owner, const std::string& key_name, Cause cause);
  bool endRegion(const LeasePtr& lease);
  void regionEnded(const LeasePtr& lease, uint64_t ending);
  void freed(const LeasePtr& lease);
  void endSession(const SessionPtr& session, Cause cause);
  void tellEnd(Session& session, Cause cause);

  void janitor();
  void closeWhatHangs(int64_t now);
  void runClocks(const SessionPtr& session, int64_t now);
  void sendRecall(const SessionPtr& session, int64_t now);
  void take(const SessionPtr& session, uint64_t bytes);
  std::vector<SessionPtr> allSessions() const;

  const ServiceOptions options_;
  SlabStore& store_;
  tbb::task_arena& arena_;
  const transport::QueuePtr queue_;
  const LeaseId instance_;
  const int64_t started_ms_;

  tbb::concurrent_queue<SessionPtr>
      turns_;  // sessions with something in their queues that nobody works off
  tbb::concurrent_hash_map<LeaseId, LeasePtr, IdHash> leases_;
  tbb::concurrent_hash_map<const transport::Link*, SessionPtr, LinkHash> links_;

  mutable std::mutex mutex_;
  std::map<uint64_t, SessionPtr> sessions_;
  std::map<std::string, uint64_t> used_;  // bytes, by key's name
  uint64_t next_session_ = 1;
  uint64_t next_ending_ = 1;
  struct Ending {
    int64_t since_ms = 0;
    transport::LinkPtr link;
  };
  std::map<uint64_t, Ending> endings_;  // registrations that are ending
  ServiceFigures figures_;

  std::atomic<bool> lending_{true};
  std::atomic<uint64_t> working_{0};  // completions handed to sessions and not worked off
  std::atomic<bool> stop_{false};
  std::thread taker_, janitor_;
};

}  // namespace olpager::memserver
