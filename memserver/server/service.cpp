#include "memserver/server/service.h"

#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/format.h"
#include "base/log.h"
#include "base/size.h"
#include "memserver/server/metrics.h"

namespace olpager::memserver {
namespace {

using transport::Completion;
using transport::LinkPtr;
using transport::MessageClass;
using transport::Outcome;

constexpr auto kJanitorPeriod = std::chrono::milliseconds(50);
constexpr int64_t kDismissMs = 300;  // sessions have it to hang up

int64_t bootMs() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

LeaseId randomId() {
  LeaseId id;
  while (getrandom(id.bytes.data(), id.bytes.size(), 0) != static_cast<ssize_t>(id.bytes.size())) {
  }
  return id;
}

const char* keyText(const std::string& name) { return name.empty() ? "no key" : name.c_str(); }

}  // namespace

struct Service::Session {
  uint64_t number = 0;
  LinkPtr link;
  transport::PeerInfo peer;

  // In order, by one thread at a time.
  tbb::concurrent_queue<Completion> inbox;
  std::atomic<uint64_t> queued{0};

  std::atomic<uint64_t> bytes{0};
  std::atomic<int64_t> renewed_ms{0};
  std::atomic<int64_t> down_ms{0};  // 0: connected
  std::atomic<bool> ending{false};  // its time is over
  std::atomic<bool> closed{false};  // by the service; its kDown comes

  // Until then it is not counted or shown: it may be somebody who only asks for the state.
  std::atomic<bool> greeted{false};

  std::mutex mutex;
  std::string label;
  std::set<LeaseId> leases;
  uint64_t recalled = 0;  // wanted back
  int64_t recall_by_ms = 0;
  std::string recall_why;
  uint64_t recall_number = 0;  // counts what is to be told
  uint64_t recall_told = 0;    // the last that was
};

struct Service::Lease {
  LeaseId id;
  std::string key_name;

  std::mutex mutex;
  SlabPtr slab;  // none: it has ended
  transport::RegionPtr region;
  bool handed_out = false;  // in this or an earlier registration
  SessionPtr session;
};

Service::Service(const ServiceOptions& options, SlabStore& store, tbb::task_arena& arena,
                 transport::QueuePtr queue)
    : options_(options),
      store_(store),
      arena_(arena),
      queue_(std::move(queue)),
      instance_(randomId()),
      started_ms_(bootMs()) {
  taker_ = std::thread([this] { takeCompletions(); });
  janitor_ = std::thread([this] { janitor(); });
}

Service::~Service() {
  lending_.store(false);
  for (const auto& session : allSessions()) session->link->close("the memserver ends");
  stop_.store(true);
  taker_.join();
  janitor_.join();
  while (working_.load() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& session : allSessions()) endSession(session, Cause::kEnded);
}

// ---- sessions

Result<transport::Accepted> Service::accept(const transport::PeerInfo&) {
  {
    std::lock_guard lock(mutex_);
    if (sessions_.size() >= options_.most_sessions) {
      return Error{base::format("more than {} sessions", options_.most_sessions)};
    }
  }
  return transport::Accepted{transport::makeDomain(), queue_};
}

void Service::takeCompletions() {
  Completion batch[32];
  while (!stop_.load()) {
    const size_t got = queue_->wait(batch, std::chrono::milliseconds(100));
    for (size_t i = 0; i < got; ++i) {
      Completion completion = std::move(batch[i]);
      const LinkPtr link = completion.link;
      SessionPtr session;
      if (completion.kind == Completion::Kind::kUp) {
        session = std::make_shared<Session>();
        session->link = link;
        session->peer = link->peer();
        session->renewed_ms = bootMs();
        {
          std::lock_guard lock(mutex_);
          session->number = next_session_++;
          sessions_.emplace(session->number, session);
        }
        links_.insert({link.get(), session});
        continue;
      }
      {
        decltype(links_)::const_accessor place;
        if (!links_.find(place, link.get())) continue;
        session = place->second;
      }
      if (completion.kind == Completion::Kind::kDown) links_.erase(link.get());
      hand(session, std::move(completion));
    }
  }
}

void Service::hand(const SessionPtr& session, Completion completion) {
  working_.fetch_add(1);
  session->inbox.push(std::move(completion));
  if (session->queued.fetch_add(1) == 0) giveTurn(session);
}

// Through a queue of our own: the arena's is not in order.
void Service::giveTurn(const SessionPtr& session) {
  turns_.push(session);
  arena_.enqueue([this] {
    SessionPtr next;
    if (turns_.try_pop(next)) work(next);
  });
}

void Service::work(const SessionPtr& session) {
  for (unsigned done = 0; done < kTurn; ++done) {
    Completion completion;
    if (!session->inbox.try_pop(completion)) return;  // not while `queued` is above 0
    process(session, completion);
    completion = Completion();
    const bool last = session->queued.fetch_sub(1) == 1;
    working_.fetch_sub(1);
    if (last) return;
  }
  giveTurn(session);  // others wait
}

void Service::process(const SessionPtr& session, Completion& completion) {
  if (completion.kind == Completion::Kind::kDown) {
    {
      std::lock_guard lock(mutex_);  // in one step for figures()
      session->down_ms.store(std::max<int64_t>(1, bootMs()));
      figures_.moved += session->link->stats().bytes_served;
    }
    bool holds = false;
    {
      std::lock_guard lock(session->mutex);
      holds = !session->leases.empty();
    }
    if (!holds) endSession(session, Cause::kEnded);
    return;
  }
  if (completion.kind != Completion::Kind::kMessage) return;
  if (const std::string wrong = message(session, completion.message); !wrong.empty())
    closeFor(session, wrong);
}

// Once: until its kDown is handled there is more of it to look at.
void Service::closeFor(const SessionPtr& session, const std::string& wrong) {
  if (session->closed.exchange(true)) return;
  base::logWarn("session %llu of %s (%s): %s; it is closed",
                static_cast<unsigned long long>(session->number), session->peer.node.c_str(),
                keyText(session->peer.key_name), wrong.c_str());
  {
    std::lock_guard lock(mutex_);
    ++figures_.broken;
  }
  session->link->close("this is a memserver (--memserver), and its protocol was broken: " + wrong);
}

// Who does not take what it asked for would never learn of it. A link that fails otherwise says so
// by itself.
Outcome Service::tell(const SessionPtr& session, MessageClass klass,
                      const std::vector<std::byte>& bytes) {
  const Outcome outcome = session->link->send(klass, bytes);
  if (outcome == Outcome::kTooLong) {
    closeFor(session, base::format("it takes messages of {} bytes, and one of {} is for it",
                                   session->link->maxMessageBytes(), bytes.size()));
  }
  return outcome;
}

std::string Service::message(const SessionPtr& session, const transport::Message& message) {
  session->renewed_ms.store(bootMs());
  if (status::isQuestion(message.bytes()) && message.messageClass() == MessageClass::kRequest) {
    const auto question = status::decodeQuestion(message.bytes());
    if (!question.ok()) return question.error().message;
    const auto told =
        status::encode({question.value().number, status(question.value().first, &session->peer)});
    tell(session, MessageClass::kReply, told);
    return "";
  }
  auto decoded = protocol::decode(message.bytes());
  if (!decoded.ok()) return decoded.error().message;
  const protocol::Message& request = decoded.value();
  if (std::holds_alternative<protocol::Goodbye>(request.body)) {
    base::logInfo("session %llu of %s says goodbye",
                  static_cast<unsigned long long>(session->number), session->peer.node.c_str());
    endSession(session, Cause::kReleased);
    session->link->close("goodbye");
    return "";
  }
  if (message.messageClass() != MessageClass::kRequest) {
    return base::format("a {} message that is no request", protocol::bodyName(request.body));
  }
  {
    std::lock_guard lock(mutex_);
    ++figures_.requests;
  }
  std::string wrong;
  protocol::Body reply = answer(session, request.body, wrong);
  if (!wrong.empty()) return wrong;
  tell(session, MessageClass::kReply, protocol::encode({request.number, std::move(reply)}));
  return "";
}

protocol::Body Service::answer(const SessionPtr& session, const protocol::Body& request,
                               std::string& wrong) {
  using namespace protocol;
  if (const auto* hello = std::get_if<Hello>(&request)) {
    {
      std::lock_guard lock(session->mutex);
      session->label = hello->label;
    }
    if (!session->greeted.exchange(true)) {
      std::lock_guard lock(mutex_);
      ++figures_.sessions_accepted;
      ++(session->peer.kind == transport::LinkKind::kShm ? figures_.accepted_shm
                                                         : figures_.accepted_tcp);
    }
    base::logInfo("session %llu: %s (%s), %s, %s", static_cast<unsigned long long>(session->number),
                  session->peer.node.c_str(), hello->label.c_str(), keyText(session->peer.key_name),
                  session->peer.why.c_str());
    return HelloReply{instance_, options_.lease_ms, store_.slabBytes(), capacity(*session)};
  }
  if (!session->greeted.load()) {
    wrong = base::format("a {} message before the greeting", bodyName(request));
    return {};
  }
  if (const auto* wish = std::get_if<protocol::Lease>(&request)) return grant(session, wish->bytes);
  if (const auto* held = std::get_if<Attach>(&request)) {
    AttachReply reply;
    for (const LeaseId& id : held->leases) {
      const auto slab = attach(session, id);
      if (!slab) return Refusal{"a slab can't be registered now"};  // it comes again
      reply.slabs.push_back(*slab);
    }
    return reply;
  }
  if (std::holds_alternative<Renew>(request)) return RenewReply{capacity(*session)};
  if (const auto* release = std::get_if<Release>(&request)) {
    for (const LeaseId& id : release->leases)
      end(id, nullptr, session->peer.key_name, Cause::kReleased);
    return ReleaseReply{capacity(*session)};
  }
  wrong = base::format("a {} message that is not a session's to send", bodyName(request));
  return {};
}

// ---- leases

uint64_t Service::quotaLeft(const Session& session) const {
  const uint64_t has = session.bytes.load();
  uint64_t left = UINT64_MAX;
  if (options_.session_quota != 0)
    left = options_.session_quota - std::min(options_.session_quota, has);
  if (const auto quota = options_.key_quotas.find(session.peer.key_name);
      quota != options_.key_quotas.end()) {
    std::lock_guard lock(mutex_);
    const auto used = used_.find(session.peer.key_name);
    const uint64_t uses = used == used_.end() ? 0 : used->second;
    left = std::min(left, quota->second - std::min(quota->second, uses));
  }
  return left;
}

bool Service::reserve(Session& session, uint64_t bytes) {
  if (quotaLeft(session) < bytes) return false;
  std::lock_guard lock(mutex_);
  session.bytes.fetch_add(bytes);
  uint64_t& used = used_[session.peer.key_name];
  used += bytes;
  const auto quota = options_.key_quotas.find(session.peer.key_name);
  if (quota == options_.key_quotas.end() || used <= quota->second) return true;
  used -= bytes;  // another session of the key was faster
  session.bytes.fetch_sub(bytes);
  return false;
}

void Service::unreserve(Session& session, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  session.bytes.fetch_sub(bytes);
  const auto used = used_.find(session.peer.key_name);
  if (used != used_.end() && (used->second -= bytes) == 0) used_.erase(used);
}

protocol::Capacity Service::capacity(Session& session) const {
  const auto store = store_.figures();
  protocol::Capacity all;
  all.total = store.donated();
  all.free = store.free;
  all.available = lending_.load() ? std::min(store.free, quotaLeft(session)) / store_.slabBytes() *
                                        store_.slabBytes()
                                  : 0;
  std::lock_guard lock(session.mutex);
  all.recalled = session.recalled;
  if (session.recalled != 0) {
    all.deadline_ms = static_cast<uint32_t>(std::max<int64_t>(0, session.recall_by_ms - bootMs()));
    all.available = 0;
  }
  return all;
}

protocol::LeaseReply Service::grant(const SessionPtr& session, uint64_t bytes) {
  protocol::LeaseReply reply;
  const uint64_t slab_bytes = store_.slabBytes();
  const SlabKind kind =
      session->peer.kind == transport::LinkKind::kShm ? SlabKind::kShared : SlabKind::kPrivate;
  uint64_t have = 0;
  while (have < bytes && reply.slabs.size() < protocol::kMaxLeases) {
    if (!lending_.load()) {
      reply.why = "it is ending and lends nothing more";
      break;
    }
    {
      std::lock_guard lock(session->mutex);
      if (session->recalled != 0) reply.why = "it wants memory back and lends nothing more";
    }
    if (!reply.why.empty()) break;
    if (!reserve(*session, slab_bytes)) {
      reply.why =
          base::format("the quota is used up (slabs are of {})", base::formatSize(slab_bytes));
      break;
    }
    auto lease = std::make_shared<Lease>();
    lease->slab = store_.take(kind);
    if (!lease->slab) {
      unreserve(*session, slab_bytes);
      reply.why = "all memory is lent";
      break;
    }
    auto region = transport::registerMemory(session->link->domain(), lease->slab->memory(),
                                            transport::kRemoteReadWrite);
    if (!region.ok()) {
      base::logError("a slab can't be registered: %s", region.error().message.c_str());
      unreserve(*session, slab_bytes);
      store_.giveBack(std::move(lease->slab), false);
      reply.why = "its memory can't be registered";
      break;
    }
    lease->id = randomId();
    lease->key_name = session->peer.key_name;
    lease->region = std::move(region.value());
    lease->session = session;
    reply.slabs.push_back({lease->id, slab_bytes, lease->region->key().key});
    {
      std::lock_guard lock(session->mutex);
      session->leases.insert(lease->id);
    }
    leases_.insert({lease->id, lease});
    have += slab_bytes;
  }
  if (!reply.slabs.empty()) {
    base::logInfo("session %llu leases %zu slabs; it has %s",
                  static_cast<unsigned long long>(session->number), reply.slabs.size(),
                  base::formatSize(session->bytes.load()).c_str());
  }
  reply.capacity = capacity(*session);
  std::lock_guard lock(mutex_);
  figures_.leases_granted += reply.slabs.size();
  if (reply.slabs.empty()) ++figures_.refused;
  return reply;
}

Service::LeasePtr Service::find(const LeaseId& id) const {
  decltype(leases_)::const_accessor place;
  return leases_.find(place, id) ? place->second : nullptr;
}

// Ends the registration: from here on nothing touches the memory. Under Lease::mutex.
void Service::endRegion(Lease& lease) {
  if (!lease.region) return;
  uint64_t ending = 0;
  {
    std::lock_guard lock(mutex_);
    ending = next_ending_++;
    endings_[ending] = {bootMs(), lease.session->link};
  }
  const bool handed_out = transport::Region::end(std::move(lease.region));
  lease.handed_out = lease.handed_out || handed_out;
  std::lock_guard lock(mutex_);
  endings_.erase(ending);
}

// Nothing: not now, for the daemon's own want. The lease goes on.
std::optional<protocol::LeasedSlab> Service::attach(const SessionPtr& session, const LeaseId& id) {
  const protocol::LeasedSlab gone{id, 0, 0};
  const LeasePtr lease = find(id);
  if (!lease || lease->key_name != session->peer.key_name) return gone;
  std::lock_guard lock(lease->mutex);
  if (!lease->slab) return gone;
  const SessionPtr old = lease->session;
  const uint64_t bytes = lease->slab->bytes();
  endRegion(*lease);
  auto region = transport::registerMemory(session->link->domain(), lease->slab->memory(),
                                          transport::kRemoteReadWrite);
  if (!region.ok()) {
    base::logError("a slab can't be registered: %s", region.error().message.c_str());
    return std::nullopt;
  }
  lease->region = std::move(region.value());
  if (old != session) {
    lease->session = session;
    // What was wanted back goes with the leases and is said again.
    uint64_t recalled = 0;
    int64_t recall_by_ms = 0;
    std::string recall_why;
    {
      std::lock_guard old_lock(old->mutex);
      old->leases.erase(id);
      recalled = std::exchange(old->recalled, 0);
      recall_by_ms = old->recall_by_ms;
      recall_why = old->recall_why;
    }
    {
      std::lock_guard new_lock(session->mutex);
      session->leases.insert(id);
      if (recalled != 0) {
        session->recalled += recalled;
        session->recall_by_ms = recall_by_ms;
        session->recall_why = std::move(recall_why);
        ++session->recall_number;
      }
    }
    old->bytes.fetch_sub(bytes);  // the key's use stays the same
    session->bytes.fetch_add(bytes);
  }
  std::lock_guard figures_lock(mutex_);
  ++figures_.leases_moved;
  return protocol::LeasedSlab{id, bytes, lease->region->key().key};
}

bool Service::end(const LeaseId& id, const Session* owner, const std::string& key_name,
                  Cause cause) {
  const LeasePtr lease = find(id);
  if (!lease || lease->key_name != key_name) return false;
  SlabPtr slab;
  SessionPtr session;
  {
    std::lock_guard lock(lease->mutex);
    if (!lease->slab || (owner != nullptr && lease->session.get() != owner)) return false;
    leases_.erase(id);
    endRegion(*lease);
    slab = std::move(lease->slab);
    session = lease->session;
  }
  const uint64_t bytes = slab->bytes();
  {
    std::lock_guard lock(session->mutex);
    session->leases.erase(id);
    session->recalled -= std::min(session->recalled, bytes);
  }
  unreserve(*session, bytes);
  store_.giveBack(std::move(slab), lease->handed_out);
  std::lock_guard lock(mutex_);
  switch (cause) {
    case Cause::kReleased:
      ++figures_.leases_released;
      break;
    case Cause::kExpired:
      ++figures_.leases_expired;
      break;
    case Cause::kRevoked:
      ++figures_.leases_revoked;
      break;
    case Cause::kEnded:
      break;
  }
  return true;
}

void Service::endSession(const SessionPtr& session, Cause cause) {
  for (;;) {
    std::set<LeaseId> leases;
    {
      std::lock_guard lock(session->mutex);
      leases = session->leases;
    }
    if (leases.empty()) break;
    for (const LeaseId& id : leases) {
      if (end(id, session.get(), session->peer.key_name, cause)) continue;
      // Another thread has moved or is ending it, and takes it from the set.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  if (session->link->state() == transport::LinkState::kUp) return;  // its kDown comes
  std::lock_guard lock(mutex_);
  sessions_.erase(session->number);
}

std::vector<Service::SessionPtr> Service::allSessions() const {
  std::vector<SessionPtr> all;
  std::lock_guard lock(mutex_);
  for (const auto& [number, session] : sessions_) all.push_back(session);
  return all;
}

// ---- clocks

void Service::janitor() {
  while (!stop_.load()) {
    std::this_thread::sleep_for(kJanitorPeriod);
    const int64_t now = bootMs();
    closeWhatHangs(now);
    for (const auto& session : allSessions()) runClocks(session, now);
  }
}

void Service::closeWhatHangs(int64_t now) {
  std::vector<LinkPtr> hanging;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, ending] : endings_) {
      if (now - ending.since_ms >= kEndMs) hanging.push_back(ending.link);
    }
  }
  for (const auto& link : hanging)
    link->close("a lease of it has ended, and it does not let go of the memory");
}

void Service::runClocks(const SessionPtr& session, int64_t now) {
  const int64_t down = session->down_ms.load();
  if (down != 0) {
    const int64_t since = std::max(down, session->renewed_ms.load());
    bool empty = false;
    {
      std::lock_guard lock(session->mutex);
      empty = session->leases.empty();
    }
    if ((!empty && now - since < options_.lease_ms) || session->ending.exchange(true)) return;
    if (!empty) {
      base::logWarn("session %llu of %s has not come back within its lease time: %s are free again",
                    static_cast<unsigned long long>(session->number), session->peer.node.c_str(),
                    base::formatSize(session->bytes.load()).c_str());
    }
    // Off this thread: the end of a registration may have to wait.
    working_.fetch_add(1);
    arena_.enqueue([this, session] {
      endSession(session, Cause::kExpired);
      working_.fetch_sub(1);
    });
    return;
  }
  // What waits here for its turn is not its fault.
  if (!session->greeted.load() && session->queued.load() == 0 &&
      now - session->renewed_ms.load() >= options_.greet_ms && !session->closed.exchange(true)) {
    base::logInfo("a link of %s (%s) is closed: it has neither greeted nor asked for %u ms",
                  session->peer.node.c_str(), keyText(session->peer.key_name), options_.greet_ms);
    session->link->close("it has neither greeted nor asked");
    return;
  }
  sendRecall(session, now);
}

// ---- recall

void Service::recall(uint64_t bytes, uint32_t deadline_ms, const std::string& why) {
  const auto sessions = allSessions();
  uint64_t lent = 0;
  for (const auto& session : sessions) lent += session->bytes.load();
  const int64_t by = bootMs() + deadline_ms;
  uint64_t asked = 0;
  for (const auto& session : sessions) {
    const uint64_t has = session->bytes.load();
    // Each its share, in whole slabs.
    uint64_t share =
        lent == 0 ? 0
                  : static_cast<uint64_t>(static_cast<double>(bytes) *
                                          (static_cast<double>(has) / static_cast<double>(lent)));
    share =
        std::min(has, (share + store_.slabBytes() - 1) / store_.slabBytes() * store_.slabBytes());
    std::lock_guard lock(session->mutex);
    if (session->recalled == share && share == 0) continue;
    session->recalled = share;
    session->recall_by_ms = by;
    session->recall_why = why;
    ++session->recall_number;
    asked += share;
  }
  std::lock_guard lock(mutex_);
  if (bytes != 0) ++figures_.recalls;
  figures_.recalled_bytes += asked;
}

void Service::sendRecall(const SessionPtr& session, int64_t now) {
  protocol::Recall notice;
  uint64_t overdue = 0, number = 0;
  {
    std::lock_guard lock(session->mutex);
    if (!session->greeted) return;
    if (options_.hard_recall && session->recalled != 0 && now >= session->recall_by_ms) {
      overdue = session->recalled;
    } else if (session->recall_told == session->recall_number) {
      return;
    }
    number = session->recall_number;
    notice.bytes = session->recalled;
    notice.deadline_ms = static_cast<uint32_t>(std::max<int64_t>(0, session->recall_by_ms - now));
    notice.why = session->recall_why;
  }
  if (overdue != 0) {
    take(session, overdue);
    return;
  }
  const auto bytes = protocol::encode({0, notice});
  if (tell(session, MessageClass::kNotice, bytes) != Outcome::kOk)
    return;  // a later look tries again
  std::lock_guard lock(session->mutex);
  session->recall_told = number;
}

// The deadline is over and the memory is needed: it is taken, and what was in it is gone.
void Service::take(const SessionPtr& session, uint64_t bytes) {
  std::vector<LeaseId> victims;
  {
    std::lock_guard lock(session->mutex);
    for (const LeaseId& id : session->leases) {
      if (victims.size() * store_.slabBytes() >= bytes || victims.size() == protocol::kMaxLeases)
        break;
      victims.push_back(id);
    }
    session->recall_by_ms = bootMs() + kEndMs;  // not again while these end
  }
  base::logWarn("session %llu of %s has not released what was recalled: %zu slabs are taken",
                static_cast<unsigned long long>(session->number), session->peer.node.c_str(),
                victims.size());
  working_.fetch_add(1);
  arena_.enqueue([this, session, victims] {
    for (const LeaseId& id : victims)
      end(id, session.get(), session->peer.key_name, Cause::kRevoked);
    const auto notice =
        protocol::encode({0, protocol::Revoked{victims, "the memserver needed the memory"}});
    tell(session, MessageClass::kNotice,
         notice);  // who does not take it learns it from its next access
    working_.fetch_sub(1);
  });
}

void Service::stopLending() { lending_.store(false); }

void Service::dismiss() {
  stopLending();
  const auto notice = protocol::encode({0, protocol::Goodbye{}});
  std::set<uint64_t> told;
  for (const int64_t until = bootMs() + kDismissMs;;) {
    bool listens = false;
    for (const auto& session : allSessions()) {
      if (session->link->state() != transport::LinkState::kUp || !session->greeted.load()) continue;
      listens = true;  // who has no room for a notice now is told later
      if (told.count(session->number) == 0 &&
          tell(session, MessageClass::kNotice, notice) == Outcome::kOk)
        told.insert(session->number);
    }
    if (!listens || bootMs() >= until) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

uint64_t Service::lentBytes() const {
  uint64_t lent = 0;
  for (const auto& session : allSessions()) lent += session->bytes.load();
  return lent;
}

uint64_t Service::recalledBytes() const {
  uint64_t recalled = 0;
  for (const auto& session : allSessions()) {
    std::lock_guard lock(session->mutex);
    recalled += session->recalled;
  }
  return recalled;
}

// ---- what is shown

ServiceFigures Service::figures() const {
  const auto sessions = allSessions();
  std::lock_guard lock(mutex_);
  ServiceFigures figures = figures_;
  figures.waiting = working_.load();
  for (const auto& session : sessions) {
    if (!session->greeted.load()) continue;
    ++figures.sessions;
    if (session->down_ms.load() != 0) continue;
    ++figures.connected;
    ++(session->peer.kind == transport::LinkKind::kShm ? figures.links_shm : figures.links_tcp);
    figures.moved += session->link->stats().bytes_served;
  }
  return figures;
}

status::Status Service::status(uint64_t first, const transport::PeerInfo* asker) const {
  const int64_t now = bootMs();
  const auto store = store_.figures();
  status::Status told;
  told.kind = "memserver";
  told.uptime_ms = static_cast<uint64_t>(now - started_ms_);
  told.serving = lending_.load() ? 1 : 0;
  told.tiers.push_back({"RAM", store.donated(), store.lent, store.free});
  told.figures = status::figuresOf(metricsOf(figures(), store));
  const auto sessions = allSessions();
  for (const auto& session : sessions) told.session_count += session->greeted.load();
  for (const auto& session : sessions) {
    if (session->number < first || !session->greeted.load()) continue;
    if (asker != nullptr && asker->kind != transport::LinkKind::kShm &&
        asker->key_name != session->peer.key_name)
      continue;
    if (told.sessions.size() == status::kMaxRows) {
      told.next = session->number;
      break;
    }
    status::Session row;
    row.number = session->number;
    row.key_name = session->peer.key_name;
    row.node = session->peer.node;
    row.address = session->peer.address;
    row.transport = transport::linkKindName(session->peer.kind);
    row.bytes = {session->bytes.load()};
    row.moved = session->link->stats().bytes_served;
    const int64_t down = session->down_ms.load();
    row.connected = down == 0 ? 1 : 0;
    const int64_t renewed = session->renewed_ms.load();
    row.heard_ms = static_cast<uint32_t>(std::max<int64_t>(0, now - renewed));
    if (down != 0)
      row.left_ms = static_cast<uint32_t>(
          std::max<int64_t>(0, std::max(down, renewed) + options_.lease_ms - now));
    std::lock_guard lock(session->mutex);
    row.program = session->label;
    row.pieces = session->leases.size();
    row.recalled = session->recalled;
    told.sessions.push_back(std::move(row));
  }
  return told;
}

}  // namespace olpager::memserver
