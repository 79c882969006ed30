// Long: one accepted connection goes through all of these steps, whichever kind of link it becomes.
#include "coherence/transport/tcp/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <list>
#include <set>
#include <tuple>

#include "base/format.h"
#include "base/log.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/core/endpoint.h"
#include "coherence/transport/core/own_descriptors.h"
#include "coherence/transport/core/peer_user.h"
#include "coherence/transport/routes.h"
#include "coherence/transport/shm/channel.h"
#include "coherence/transport/shm/shm_connect.h"
#include "coherence/transport/tcp/sources.h"
#include "coherence/transport/tcp/tcp_link.h"
#include "coherence/transport/trust/key_access.h"
#include "coherence/transport/verbs/verbs_link.h"

namespace olpager::transport {
namespace {

// A connection sends its first bytes at once.
constexpr uint32_t kFirstBytesMs = 1000;
constexpr const char* kCardFailed = "its card's connection failed";

class Acceptor;

// One connection on its way. Lives in the acceptor's list; reactor thread only. Anybody can make as
// many as he likes, so that each has its place only until it is wanted: makeRoom().
struct Handshake {  // NOLINT(clang-analyzer-optin.performance.Padding): in the order of its life
  enum class State : uint8_t { kPreamble, kTls, kHello, kLanes, kTicket, kLaneTls, kRouted };
  State state = State::kPreamble;
  Stream stream;
  std::unique_ptr<TlsSession> tls;  // while it is shaking hands
  std::string peer;
  bool unix_socket = false;
  bool unlike = false;  // no version in common
  bool handed = false;  // by another listener, which has heard its preamble
  Sources::Source* source = nullptr;
  int64_t begun_ms = 0;
  int64_t deadline_ms = 0;
  std::vector<uint8_t>
      in;  // never more than what the state needs: what follows is for TLS or the link
  size_t wanted = sizeof(wire::Preamble);

  // A link on its way.
  bool reserved = false;
  LinkSetup setup;
  LinkSecrets secrets;
  std::vector<Stream> lanes;
  std::vector<bool> seen;  // tickets that were used
  uint32_t missing = 0;    // lanes
  std::shared_ptr<LinkCore> replaced;
  std::vector<std::unique_ptr<verbs::QueuePairs>> rails;  // null: it does not connect
  uint32_t rails_connected = 0;  // as the connector says in its lane's ticket

  // A lane on its way.
  wire::Ticket ticket;

  // One for somebody behind this address.
  wire::Preamble said;
  bool quiet = false;  // it is not watched: what it says is for him

  // The peer may try again: its link is not refused for good.
  bool later = false;

  /// The connection has sent nothing yet that needs a look.
  bool silent() const {
    return state == State::kPreamble || state == State::kTicket || state == State::kRouted;
  }
  /// The connection has shown a key or a ticket, or (loopback, no key) has its place among the
  /// links.
  bool proved() const {
    return state == State::kLanes || state == State::kLaneTls ||
           (state == State::kHello && stream.encrypted());
  }
};

class Acceptor final : public Listener,
                       public std::enable_shared_from_this<Acceptor>,
                       public Reactor::Ticker {
 public:
  Acceptor(EndpointCore& endpoint, AcceptFn accept, RoutesPtr routes)
      : endpoint_(endpoint),
        reactor_(*endpoint.reactors().front()),
        accept_(std::move(accept)),
        routes_(std::move(routes)),
        sources_(endpoint.options().limits.handshakes_per_second,
                 endpoint.options().keys != nullptr) {}

  Status open(const std::string& address);
  void openBehind(base::UniqueFd socket);
  void close();
  const std::string& address() const override { return address_; }
  void removeSocketFile() const noexcept override {
    if (!unix_path_.empty()) unlink(unix_path_.c_str());
  }
  void onTick(bool late) override;

 private:
  using Place = std::list<Handshake>::iterator;
  class Ears;

  Status bindTo(const SocketAddress& address, base::UniqueFd& into);
  void listenForShm();
  void listenForQueuePairs(const SocketAddress& address);
  std::unique_ptr<verbs::QueuePairListener> listenOnCard(const SocketAddress& address);
  bool forRails(const wire::Hello& peer) const;
  void offerRails(const wire::Hello& peer, wire::Hello& answer) const;
  void queuePairEvents(verbs::QueuePairListener& listener);
  std::string queuePairAsked(verbs::QueuePairListener& listener,
                             const verbs::QueuePairListener::Event& event);
  void watch();
  void acceptFrom(int listener);
  void receiveFrom(int socket);
  void take(base::UniqueFd fd, const SocketAddress& from, const wire::Preamble* said);
  void onEvents(Place place);
  std::string advance(Handshake& shake, bool& again);
  std::string preamble(Handshake& shake);
  void handOver();
  std::string begin(Handshake& shake);
  std::string shakeTls(Handshake& shake);
  std::string hello(Handshake& shake);
  Kinds kindsFor(const Handshake& shake) const;
  std::string ticket(Handshake& shake);
  std::string laneReady(Handshake& shake);
  std::string finish(Handshake& shake);
  bool put(Handshake& shake, const void* from, size_t length);
  void drop(Place place, const std::string& why);
  void forget(Place place);
  size_t places() const;
  bool isCrowd(const Handshake& shake) const;
  bool makeRoom();

  EndpointCore& endpoint_;
  Reactor& reactor_;
  const AcceptFn accept_;
  const RoutesPtr routes_;
  std::string address_;
  base::UniqueFd handover_;  // where another listener hands connections over
  std::vector<base::UniqueFd> listeners_;
  std::string unix_path_;  // of the listener for shm; removed at the end
  std::unique_ptr<verbs::QueuePairListener> queue_pairs_;         // at the own address
  std::vector<std::unique_ptr<verbs::QueuePairListener>> rails_;  // at those of the rails
  std::list<Handshake> shakes_;                                   // the newest first
  Sources sources_;
  bool deaf_ = false;           // no descriptors are left: the listeners are not watched
  Handshake* owner_ = nullptr;  // of the lane that has just arrived: to be looked at again
  bool routed_ = false;         // one for somebody else has just arrived
};

// One watched socket of an acceptor.
class Acceptor::Ears final : public Reactor::Source {
 public:
  explicit Ears(std::function<void()> events) : events_(std::move(events)) {}
  void onEvents(uint32_t) override { events_(); }

 private:
  const std::function<void()> events_;
};

Status Acceptor::bindTo(const SocketAddress& address, base::UniqueFd& into) {
  into = makeSocket(address.family());
  const int on = 1;
  if (address.family() != AF_UNIX) setsockopt(into.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto bound = [&] { return bind(into.get(), address.get(), address.length) == 0; };
  bool good = into && bound();
  if (into && !good && errno == EADDRINUSE && address.family() == AF_UNIX) {
    // One that listened there was killed.
    const std::string path = address.text().substr(5);
    good = isDeadSocket(path) && unlink(path.c_str()) == 0 && bound();
    if (!good) errno = EADDRINUSE;
  }
  if (!good || ::listen(into.get(), SOMAXCONN) != 0) {
    return Error{whyNotBound(address, errno)};
  }
  return {};
}

Status Acceptor::open(const std::string& address) {
  std::vector<SocketAddress> addresses;
  if (isUnix(address)) {
    auto one = unixAddress(address.substr(5));
    if (!one.ok()) return one.error();
    addresses.push_back(one.value());
  } else {
    auto all = resolve(address, true);
    if (!all.ok()) return all.error();
    addresses = all.value();
    const bool open = std::any_of(addresses.begin(), addresses.end(),
                                  [](auto& each) { return !each.loopback(); });
    if (open && !endpoint_.options().keys) {
      return Error{
          base::format("{}: not without a key: others than this host can reach it. It is looked "
                       "for by {}; olctl "
                       "keygen makes one; or listen on 127.0.0.1",
                       address, kDaemonKeyPlaces)};
    }
    if (!endpoint_.options().keys) base::logInfo("no key: listening on loopback only");
  }
  base::UniqueFd fd;
  std::string why;
  for (const auto& each : addresses) {
    if (const auto status = bindTo(each, fd); !status.ok()) {
      why = status.error().message;
      continue;
    }
    SocketAddress bound;
    bound.length = sizeof bound.storage;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length);
    address_ = bound.family() == AF_UNIX ? address : bound.text();
    listenForQueuePairs(bound);
    if (bound.family() == AF_UNIX) unix_path_ = address.substr(5);
    listeners_.push_back(std::move(fd));
    break;
  }
  if (listeners_.empty()) return Error{why};
  watch();
  return {};
}

// A card's part of what is listened at, where there is one.
void Acceptor::listenForQueuePairs(const SocketAddress& address) {
  const Options& options = endpoint_.options();
  // Without a key there are peers on loopback only.
  if (!options.keys) {
    if (!endpoint_.rails().empty())
      base::warnOnce("rails", "rails: of no effect without a key (--key), which RDMA needs");
    return;
  }
  if (options.tls == Tls::kAll) return;
  if (!allowedBy(options.choice).has(LinkKind::kVerbs)) return;
  if (!address.loopback()) queue_pairs_ = listenOnCard(address);
  for (size_t i = 0; i < endpoint_.rails().size(); ++i) {
    const SocketAddress& rail = endpoint_.rails()[i];
    const std::string why = verbs::whyNoCardAt(rail);
    if (!why.empty()) base::logWarn("rails: %s: %s", options.rails[i].c_str(), why.c_str());
    rails_.push_back(why.empty() ? listenOnCard(rail) : nullptr);
  }
}

std::unique_ptr<verbs::QueuePairListener> Acceptor::listenOnCard(const SocketAddress& address) {
  auto made = verbs::QueuePairListener::make(address);
  if (made.ok()) return std::move(made.value());
  base::logInfo("%s: %s", address.text().c_str(), made.error().message.c_str());
  return nullptr;
}

// True if links with such a peer have this end's rails, and not the card at the own address.
bool Acceptor::forRails(const wire::Hello& peer) const {
  return peer.rails != 0 &&
         std::ranges::any_of(rails_, [](const auto& each) { return each != nullptr; });
}

void Acceptor::offerRails(const wire::Hello& peer, wire::Hello& answer) const {
  if (!forRails(peer)) {
    answer.rails = 1;
    answer.rail[0].port = queue_pairs_->port();
    return;
  }
  answer.rails = static_cast<uint8_t>(std::min<size_t>(peer.rails, rails_.size()));
  for (size_t i = 0; i < answer.rails; ++i) {
    const auto bytes = addressBytes(endpoint_.rails()[i]);
    std::ranges::copy(bytes, answer.rail[i].address);
    if (rails_[i]) answer.rail[i].port = rails_[i]->port();
  }
}

void Acceptor::openBehind(base::UniqueFd socket) {
  noteOwnDescriptor(socket.get());
  handover_ = std::move(socket);
  // At whatever address the other listener has.
  SocketAddress any;
  any.storage.ss_family = AF_INET;
  any.length = sizeof(sockaddr_in);
  listenForQueuePairs(any);
  watch();
  reactor_.add(handover_.get(), EPOLLIN,
               std::make_shared<Ears>(
                   [self = shared_from_this(), raw = handover_.get()] { self->receiveFrom(raw); }));
}

void Acceptor::watch() {
  if (unix_path_.empty() && allowedBy(endpoint_.options().choice).has(LinkKind::kShm))
    listenForShm();
  for (auto& listener : listeners_) {
    reactor_.add(listener.get(), EPOLLIN,
                 std::make_shared<Ears>(
                     [self = shared_from_this(), raw = listener.get()] { self->acceptFrom(raw); }));
  }
  const auto hear = [&](verbs::QueuePairListener* cards) {
    if (cards == nullptr) return;
    reactor_.add(cards->fd(), EPOLLIN, std::make_shared<Ears>([self = shared_from_this(), cards] {
                   self->queuePairEvents(*cards);
                 }));
  };
  hear(queue_pairs_.get());
  for (auto& rail : rails_) hear(rail.get());
  reactor_.addTicker(weak_from_this());
}

// Peers on this host that come by TCP are told of this socket. Without it they stay on TCP.
void Acceptor::listenForShm() {
  auto folder = socketFolder();
  Error why;
  if (folder.ok()) {
    removeDeadSockets(folder.value());
    const std::string path = newSocketPath(folder.value());
    base::UniqueFd fd;
    auto address = unixAddress(path);
    const Status status = address.ok() ? bindTo(address.value(), fd) : Status(address.error());
    if (status.ok()) {
      unix_path_ = path;
      listeners_.push_back(std::move(fd));
      return;
    }
    why = status.error();
  } else {
    why = folder.error();
  }
  base::logWarn("no shared memory for peers on this host, they use TCP: %s", why.message.c_str());
}

void Acceptor::close() {
  // On the reactor's thread, so that no callback is running; the ears hold this.
  std::promise<void> done;
  reactor_.post([this, &done] {
    for (auto& listener : listeners_) reactor_.remove(listener.get());
    if (handover_) reactor_.remove(handover_.get());
    if (queue_pairs_) reactor_.remove(queue_pairs_->fd());
    for (auto& rail : rails_) {
      if (rail) reactor_.remove(rail->fd());
    }
    while (!shakes_.empty()) drop(shakes_.begin(), "");
    queue_pairs_.reset();
    rails_.clear();
    done.set_value();
  });
  done.get_future().wait();
  removeSocketFile();
  listeners_.clear();
  handover_.reset();
}

// Links and their lanes.
size_t Acceptor::places() const {
  return size_t{endpoint_.options().limits.handshakes} * (1 + endpoint_.options().lanes);
}

// The source of the handshake has more than its share of the places.
bool Acceptor::isCrowd(const Handshake& shake) const {
  return shake.source->under_way > places() / Sources::kShare;
}

// Ends a handshake when all places are taken: first one of a source that has more than its share,
// then one that has proved nothing, then one without a key's tag, then a silent one, then the
// oldest. A peer that knows the protocol is done before it is the oldest. A peer that has proved
// its key goes only if its source has more than its share: other peers' lanes may be on their way.
bool Acceptor::makeRoom() {
  if (shakes_.size() < places()) return true;
  const auto rank = [&](const Handshake& shake) {
    return std::tuple(isCrowd(shake), !shake.proved(), shake.source->key.empty(), shake.silent());
  };
  Place found = shakes_.begin();
  for (Place each = shakes_.begin(); each != shakes_.end(); ++each) {
    if (rank(*each) >= rank(*found)) found = each;
  }
  if (found->proved() && !isCrowd(*found)) return false;
  found->later = true;
  drop(found, "others want its place, and it has not finished its handshake");
  return true;
}

void Acceptor::acceptFrom(int listener) {
  for (int i = 0; i < 16; ++i) {
    SocketAddress from;
    from.length = sizeof from.storage;
    base::UniqueFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      // The connection stays in the backlog and would ring without end: listen again at the next
      // tick.
      base::warnOnce("accept", "%s: peers have to wait: %s", address_.c_str(),
                     std::strerror(errno));
      deaf_ = true;
      for (auto& each : listeners_) reactor_.modify(each.get(), 0);
      return;
    }
    noteOwnDescriptor(fd.get());
    take(std::move(fd), from, nullptr);
  }
}

// Takes connections from another listener. The system drops one if this process has no descriptors
// left.
void Acceptor::receiveFrom(int socket) {
  for (int i = 0; i < 16; ++i) {
    wire::Preamble said;
    base::UniqueFd fd;
    const ssize_t got = receiveWithFds(socket, &said, sizeof said, &fd, 1);
    if (got == -EAGAIN) return;
    if (got <= 0) {
      reactor_.remove(socket);  // nobody hands over any more
      return;
    }
    SocketAddress from;
    from.length = sizeof from.storage;
    // One that its peer has ended meanwhile has none.
    if (got != sizeof said || !fd ||
        getpeername(fd.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.length) != 0)
      continue;
    take(std::move(fd), from, &said);
  }
}

// A connection that has just been made. `said`: what has been read of it.
void Acceptor::take(base::UniqueFd fd, const SocketAddress& from, const wire::Preamble* said) {
  const bool unix_socket = from.family() == AF_UNIX;
  SocketAddress own;
  own.length = sizeof own.storage;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length);
  const bool keyed = endpoint_.options().keys != nullptr;
  std::string why;
  if (!keyed && !from.loopback()) {
    why = "without a key nobody beyond this host";
  } else if (unix_socket || !keyed) {
    why = whyNotOneUser(fd.get(), false);
  }
  const bool full = why.empty() && !makeRoom();
  if (full) why = "too many handshakes at the same time";
  shakes_.emplace_front();
  const Place place = shakes_.begin();
  place->stream = Stream(std::move(fd), nullptr);
  place->peer = unix_socket ? own.text() : from.text();
  place->unix_socket = unix_socket;
  place->source = sources_.enter(from.source());
  place->begun_ms = nowMs();
  place->deadline_ms =
      place->begun_ms + std::min(kFirstBytesMs, endpoint_.options().limits.handshake_ms);
  if (!why.empty()) {
    place->later = full;
    drop(place, why);
    return;
  }
  reactor_.add(
      place->stream.fd(), EPOLLIN,
      std::make_shared<Ears>([self = shared_from_this(), place] { self->onEvents(place); }));
  if (said == nullptr) return;
  place->handed = true;
  place->in.resize(sizeof *said);
  std::memcpy(place->in.data(), said, sizeof *said);
  onEvents(place);
}

void Acceptor::drop(Place place, const std::string& why) {
  if (!why.empty()) {
    base::logWarn("connection from %s closed: %s", place->peer.c_str(), why.c_str());
    if (place->state == Handshake::State::kHello || place->state == Handshake::State::kLanes ||
        place->state == Handshake::State::kPreamble ||
        (place->state == Handshake::State::kRouted &&
         place->said.kind != wire::Preamble::Kind::kLane)) {
      struct {
        wire::Header header;
        char text[wire::kMaxGoodbye];
      } goodbye;
      goodbye.header.frame = wire::Frame::kGoodbye;
      goodbye.header.length = static_cast<uint32_t>(std::min(why.size(), sizeof goodbye.text));
      goodbye.header.code = place->unlike ? wire::kUnlikeVersions : place->later ? wire::kLater : 0;
      std::memcpy(goodbye.text, why.data(), goodbye.header.length);
      put(*place, &goodbye, sizeof goodbye.header + goodbye.header.length);
    }
  }
  if (place->reserved) endpoint_.releaseLink();
  forget(place);
}

void Acceptor::forget(Place place) {
  if (place->stream.fd() >= 0) reactor_.remove(place->stream.fd());
  sources_.leave(place->source);
  shakes_.erase(place);
}

bool Acceptor::put(Handshake& shake, const void* from, size_t length) {
  const iovec part{const_cast<void*>(from), length};
  return shake.stream.write(&part, 1) == static_cast<ssize_t>(length);
}

void Acceptor::onTick(bool) {
  const int64_t now = nowMs();
  if (std::exchange(deaf_, false)) {
    for (auto& each : listeners_) reactor_.modify(each.get(), EPOLLIN);
  }
  for (Place place = shakes_.begin(); place != shakes_.end();) {
    const Place next = std::next(place);
    if (now >= place->deadline_ms) {
      place->later = true;
      drop(place, place->state == Handshake::State::kRouted
                      ? "whom it is for does not take it in time"
                      : "the handshake was not finished in time");
    } else if (place->state == Handshake::State::kLanes && place->replaced) {
      onEvents(place);  // its predecessor may be down now
    }
    place = next;
  }
  handOver();
}

void Acceptor::onEvents(Place place) {
  std::string why;
  for (bool again = true; again && why.empty();) why = advance(*place, again);
  Handshake* owner = std::exchange(owner_, nullptr);
  if (why == "done") {
    forget(place);
  } else if (!why.empty()) {
    drop(place, why);
  }
  if (std::exchange(routed_, false)) handOver();
  if (owner == nullptr) return;
  for (Place each = shakes_.begin(); each != shakes_.end(); ++each) {
    if (&*each == owner) {
      onEvents(each);
      break;
    }
  }
}

// One step. "": goes on later, or at once when `again`; "done": handed over; else why it ends.
std::string Acceptor::advance(Handshake& shake, bool& again) {
  again = false;
  if (shake.state == Handshake::State::kRouted) return "it went away";
  if (shake.state == Handshake::State::kTls || shake.state == Handshake::State::kLaneTls) {
    std::string why = shakeTls(shake);
    again = shake.tls == nullptr && why.empty();
    return why;
  }
  if (shake.state == Handshake::State::kLanes) {
    uint8_t byte = 0;
    // Nothing may come here before Ready: only the end of the connection does.
    const iovec part{&byte, 1};
    const ssize_t got = shake.stream.read(&part, 1);
    if (got != -EAGAIN)
      return got > 0 ? "it spoke out of turn" : "it went away: " + shake.stream.errorText(got);
    return finish(shake);
  }
  while (shake.in.size() < shake.wanted) {
    const size_t have = shake.in.size();
    shake.in.resize(shake.wanted);
    const iovec part{shake.in.data() + have, shake.wanted - have};
    const ssize_t got = shake.stream.read(&part, 1);
    shake.in.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == -EAGAIN) return "";
    if (got <= 0) return "it went away during the handshake: " + shake.stream.errorText(got);
  }
  again = true;
  std::string why;
  if (shake.state == Handshake::State::kPreamble) {
    why = preamble(shake);
  } else if (shake.state == Handshake::State::kHello) {
    why = hello(shake);
  } else {
    why = ticket(shake);
  }
  again = shake.state != Handshake::State::kRouted;
  if (!shake.silent()) shake.deadline_ms = shake.begun_ms + endpoint_.options().limits.handshake_ms;
  shake.in.clear();
  return why;
}

std::string Acceptor::preamble(Handshake& shake) {
  wire::Preamble preamble;
  std::memcpy(&preamble, shake.in.data(), sizeof preamble);
  if (preamble.magic != wire::Preamble::kMagic) return "it does not speak olpager's protocol";
  const Options& own = endpoint_.options();
  if (!agreedVersion(own.versions, preamble.oldest, preamble.newest)) {
    shake.unlike = true;
    return base::format(
        "the end that connects speaks {} of the protocol, olpager {} at this end {}: install one "
        "release of olpager at both ends",
        versionsText(preamble.oldest, preamble.newest), own.release,
        versionsText(own.versions.oldest, own.versions.newest));
  }
  if (preamble.route != 0 && !shake.handed) {
    shake.said = preamble;
    shake.state = Handshake::State::kRouted;
    routed_ = true;
    return "";
  }
  const auto& keys = own.keys;
  switch (preamble.kind) {
    case wire::Preamble::Kind::kPlainLink:
      if (keys)
        return "no key was given, and this node wants one: name the file with it (--key, the "
               "setting key)";
      if (std::string why = begin(shake); !why.empty()) return why;
      shake.state = Handshake::State::kHello;
      shake.wanted = sizeof(wire::Header) + sizeof(wire::Hello);
      return "";
    case wire::Preamble::Kind::kTlsLink: {
      if (!keys)
        return "a key was given, and this node has none: start it with --key, or come without";
      auto session = TlsSession::server(
          shake.stream.fd(), [keys](const std::string& name) { return keys->find(name); },
          [this, &shake, keys](const std::string& tag) {
            shake.source = sources_.recognise(shake.source, keys->nameOf(tag));
            return begin(shake);
          });
      if (!session.ok()) return session.error().message;
      shake.tls = std::move(session.value());
      shake.state = Handshake::State::kTls;
      return "";
    }
    case wire::Preamble::Kind::kLane:
      shake.state = Handshake::State::kTicket;
      shake.wanted = sizeof(wire::Ticket);
      return "";
  }
  return base::format("a connection of unknown kind {}", static_cast<unsigned>(preamble.kind));
}

// Those who are for somebody behind this address, as far as he takes them: first those whose source
// is no crowd, of each the oldest first, so that who comes by a route without end keeps no others
// from it. Nobody is waited for.
void Acceptor::handOver() {
  std::set<uint64_t> full;
  for (const bool crowd : {false, true}) {
    for (Place end = shakes_.end(); end != shakes_.begin();) {
      const Place place = std::prev(end);
      const uint64_t route = place->said.route;
      auto handed = Routes::Handed::kFull;
      if (place->state != Handshake::State::kRouted || isCrowd(*place) != crowd) {
        end = place;
        continue;
      }
      if (!full.contains(route)) {
        handed = routes_ ? routes_->hand(route, place->stream.fd(),
                                         std::as_bytes(std::span(&place->said, 1)))
                         : Routes::Handed::kNobody;
      }
      if (handed == Routes::Handed::kTaken) {
        forget(place);
      } else if (handed == Routes::Handed::kNobody) {
        drop(place, base::format("whom it is for ({:016x}) is not here, or not any more", route));
      } else {
        full.insert(route);
        if (!std::exchange(place->quiet, true)) reactor_.modify(place->stream.fd(), 0);
        end = place;
      }
    }
  }
}

// From here on it costs something.
std::string Acceptor::begin(Handshake& shake) {
  std::string why = sources_.begin(shake.source, nowMs());
  shake.later = !why.empty();
  if (why.empty() && !shake.unix_socket) tuneTcp(shake.stream.fd(), endpoint_.options().dead_ms, 0);
  return why;
}

std::string Acceptor::shakeTls(Handshake& shake) {
  switch (shake.tls->handshake()) {
    case TlsSession::Step::kRead:
      reactor_.modify(shake.stream.fd(), EPOLLIN);
      return "";
    case TlsSession::Step::kWrite:
      reactor_.modify(shake.stream.fd(), EPOLLOUT);
      return "";
    case TlsSession::Step::kFailed:
      return base::format("the handshake failed: {}", shake.tls->error());
    case TlsSession::Step::kRefused: {
      std::string why = shake.tls->error();
      shake.tls.reset();
      shake.state = Handshake::State::kPreamble;  // it is told so in the clear
      return why;
    }
    case TlsSession::Step::kDone:
      break;
  }
  reactor_.modify(shake.stream.fd(), EPOLLIN);
  const bool lane = shake.state == Handshake::State::kLaneTls;
  if (!lane) shake.setup.peer.key_name = shake.tls->identity();
  shake.stream.startTls(std::move(shake.tls));
  if (lane) return laneReady(shake);
  shake.state = Handshake::State::kHello;
  shake.wanted = sizeof(wire::Header) + sizeof(wire::Hello);
  return "";
}

std::string Acceptor::hello(Handshake& shake) {
  wire::Header header;
  wire::Hello& peer = shake.setup.peer_hello;
  std::memcpy(&header, shake.in.data(), sizeof header);
  if (header.format != wire::kFormat || header.frame != wire::Frame::kHello ||
      header.length != sizeof peer) {
    return "its first frame is not a greeting";
  }
  std::memcpy(&peer, shake.in.data() + sizeof header, sizeof peer);
  if (std::string wrong = checkHello(peer); !wrong.empty()) return "its greeting: " + wrong;
  const Options& options = endpoint_.options();
  const auto version = agreedVersion(options.versions, peer.version, peer.newest);
  if (!version) return "its greeting: no version that both ends speak, against its first words";

  LinkSetup& setup = shake.setup;
  setup.peer.version = *version;
  setup.options = options;
  setup.peer.node = peer.node;
  setup.peer.address = shake.peer;
  setup.peer.tls = effectiveTls(peer, options);
  setup.peer.same_host = !endpoint_.bootId().empty() && endpoint_.bootId() == peer.boot_id;
  setup.unread = endpoint_.unreadOf(setup.peer.key_name);
  const Kinds own = kindsFor(shake), asked = Kinds::fromBits(peer.kinds);
  const auto kind = choose(asked, own);
  if (!kind)
    return base::format("it asks for {}, and with it this node has {}", asked.text(), own.text());
  setup.peer.kind = *kind;

  if (!endpoint_.reserveLink()) {
    shake.later = true;
    return base::format("more than {} links", options.limits.links);
  }
  shake.reserved = true;
  auto accepted = accept_(setup.peer);
  if (!accepted.ok()) {
    shake.later = true;
    return accepted.error().message;
  }
  setup.domain = accepted.value().domain;
  setup.queue = EventQueue::of(accepted.value().queue);
  if (!setup.domain || !setup.queue) return "this node has no place for the link";

  struct {
    wire::Header header;
    wire::Hello hello;
  } out;
  out.header.frame = wire::Frame::kHello;
  out.header.length = sizeof out.hello;
  out.hello = endpoint_.hello();
  out.hello.version = setup.peer.version;
  out.hello.kinds = Kinds{setup.peer.kind}.bits();
  const bool shm = setup.peer.kind == LinkKind::kShm;
  const bool one_lane = setup.peer.kind != LinkKind::kTcp;
  out.hello.lanes =
      one_lane ? 1 : static_cast<uint8_t>(std::min<uint32_t>(peer.lanes, options.lanes));
  randomBytes(out.hello.link_id);
  if (shm)
    std::memcpy(out.hello.unix_path, unix_path_.data(),
                std::min(unix_path_.size(), sizeof out.hello.unix_path - 1));
  if (shake.stream.tls() == nullptr) randomBytes(out.hello.secret);
  setup.id = linkIdOf(out.hello.link_id);
  auto secrets = deriveSecrets(shake.stream, out.hello);
  if (!secrets.ok()) return secrets.error().message;
  shake.secrets = secrets.value();
  shake.lanes.resize(out.hello.lanes);
  shake.seen.assign(out.hello.lanes, false);
  shake.missing = out.hello.lanes;
  if (setup.peer.kind == LinkKind::kVerbs) {
    offerRails(peer, out.hello);
    for (uint32_t i = 0; i < out.hello.rails; ++i) {
      shake.rails.push_back(std::make_unique<verbs::QueuePairs>(
          *verbs::api(), setup.domain, options.dead_ms, setup.peer.tls, i));
    }
  }

  const LinkId replaces = linkIdOf(peer.replaces);
  if (replaces != LinkId{}) {
    auto old = endpoint_.findLink(replaces);
    // Only the holder of the old link's key may end it.
    if (old && old->peer().key_name == setup.peer.key_name) {
      old->fail("its peer has connected anew");
      shake.replaced = std::move(old);
    }
  }
  if (!put(shake, &out, sizeof out)) return "it does not take the answer";
  if (setup.peer.tls == Tls::kOff) shake.stream.endTls();
  shake.state = Handshake::State::kLanes;
  shake.begun_ms = nowMs();  // who is known now has as long again for lanes and queue pairs
  return "";
}

// The kinds of links that this node has with such a peer.
Kinds Acceptor::kindsFor(const Handshake& shake) const {
  const LinkSetup& setup = shake.setup;
  const bool rails = forRails(setup.peer_hello);
  Kinds kinds = ownKinds(endpoint_.options().choice, localAddress(shake.stream.fd()),
                         setup.peer.tls, rails ? endpoint_.rails() : std::vector<SocketAddress>())
                    .kinds;
  if (!setup.peer.same_host || unix_path_.empty() || setup.peer_hello.uid != geteuid())
    kinds.remove(LinkKind::kShm);
  if (!rails && !queue_pairs_) kinds.remove(LinkKind::kVerbs);
  return kinds;
}

// Handles events of the cards' listener: requests, and the fate of accepted ones.
void Acceptor::queuePairEvents(verbs::QueuePairListener& listener) {
  for (verbs::QueuePairListener::Event event; listener.next(event);) {
    if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      const std::string why = queuePairAsked(listener, event);
      if (!why.empty()) base::logWarn("connection from a card closed: %s", why.c_str());
      continue;
    }
    for (Place each = shakes_.begin(); each != shakes_.end(); ++each) {
      const auto rail = std::ranges::find_if(
          each->rails, [&](const auto& pairs) { return pairs && pairs->owns(event.id); });
      if (rail == each->rails.end()) continue;
      if (event.type == RDMA_CM_EVENT_ESTABLISHED) {
        (*rail)->established();
        onEvents(each);
      } else if (event.type != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
        rail->reset();
        if (each->rails.size() == 1) {
          drop(each, kCardFailed);
        } else {
          onEvents(each);
        }
      }
      break;
    }
  }
}

// A request is accepted and belongs to its link, or is refused here; "" or why.
std::string Acceptor::queuePairAsked(verbs::QueuePairListener& listener,
                                     const verbs::QueuePairListener::Event& event) {
  const LinkId id = linkIdOf(event.ticket.link_id);
  for (Place each = shakes_.begin(); each != shakes_.end(); ++each) {
    if (each->state != Handshake::State::kLanes || each->setup.id != id) continue;
    const uint32_t rail = event.ticket.rail;
    const bool good = verbs::checkTicket(each->secrets, event.ticket) &&
                      rail < each->rails.size() && each->rails[rail] &&
                      each->rails[rail]->lacks(event.ticket.which);
    if (!good) break;
    const auto status =
        each->rails[rail]->accept(event.id, event.ticket, each->secrets, event.offered);
    if (status.ok()) return "";
    if (each->rails.size() == 1) {
      drop(each, status.error().message);
      return "";
    }
    each->rails[rail].reset();
    return base::format("rail {}: {}", rail + 1, status.error().message);
  }
  listener.refuse(event.id);
  return "a queue pair with a ticket that is no link's, or was used already";
}

std::string Acceptor::ticket(Handshake& shake) {
  std::memcpy(&shake.ticket, shake.in.data(), sizeof shake.ticket);
  const LinkId id = linkIdOf(shake.ticket.link_id);
  for (Handshake& owner : shakes_) {
    if (owner.state != Handshake::State::kLanes || owner.setup.id != id) continue;
    if (!checkTicket(owner.secrets, shake.ticket))
      return "a ticket that was not made with the link's secret";
    if (shake.ticket.index >= owner.seen.size() || owner.seen[shake.ticket.index])
      return "a ticket that was used already";
    if (shake.unix_socket != (owner.setup.peer.kind == LinkKind::kShm || owner.unix_socket))
      return "a lane of the wrong kind";
    if (shake.ticket.rails >> owner.rails.size() != 0 ||
        (shake.ticket.rails == 0) != owner.rails.empty())
      return "a lane of a link with other rails";
    shake.source = sources_.recognise(shake.source, owner.source->key);
    owner.rails_connected = shake.ticket.rails;
    owner.seen[shake.ticket.index] = true;
    const wire::TicketReply reply = answerTicket(owner.secrets, shake.ticket);
    if (!put(shake, &reply, sizeof reply)) return "it does not take the answer";
    if (!shake.unix_socket)
      tuneTcp(shake.stream.fd(), endpoint_.options().dead_ms, wire::kMinSlice);
    if (owner.setup.peer.tls != Tls::kAll || owner.setup.peer.kind == LinkKind::kShm)
      return laneReady(shake);
    auto session = TlsSession::server(
        shake.stream.fd(),
        [key = owner.secrets.lane, name = laneIdentity(shake.ticket)](const std::string& identity) {
          return identity == name ? std::optional(key) : std::nullopt;
        });
    if (!session.ok()) return session.error().message;
    shake.tls = std::move(session.value());
    shake.state = Handshake::State::kLaneTls;
    return "";
  }
  return "a ticket for a link that is not there";
}

std::string Acceptor::laneReady(Handshake& shake) {
  const LinkId id = linkIdOf(shake.ticket.link_id);
  for (Handshake& owner : shakes_) {
    if (owner.state != Handshake::State::kLanes || owner.setup.id != id) continue;
    reactor_.remove(shake.stream.fd());
    owner.lanes[shake.ticket.index] = std::move(shake.stream);
    --owner.missing;
    owner_ = &owner;
    return "done";
  }
  return "its link is gone";
}

// The link is made when its lanes are there and its predecessor touches nothing any more.
std::string Acceptor::finish(Handshake& shake) {
  if (shake.missing != 0) return "";
  for (size_t i = 0; i < shake.rails.size(); ++i) {
    if ((shake.rails_connected >> i & 1) == 0) {
      shake.rails[i].reset();
    } else if (!shake.rails[i]) {
      return kCardFailed;
    } else if (!shake.rails[i]->complete()) {
      return "";
    }
  }
  if (shake.replaced && shake.replaced->state() != LinkState::kDown) return "";
  LinkSetup& setup = shake.setup;
  std::erase(shake.rails, nullptr);
  setup.peer.why =
      describeLink(setup.peer, static_cast<uint32_t>(shake.lanes.size()), shake.rails.size());
  if (setup.peer.kind == LinkKind::kShm) {
    auto link = acceptShm(endpoint_, std::move(setup), std::move(shake.lanes.front()));
    if (!link.ok()) return link.error().message;
    shake.reserved = false;
    endpoint_.addLink(link.value());
    return "done";
  }
  for (auto& rail : shake.rails) {
    if (auto status = rail->settle(); !status.ok()) return status.error().message;
  }
  wire::Header ready;
  ready.frame = wire::Frame::kReady;
  if (!put(shake, &ready, sizeof ready)) return "it does not take the answer";
  reactor_.remove(shake.stream.fd());
  std::shared_ptr<TcpLink> link;
  if (!shake.rails.empty()) {
    auto made =
        verbs::VerbsLink::make(std::move(setup), std::move(shake.stream), std::move(shake.lanes),
                               std::move(shake.rails), endpoint_.reactors());
    if (!made.ok()) return made.error().message;
    link = made.value();
  } else {
    link = TcpLink::make(std::move(setup), std::move(shake.stream), std::move(shake.lanes),
                         endpoint_.reactors());
  }
  shake.reserved = false;
  endpoint_.addLink(link);
  link->start(true);
  return "done";
}

// The program's handle: closes the acceptor, which its callbacks hold.
class ListenerHandle final : public Listener {
 public:
  explicit ListenerHandle(std::shared_ptr<Acceptor> acceptor) : acceptor_(std::move(acceptor)) {}
  ~ListenerHandle() override { acceptor_->close(); }
  const std::string& address() const override { return acceptor_->address(); }
  void removeSocketFile() const noexcept override { acceptor_->removeSocketFile(); }

 private:
  const std::shared_ptr<Acceptor> acceptor_;
};

}  // namespace

Result<std::unique_ptr<Listener>> makeAcceptor(EndpointCore& endpoint, const std::string& address,
                                               AcceptFn accept, RoutesPtr routes) {
  auto acceptor = std::make_shared<Acceptor>(endpoint, std::move(accept), std::move(routes));
  if (auto status = acceptor->open(address); !status.ok()) return Error{status.error().message};
  return std::unique_ptr<Listener>(std::make_unique<ListenerHandle>(std::move(acceptor)));
}

Result<std::unique_ptr<Listener>> makeAcceptorBehind(EndpointCore& endpoint, base::UniqueFd socket,
                                                     AcceptFn accept) {
  auto acceptor = std::make_shared<Acceptor>(endpoint, std::move(accept), nullptr);
  acceptor->openBehind(std::move(socket));
  return std::unique_ptr<Listener>(std::make_unique<ListenerHandle>(std::move(acceptor)));
}

}  // namespace olpager::transport
