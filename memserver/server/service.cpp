#include "memserver/server/service.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/format.h"
#include "base/log.h"
#include "base/size.h"
#include "coherence/transport/making_room.h"
#include "memserver/server/metrics.h"
#include "memserver/server/service_parts.h"

namespace olpager::memserver {

namespace {
constexpr auto kJanitorPeriod = std::chrono::milliseconds(50);
constexpr int64_t kDismissMs = 300;  // sessions have it to hang up
}  // namespace

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
  const auto idle = [this] {
    while (working_.load() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  idle();
  for (const auto& session : allSessions()) endSession(session, Cause::kEnded);
  idle();
}

// ---- sessions

Result<transport::Accepted> Service::accept(const transport::PeerInfo&) {
  return transport::Accepted{transport::makeDomain(store_.domain()), queue_};
}

// The session greets: true if there is a place for it.
bool Service::admit(const SessionPtr& session) {
  SessionPtr goes;
  {
    std::lock_guard lock(mutex_);
    const int64_t now = bootMs();
    size_t places = 0;
    std::vector<SessionPtr> empty;
    std::vector<transport::Holder> holders;
    for (const auto& [number, each] : sessions_) {
      if (!each->greeted.load() || each->down_ms.load() != 0 || each->closed.load()) continue;
      ++places;
      if (each->bytes.load() != 0) continue;
      empty.push_back(each);
      holders.push_back({&each->peer, each->empty_since_ms.load()});
    }
    if (places >= options_.most_sessions) {
      if (empty.empty()) return false;
      const auto makes = transport::whoMakesRoom(holders);
      goes = empty[makes.which];
      const uint64_t source = transport::sourceOf(session->peer);
      size_t of_key = 1, of_address = 1;  // this one and those with it
      for (const auto& each : empty) {
        if (each->peer.key_name != session->peer.key_name) continue;
        ++of_key;
        of_address += transport::sourceOf(each->peer) == source ? 1 : 0;
      }
      const bool has_more =
          makes.of_key > of_key ||
          (goes->peer.key_name == session->peer.key_name && makes.of_address > of_address);
      if (!has_more && now - goes->empty_since_ms.load() < options_.lease_ms) return false;
      goes->closed.store(true);
    }
    session->empty_since_ms.store(now);
    session->greeted.store(true);
    ++figures_.sessions_accepted;
    ++figures_.accepted[static_cast<size_t>(session->peer.kind)];
  }
  if (!goes) return true;
  {
    const About about(*goes);
    base::logInfo("%s makes room for another: it holds no memory", goes->peer.node.c_str());
  }
  goes->link->close("others want its place, and it holds no memory");
  return true;
}

void Service::makeRoomForLinks() {
  std::vector<SessionPtr> waiting;
  std::vector<transport::Holder> holders;
  for (const auto& session : allSessions()) {
    if (session->greeted.load() || session->closed.load() || session->queued.load() != 0) continue;
    waiting.push_back(session);
    holders.push_back({&session->peer, session->renewed_ms.load()});
  }
  if (waiting.empty()) return;
  const SessionPtr& goes = waiting[transport::whoMakesRoom(holders).which];
  if (!goes->closed.exchange(true))
    goes->link->close("others want its place, and it has not greeted");
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
        if (links_.size() > options_.most_sessions + kSpareLinks / 2) makeRoomForLinks();
        continue;
      }
      {
        decltype(links_)::const_accessor place;
        if (!links_.find(place, link.get())) continue;
        session = place->second;
      }
      if (completion.kind == Completion::Kind::kDown) links_.erase(link.get());
      if (renew(session, completion)) continue;
      hand(session, std::move(completion));
    }
  }
}

// A renewal is answered at once: a session without an answer gives all up that it has here. False:
// it is none, or its turn is with the rest.
bool Service::renew(const SessionPtr& session, const Completion& completion) {
  if (completion.kind != Completion::Kind::kMessage || !session->greeted.load()) return false;
  const transport::Message& request = completion.message;
  if (!protocol::isRenewal(request.bytes())) return false;
  if (const std::string wrong = message(session, request); !wrong.empty()) closeFor(session, wrong);
  return true;
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
  {
    const About about(*session);
    base::logWarn("%s: %s; its connection is closed", session->peer.node.c_str(), wrong.c_str());
  }
  {
    std::lock_guard lock(mutex_);
    ++figures_.broken;
  }
  session->link->close("this is a memserver (--memserver), and its protocol was broken: " + wrong);
}

// A session that does not take its answers would never learn of it. A link that fails otherwise
// says so by itself.
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
    endSession(session, Cause::kReleased);
    session->link->close("goodbye");
    return "";
  }
  if (message.messageClass() != MessageClass::kRequest) {
    return base::format("a {} message that is no request", protocol::bodyName(request.body));
  }
  if (std::holds_alternative<protocol::Hello>(request.body) && !session->greeted.load() &&
      !admit(session)) {
    session->closed.store(true);
    session->link->close(base::format("more than {} sessions", options_.most_sessions));
    return "";
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
    const About about(*session);
    base::log(session->told_begin.exchange(true) ? base::LogLevel::kDebug : base::LogLevel::kInfo,
              "begins: %s (%s) at %s, %s", session->peer.node.c_str(), hello->label.c_str(),
              session->peer.address.c_str(), session->peer.why.c_str());
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

bool Service::end(const LeaseId& id, const Session* owner, const std::string& key_name,
                  Cause cause) {
  const LeasePtr lease = find(id);
  if (!lease || lease->key_name != key_name) return false;
  SessionPtr session;
  bool ended = false;
  {
    std::lock_guard lock(lease->mutex);
    if (!lease->slab || lease->over || (owner != nullptr && lease->session.get() != owner))
      return false;
    leases_.erase(id);
    lease->over = cause;
    session = lease->session;
    ended = endRegion(lease);
  }
  {
    std::lock_guard lock(session->mutex);
    session->leases.erase(id);
    session->recalled -= std::min(session->recalled, store_.slabBytes());
  }
  if (ended) freed(lease);
  return true;
}

// Nothing touches its memory any more.
void Service::freed(const LeasePtr& lease) {
  SlabPtr slab;
  Cause cause = Cause::kEnded;
  {
    std::lock_guard lock(lease->mutex);
    slab = std::move(lease->slab);
    cause = *lease->over;
  }
  if (lease->session->bytes.load() == slab->bytes()) lease->session->empty_since_ms = bootMs();
  unreserve(*lease->session, slab->bytes());
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
      // Another thread has moved or ends it, and takes it from the set.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  tellEnd(*session, cause);
  if (session->link->state() == transport::LinkState::kUp) return;  // its kDown comes
  std::lock_guard lock(mutex_);
  sessions_.erase(session->number);
}

// One line, of a session that the log has said to begin. After a goodbye its kDown still comes.
void Service::tellEnd(Session& session, Cause cause) {
  if (!session.told_begin.load() || session.told_end.exchange(true)) return;
  const About about(session);
  const std::string why = cause == Cause::kReleased ? std::string("it said goodbye")
                          : cause == Cause::kExpired
                              ? std::string("it has not come back within its lease time")
                          : session.down_ms.load() != 0 ? session.link->reason()
                                                        : std::string("the memserver ends");
  base::logInfo("ends: %s: %s; it had at most %s, %s went through the daemon",
                session.peer.node.c_str(), why.c_str(),
                base::formatSize(session.most_bytes.load()).c_str(),
                base::formatSize(session.link->stats().bytes_served).c_str());
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
      const About about(*session);
      base::logWarn("%s has not come back within its lease time: %s are free again",
                    session->peer.node.c_str(), base::formatSize(session->bytes.load()).c_str());
    }
    // Off this thread: the end of a registration may have to wait.
    working_.fetch_add(1);
    // A session without leases had them claimed over a new connection.
    arena_.enqueue([this, session, empty] {
      endSession(session, empty ? Cause::kEnded : Cause::kExpired);
      working_.fetch_sub(1);
    });
    return;
  }
  // A message that waits here for its turn is not its fault.
  if (!session->greeted.load() && session->queued.load() == 0 &&
      now - session->renewed_ms.load() >= options_.greet_ms && !session->closed.exchange(true)) {
    const About about(*session);
    base::logInfo("a connection of %s is closed: it has neither greeted nor asked for %u ms",
                  session->peer.node.c_str(), options_.greet_ms);
    session->link->close("it has neither greeted nor asked");
    return;
  }
  sendRecall(session, now);
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
      listens = true;  // a session without room for a notice now is told later
      if (told.count(session->number) == 0 &&
          tell(session, MessageClass::kNotice, notice) == Outcome::kOk)
        told.insert(session->number);
    }
    if (!listens || bootMs() >= until) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
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
    ++figures.links[static_cast<size_t>(session->peer.kind)];
    const transport::LinkStats link = session->link->stats();
    figures.moved += link.bytes_served;
    figures.rails_set_aside += link.railsSetAside();
    figures.rails += link.rails.size() - link.railsSetAside();
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
