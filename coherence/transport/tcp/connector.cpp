#include "coherence/transport/tcp/connector.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "base/log.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/core/endpoint.h"
#include "coherence/transport/core/peer_user.h"
#include "coherence/transport/shm/shm_connect.h"
#include "coherence/transport/tcp/tcp_link.h"
#include "coherence/transport/trust/key_access.h"
#include "coherence/transport/verbs/verbs_link.h"

namespace olpager::transport {
namespace {

constexpr std::string_view kHttp = "HTTP/";
constexpr const char* kHttpServer =
    "an HTTP server answers there, such as a daemon's figures (--prometheus); name the port of the "
    "daemon's --listen";

// A stream with a deadline.
class Dialogue {
 public:
  /// `lasts`: set where the peer's answer is a no that lasts.
  Dialogue(Stream stream, const Patience& patience, const Options& options, bool* lasts)
      : stream_(std::move(stream)),
        patience_(patience),
        release_(options.release.empty() ? "without a version" : options.release),
        lasts_(lasts) {}

  Status put(const void* from, size_t length) {
    return move(length, POLLOUT, [&](size_t done) {
      const iovec part{static_cast<char*>(const_cast<void*>(from)) + done, length - done};
      return stream_.write(&part, 1);
    });
  }
  Status get(void* into, size_t length) {
    return move(length, POLLIN, [&](size_t done) {
      const iovec part{static_cast<char*>(into) + done, length - done};
      return stream_.read(&part, 1);
    });
  }
  Status startTls(const std::string& identity, const Secret& key, const std::string& tag = "") {
    auto session = TlsSession::client(stream_.fd(), identity, key, tag);
    if (!session.ok()) return session.error();
    for (bool first = true;; first = false) {
      const auto step = session.value()->handshake();
      if (step == TlsSession::Step::kDone) break;
      const bool failed = step == TlsSession::Step::kFailed;
      if (!failed && !waitFor(stream_.fd(), step == TlsSession::Step::kRead ? POLLIN : POLLOUT,
                              patience_.until())) {
        return Error{"the handshake was not finished in time"};
      }
      // A listener that refuses before it has looked at the key says why in the clear, maybe before
      // it was asked, and ends the connection.
      if (first && (refused() || speaksHttp())) return expect(wire::Frame::kReady, nullptr, 0);
      if (failed) {
        *lasts_ = session.value()->refused();
        return Error{base::format("the handshake with key {} failed: {}", identity,
                                  session.value()->error())};
      }
    }
    stream_.startTls(std::move(session.value()));
    return {};
  }
  /// A Goodbye is there, unread.
  bool refused() const {
    auto said = wire::Frame::kReady;
    return recv(stream_.fd(), &said, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
           said == wire::Frame::kGoodbye;
  }
  /// Bytes of an HTTP server are there, unread.
  bool speaksHttp() const {
    char said[kHttp.size()] = "";
    return recv(stream_.fd(), said, sizeof said, MSG_PEEK | MSG_DONTWAIT) == sizeof said &&
           std::string_view(said, sizeof said) == kHttp;
  }
  /// A frame of this kind and this payload, or what the peer says instead.
  Status expect(wire::Frame frame, void* payload, size_t length) {
    wire::Header header;
    auto status = get(&header, 1);
    // A short answer of somebody else's may be less than a header.
    if (status.ok() && static_cast<char>(header.frame) == kHttp.front()) return no(kHttpServer);
    if (status.ok()) status = get(reinterpret_cast<char*>(&header) + 1, sizeof header - 1);
    if (!status.ok()) return status;
    if (header.format != wire::kFormat) {
      return no(base::format(
          "its frames have format {}, those of olpager {} here format {}: install one release of "
          "olpager at both ends",
          header.format, release_, wire::kFormat));
    }
    if (header.frame == wire::Frame::kGoodbye && header.length <= wire::kMaxGoodbye) {
      std::string text(header.length, '\0');
      if (status = get(text.data(), text.size()); !status.ok()) return status;
      for (char& c : text) {
        if (c < ' ' || c > '~') c = '?';
      }
      if (header.code == wire::kUnlikeVersions)
        text += base::format(" (olpager here: {})", release_);
      *lasts_ = header.code != wire::kLater;
      return Error{base::format("refused: {}", text)};
    }
    if (header.frame != frame || header.length != length)
      return no("the answer is not one of olpager's");
    return length == 0 ? Status() : get(payload, length);
  }

  Stream& stream() { return stream_; }

 private:
  Error no(std::string why) {
    *lasts_ = true;
    return Error{std::move(why)};
  }
  template <typename Try>
  Status move(size_t length, short events, Try&& attempt) {
    for (size_t done = 0; done < length;) {
      const ssize_t moved = attempt(done);
      if (moved > 0) {
        done += static_cast<size_t>(moved);
      } else if (moved != -EAGAIN) {
        // The peer answered and went away before it had heard all.
        if (!stream_.encrypted() && events == POLLOUT) {
          if (speaksHttp()) return no(kHttpServer);
          if (refused()) return expect(wire::Frame::kReady, nullptr, 0);
        }
        return Error{base::format("the connection is lost: {}", stream_.errorText(moved))};
      } else if (!waitFor(stream_.fd(), events, patience_.until())) {
        return Error{
            "no answer in time, though something listens there: a daemon that is stopped or "
            "busy, or a port of another program's; name the address that the daemon printed"};
      }
    }
    return {};
  }

  Stream stream_;
  const Patience patience_;
  const std::string release_;  // of this program
  bool* lasts_;
};

Result<Dialogue> open(const SocketAddress& address, const Options& options,
                      const Patience& patience, uint32_t unsent, wire::Preamble::Kind kind,
                      uint64_t route, bool* lasts) {
  auto fd = connectSocket(address, patience);
  if (!fd.ok()) return fd.error();
  if (address.family() != AF_UNIX) tuneTcp(fd.value().get(), options.dead_ms, unsent);
  Dialogue dialogue(Stream(std::move(fd.value()), nullptr), patience, options, lasts);
  wire::Preamble preamble;
  preamble.oldest = options.versions.oldest;
  preamble.newest = options.versions.newest;
  preamble.kind = kind;
  preamble.route = route;
  if (auto status = dialogue.put(&preamble, sizeof preamble); !status.ok()) return status.error();
  return dialogue;
}

Result<Stream> openLane(const SocketAddress& address, const Options& options,
                        const Patience& patience, uint64_t route, const LinkSecrets& secrets,
                        const LinkId& id, uint32_t index, uint32_t rails, bool encrypt) {
  bool lasts = false;  // of the link itself: it has been taken
  auto opened =
      open(address, options, patience, wire::kMinSlice, wire::Preamble::Kind::kLane, route, &lasts);
  if (!opened.ok()) return opened.error();
  Dialogue& dialogue = opened.value();
  const wire::Ticket ticket = makeTicket(secrets, id, index, rails);
  wire::TicketReply reply;
  if (auto status = dialogue.put(&ticket, sizeof ticket); !status.ok()) return status.error();
  if (auto status = dialogue.get(&reply, sizeof reply); !status.ok()) return status.error();
  if (!sameSecret(reply.mac, answerTicket(secrets, ticket).mac))
    return Error{"a lane was answered by somebody else"};
  if (encrypt) {
    if (auto status = dialogue.startTls(laneIdentity(ticket), secrets.lane); !status.ok())
      return status.error();
  }
  return std::move(dialogue.stream());
}

// The request to a peer.
struct Wish {
  Kinds kinds;
  std::string without;  // why some kinds are no longer among them
  // The peer's choice that can't be had from here: containers of one host may have file systems of
  // their own, without the socket of shared memory; a card may have no way to the peer's.
  std::optional<LinkKind> lacking;
  bool lasts = false;  // ConnectOptions::lasts
};

using Rails = std::vector<std::unique_ptr<verbs::QueuePairs>>;

// Connects the queue pairs of those rails that both ends have. One that does not connect is left
// out, with a line, as long as another one does.
Result<Rails> connectRails(const EndpointCore& endpoint, const LinkSetup& setup,
                           const SocketAddress& address, const SocketAddress& local,
                           const LinkSecrets& secrets, const Patience& patience) {
  const wire::Hello& peer = setup.peer_hello;
  if (peer.rails == 0 || peer.rails > std::max<size_t>(endpoint.rails().size(), 1))
    return Error{base::format("its answer: {} rails", peer.rails)};
  Rails rails;
  std::string why;
  for (uint32_t i = 0; i < peer.rails; ++i) {
    const wire::RailAddress& there = peer.rail[i];
    const bool at_connection = std::ranges::all_of(there.address, [](uint8_t b) { return b == 0; });
    if (!at_connection && i >= endpoint.rails().size())
      return Error{"its answer: a rail that was not asked for"};
    const SocketAddress from = at_connection ? local : endpoint.rails()[i];
    const SocketAddress to =
        at_connection ? withPort(address, there.port) : addressFrom(there.address, there.port);
    auto pairs = std::make_unique<verbs::QueuePairs>(*verbs::api(), setup.domain,
                                                     setup.options.dead_ms, setup.peer.tls, i);
    // If one comes to nothing there has to be time for the others.
    const Status status = there.port == 0
                              ? Status(Error{"the peer has no card there"})
                              : pairs->connect(from, to, secrets, setup.id,
                                               peer.rails == 1 ? patience : patience.half());
    if (status.ok()) {
      rails.push_back(std::move(pairs));
      continue;
    }
    why = status.error().message;
    if (peer.rails == 1) break;
    why = base::format("rail {} of {}, from {} to {}: {}", i + 1, peer.rails,
                       withPort(from, 0).text(), to.text(), why);
    base::logWarn("%s: %s", address.text().c_str(), why.c_str());
  }
  if (rails.empty()) return Error{why};
  return rails;
}

Result<LinkPtr> connectTo(EndpointCore& endpoint, const SocketAddress& address,
                          const ConnectOptions& connect, const Patience& patience, Wish& wish) {
  const Options& options = endpoint.options();
  if (!options.keys && !address.loopback()) {
    return Error{
        base::format("beyond loopback a key is needed: it is looked for by {}; olctl keygen makes "
                     "one, for both ends",
                     kProgramKeyPlaces)};
  }
  const bool keyed = options.keys != nullptr;
  auto opened = open(address, options, patience, 0,
                     keyed ? wire::Preamble::Kind::kTlsLink : wire::Preamble::Kind::kPlainLink,
                     connect.route, &wish.lasts);
  if (!opened.ok()) return opened.error();
  Dialogue& dialogue = opened.value();
  if (keyed) {
    const NamedKey& key = options.keys->own();
    if (auto status = dialogue.startTls(key.name, key.secret, greetingTag(key.secret));
        !status.ok())
      return status.error();
  }

  struct {
    wire::Header header;
    wire::Hello hello;
  } out;
  const SocketAddress local = localAddress(dialogue.stream().fd());
  const OwnKinds own =
      ownKinds(options.choice, local, keyed ? options.tls : Tls::kOff, endpoint.rails());
  const Kinds kinds = wish.kinds & own.kinds;
  wish.lasts = kinds.empty();
  if (kinds.empty()) return Error{own.no_verbs};
  out.hello = endpoint.hello();
  out.hello.kinds = kinds.bits();
  const LinkId replaces = parseLinkId(connect.replaces);
  std::copy(replaces.begin(), replaces.end(), out.hello.replaces);
  out.header.frame = wire::Frame::kHello;
  out.header.length = sizeof out.hello;
  static_assert(sizeof out == sizeof(wire::Header) + sizeof(wire::Hello));
  if (auto status = dialogue.put(&out, sizeof out); !status.ok()) return status.error();
  LinkSetup setup;
  wire::Hello& peer = setup.peer_hello;
  if (auto status = dialogue.expect(wire::Frame::kHello, &peer, sizeof peer); !status.ok())
    return status.error();
  // Now that it has answered it has taken the connection.
  if (!keyed) {
    if (std::string why = whyNotOneUser(dialogue.stream().fd(), true); !why.empty()) {
      wish.lasts = true;
      return Error{std::move(why)};
    }
  }
  if (const std::string wrong = checkHello(peer); !wrong.empty())
    return Error{base::format("its answer: {}", wrong)};
  // The acceptor's own newest tells whether its choice is the newest of both.
  if (agreedVersion(options.versions, peer.version, peer.newest) != peer.version) {
    return Error{base::format(
        "its answer: version {}, which is not the newest that both ends speak", peer.version)};
  }
  setup.peer.version = peer.version;
  if (peer.lanes > options.lanes) return Error{base::format("its answer: {} lanes", peer.lanes)};
  auto secrets = deriveSecrets(dialogue.stream(), peer);
  if (!secrets.ok()) return secrets.error();

  setup.options = options;
  setup.id = linkIdOf(peer.link_id);
  setup.domain = connect.domain;
  setup.queue = EventQueue::of(connect.queue);
  setup.peer.node = peer.node;
  setup.peer.key_name = keyed ? options.keys->own().name : "";
  setup.peer.address = address.text();
  setup.peer.tls = effectiveTls(peer, options);
  setup.peer.same_host = !endpoint.bootId().empty() && endpoint.bootId() == peer.boot_id;
  if (setup.peer.tls == Tls::kOff) dialogue.stream().endTls();

  const Kinds answer = Kinds::fromBits(peer.kinds);
  const auto kind = answer.single();
  if (!kind || !kinds.has(*kind) || (*kind == LinkKind::kShm && !setup.peer.same_host)) {
    return Error{base::format("its answer: {}, which was not asked for", answer.text())};
  }
  setup.peer.kind = *kind;
  if (*kind == LinkKind::kShm) {
    auto socket = openShmSocket(peer, patience);
    if (!socket.ok()) {
      wish.lacking = kind;
      return socket.error();
    }
    auto link = connectShm(endpoint, std::move(setup), std::move(socket.value()), secrets.value(),
                           patience);
    if (!link.ok()) return link.error();
    endpoint.addLink(link.value());
    return LinkPtr(link.value());
  }
  Rails rails;
  uint32_t connected = 0;
  if (*kind == LinkKind::kVerbs) {
    // If it comes to nothing there has to be time for another way.
    const bool only = kinds == Kinds{LinkKind::kVerbs};
    auto made = connectRails(endpoint, setup, address, local, secrets.value(),
                             only ? patience : patience.half());
    if (!made.ok()) {
      wish.lacking = kind;
      return made.error();
    }
    rails = std::move(made.value());
    for (const auto& rail : rails) connected |= 1u << rail->rail();
  }
  std::vector<Stream> lanes;
  for (uint32_t i = 0; i < peer.lanes; ++i) {
    auto lane = openLane(address, options, patience, connect.route, secrets.value(), setup.id, i,
                         connected, setup.peer.tls == Tls::kAll);
    if (!lane.ok()) return Error{base::format("lane {}: {}", i, lane.error().message)};
    lanes.push_back(std::move(lane.value()));
  }
  if (auto status = dialogue.expect(wire::Frame::kReady, nullptr, 0); !status.ok())
    return status.error();
  setup.peer.why = describeLink(setup.peer, peer.lanes, rails.size());
  if (!wish.without.empty()) setup.peer.why += "; " + wish.without;
  if (!rails.empty()) {
    auto link = verbs::VerbsLink::make(std::move(setup), std::move(dialogue.stream()),
                                       std::move(lanes), std::move(rails), endpoint.reactors());
    if (!link.ok()) {
      wish.lacking = kind;
      return link.error();
    }
    endpoint.addLink(link.value());
    link.value()->start(false);
    return LinkPtr(link.value());
  }
  auto link = TcpLink::make(std::move(setup), std::move(dialogue.stream()), std::move(lanes),
                            endpoint.reactors());
  endpoint.addLink(link);
  link->start(false);
  return LinkPtr(link);
}

}  // namespace

Result<LinkPtr> connectLink(EndpointCore& endpoint, const std::string& address,
                            const ConnectOptions& options) {
  if (!options.domain || !EventQueue::of(options.queue)) {
    return Error{base::format("{}: a link needs a domain and a queue of an endpoint", address)};
  }
  const Patience patience{nowMs() + endpoint.options().connect_ms,
                          endpoint.options().connect_answer_ms};
  std::vector<SocketAddress> addresses;
  if (isUnix(address)) {
    auto one = unixAddress(address.substr(5));
    if (!one.ok()) return one.error();
    addresses.push_back(one.value());
  } else {
    auto all = resolve(address, false);
    if (!all.ok()) return all.error();
    addresses = all.value();
  }
  std::string why;
  for (const auto& each : addresses) {
    if (!endpoint.reserveLink()) return Error{base::format("{}: too many links", address)};
    Wish wish;
    wish.kinds = allowedBy(endpoint.options().choice);
    for (;;) {
      auto link = connectTo(endpoint, each, options, patience, wish);
      if (link.ok()) return link;
      why = link.error().message;
      if (options.lasts != nullptr) *options.lasts = wish.lasts;
      wish.lasts = false;
      if (!wish.lacking) break;
      const LinkKind lacking = *std::exchange(wish.lacking, std::nullopt);
      wish.kinds.remove(lacking);
      wish.without = base::format("no {}: {}", linkKindName(lacking), why);
      if (wish.kinds.empty()) break;
      // Shared memory that is out of reach is what containers are for; a card that connects nowhere
      // is a fault.
      (lacking == LinkKind::kShm ? base::logInfo : base::logWarn)(
          "%s: %s; so by %s", address.c_str(), wish.without.c_str(), wish.kinds.text().c_str());
    }
    endpoint.releaseLink();
  }
  // A numeric address is named already where it could not be connected to.
  return Error{why.starts_with(address + ": ") ? why : base::format("{}: {}", address, why)};
}

}  // namespace olpager::transport
