#include "coherence/transport/core/endpoint.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/log_links.h"
#include "coherence/transport/tcp/acceptor.h"
#include "coherence/transport/tcp/connector.h"

namespace olpager::transport {
namespace {

std::atomic<base::LogLevel> g_link_level{base::LogLevel::kInfo};

}  // namespace

void setLinkLogLevel(base::LogLevel level) noexcept {
  g_link_level.store(level, std::memory_order_relaxed);
}
base::LogLevel linkLogLevel() noexcept { return g_link_level.load(std::memory_order_relaxed); }

namespace {

template <size_t N>
void setText(char (&into)[N], const std::string& text) {
  std::memset(into, 0, N);
  std::memcpy(into, text.data(), std::min(text.size(), N - 1));
}

template <size_t N>
void cleanText(char (&text)[N]) {
  text[N - 1] = '\0';
  for (char& c : text) {
    if (c != '\0' && (c < ' ' || c > '~')) c = '?';
  }
}

std::string nodeName(const std::string& given) {
  if (!given.empty()) return given;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return base::format("{}@{}", getpid(), host);
}

uint32_t ioThreads(const Options& options) {
  if (options.io_threads != 0) return std::min(options.io_threads, 64u);
  // More threads than processors that are free for them move more bytes, but then the system's
  // scheduler, not the link's, decides whether a demand or a prefetch is copied first.
  return std::clamp(std::thread::hardware_concurrency() / 4, 1u, std::max(1u, options.lanes));
}

template <typename T>
std::span<const uint8_t> bytesOf(const T& value, size_t length = sizeof(T)) {
  return {reinterpret_cast<const uint8_t*>(&value), length};
}

}  // namespace

EndpointCore::EndpointCore(Options options, std::vector<SocketAddress> rails)
    : options_(std::move(options)),
      rails_(std::move(rails)),
      boot_id_(transport::bootId()),
      node_(nodeName(options_.node)) {
  for (uint32_t i = 0; i < ioThreads(options_); ++i) {
    reactors_.push_back(std::make_unique<Reactor>());
    reactor_list_.push_back(reactors_.back().get());
  }
}

EndpointCore::~EndpointCore() {
  std::vector<std::shared_ptr<LinkCore>> links;
  {
    std::lock_guard lock(mutex_);
    going_ = true;
    for (auto& [id, weak] : links_) {
      if (auto link = weak.lock()) links.push_back(std::move(link));
    }
  }
  for (auto& link : links) link->close("the endpoint is closed");
  for (auto& link : links) {
    while (link->state() != LinkState::kDown)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Links hold the queue itself; what the program holds is a handle, whose end tells the queue.
QueuePtr EndpointCore::makeQueue() {
  auto queue = std::make_shared<EventQueue>(options_.spin_us);
  EventQueue* const handle = queue.get();
  return {handle, [queue = std::move(queue)](EventQueue*) { queue->abandon(); }};
}

Result<LinkPtr> EndpointCore::connect(const std::string& address, const ConnectOptions& options) {
  return connectLink(*this, address, options);
}

Result<std::unique_ptr<Listener>> EndpointCore::listen(const std::string& address, AcceptFn accept,
                                                       RoutesPtr routes) {
  return makeAcceptor(*this, address, std::move(accept), std::move(routes));
}

Result<std::unique_ptr<Listener>> EndpointCore::listenBehind(base::UniqueFd socket,
                                                             AcceptFn accept) {
  return makeAcceptorBehind(*this, std::move(socket), std::move(accept));
}

void EndpointCore::sweep() {
  std::erase_if(links_, [](auto& item) {
    const auto link = item.second.lock();
    return !link || link->state() == LinkState::kDown;
  });
}

bool EndpointCore::reserveLink() {
  std::lock_guard lock(mutex_);
  if (links_.size() + reserved_ >= options_.limits.links) sweep();
  if (going_ || links_.size() + reserved_ >= options_.limits.links) return false;
  ++reserved_;
  return true;
}

void EndpointCore::releaseLink() {
  std::lock_guard lock(mutex_);
  --reserved_;
}

void EndpointCore::addLink(const std::shared_ptr<LinkCore>& link) {
  bool late = false;
  {
    std::lock_guard lock(mutex_);
    --reserved_;
    sweep();
    links_[parseLinkId(link->id())] = link;
    late = going_;
  }
  const PeerInfo& peer = link->peer();
  base::log(linkLogLevel(), "link %s to %s at %s is up: %s", link->id().c_str(), peer.node.c_str(),
            peer.address.c_str(), peer.why.c_str());
  if (late) link->close("the endpoint is closed");
}

Unread::OfKeyPtr EndpointCore::unreadOf(const std::string& key_name) {
  std::lock_guard lock(mutex_);
  auto& of_key = unread_[key_name];
  if (!of_key) of_key = std::make_shared<Unread::OfKey>();
  return of_key;
}

std::shared_ptr<LinkCore> EndpointCore::findLink(const LinkId& id) {
  std::lock_guard lock(mutex_);
  const auto found = links_.find(id);
  return found == links_.end() ? nullptr : found->second.lock();
}

wire::Hello EndpointCore::hello() const {
  wire::Hello hello;
  hello.version = options_.versions.oldest;
  hello.newest = options_.versions.newest;
  hello.tls = static_cast<uint8_t>(options_.tls);
  hello.kinds = allowedBy(options_.choice).bits();
  hello.lanes = static_cast<uint8_t>(options_.lanes);
  hello.message_bytes = options_.limits.message_bytes;
  hello.slices = options_.limits.slices;
  hello.requests = options_.requests;
  hello.notices = options_.notices;
  hello.stream = options_.stream;
  hello.rails = static_cast<uint8_t>(rails_.size());
  hello.uid = geteuid();
  setText(hello.boot_id, boot_id_);
  setText(hello.node, node_);
  return hello;
}

std::optional<uint8_t> agreedVersion(const Versions& own, uint8_t oldest, uint8_t newest) {
  const uint8_t agreed = std::min(own.newest, std::max(oldest, newest));
  if (agreed < std::max(own.oldest, oldest)) return std::nullopt;
  return agreed;
}

std::string versionsText(uint8_t oldest, uint8_t newest) {
  if (newest <= oldest) return base::format("version {}", oldest);
  return base::format("versions {} to {}", oldest, newest);
}

std::string checkHello(wire::Hello& hello) {
  if (hello.tls > static_cast<uint8_t>(Tls::kAll)) return base::format("unknown tls {}", hello.tls);
  if (hello.lanes == 0 || hello.lanes > wire::kMaxLanes)
    return base::format("{} lanes", hello.lanes);
  if (hello.rails > kMostRails) return base::format("{} rails", hello.rails);
  if (hello.message_bytes < 64 || hello.slices == 0) return "limits that leave no room";
  if (std::max({hello.requests, hello.notices, hello.stream}) > wire::kMaxRoom)
    return "room for more messages than any has";
  hello.message_bytes = std::min(hello.message_bytes, wire::kMaxMessage);
  cleanText(hello.boot_id);
  cleanText(hello.node);
  cleanText(hello.unix_path);
  return "";
}

Tls effectiveTls(const wire::Hello& hello, const Options& options) {
  if (!options.keys) return Tls::kOff;
  return std::max(static_cast<Tls>(hello.tls), options.tls);
}

Result<LinkSecrets> deriveSecrets(const Stream& control, const wire::Hello& acceptor) {
  LinkSecrets secrets;
  if (control.tls() == nullptr) {
    std::memcpy(secrets.ticket.data(), acceptor.secret, sizeof acceptor.secret);
    return secrets;
  }
  auto ticket = control.tls()->exportSecret("EXPORTER-olpager-ticket", acceptor.link_id);
  auto lane = control.tls()->exportSecret("EXPORTER-olpager-lane", acceptor.link_id);
  if (!ticket.ok()) return ticket.error();
  if (!lane.ok()) return lane.error();
  secrets.ticket = ticket.value();
  secrets.lane = lane.value();
  return secrets;
}

wire::Ticket makeTicket(const LinkSecrets& secrets, const LinkId& id, uint32_t index,
                        uint32_t rails) {
  wire::Ticket ticket;
  std::copy(id.begin(), id.end(), ticket.link_id);
  ticket.index = index;
  ticket.rails = rails;
  randomBytes(ticket.nonce);
  const Secret proof = mac(secrets.ticket, bytesOf(ticket, offsetof(wire::Ticket, mac)));
  std::copy(proof.begin(), proof.end(), ticket.mac);
  return ticket;
}

bool checkTicket(const LinkSecrets& secrets, const wire::Ticket& ticket) {
  return sameSecret(mac(secrets.ticket, bytesOf(ticket, offsetof(wire::Ticket, mac))), ticket.mac);
}

wire::TicketReply answerTicket(const LinkSecrets& secrets, const wire::Ticket& ticket) {
  constexpr uint8_t kReply[] = {'r', 'e', 'p', 'l', 'y'};
  wire::TicketReply reply;
  const Secret proof = mac(secrets.ticket, kReply, bytesOf(ticket));
  std::copy(proof.begin(), proof.end(), reply.mac);
  return reply;
}

std::string laneIdentity(const wire::Ticket& ticket) {
  return base::format("lane-{}", ticket.index);
}

LinkId linkIdOf(const uint8_t (&bytes)[16]) {
  LinkId id;
  std::copy(std::begin(bytes), std::end(bytes), id.begin());
  return id;
}

LinkId parseLinkId(const std::string& text) {
  LinkId id{};
  if (text.size() != 2 * id.size()) return id;
  for (size_t i = 0; i < id.size(); ++i) {
    id[i] = static_cast<uint8_t>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return id;
}

std::string describeLink(const PeerInfo& peer, uint32_t lanes, size_t rails) {
  const char* const kTls[] = {"nothing encrypted", "messages encrypted", "everything encrypted"};
  const std::string trust =
      peer.key_name.empty() ? "no key" : base::format("key {}", peer.key_name);
  if (peer.kind == LinkKind::kShm) return base::format("shm, {}", trust);
  const char* const encrypted = kTls[static_cast<size_t>(peer.tls)];
  if (peer.kind == LinkKind::kVerbs) {
    const std::string over = rails > 1 ? base::format(" over {} rails", rails) : "";
    return base::format("verbs{}, {}, {}", over, trust, encrypted);
  }
  return base::format("tcp with {} lanes, {}, {}", lanes, trust, encrypted);
}

Result<std::unique_ptr<Endpoint>> makeEndpoint(const Options& options) {
  if (options.lanes == 0 || options.lanes > wire::kMaxLanes) {
    return Error{
        base::format("transport: {} lanes; allowed: 1 to {}", options.lanes, wire::kMaxLanes)};
  }
  if (options.operations == 0 || options.limits.message_bytes < 64 ||
      options.limits.message_bytes > wire::kMaxMessage || options.limits.slices < 16 ||
      options.notices == 0 || options.requests == 0 || options.stream == 0 ||
      std::max({options.requests, options.notices, options.stream}) > wire::kMaxRoom) {
    return Error{"transport: a limit that leaves no room, or gives more than there can be"};
  }
  if (options.rails.size() > kMostRails) {
    return Error{
        base::format("rails: {} addresses; allowed: {} at most", options.rails.size(), kMostRails)};
  }
  std::vector<SocketAddress> rails;
  for (const std::string& each : options.rails) {
    auto address = numericAddress(each);
    if (!address.ok()) return Error{"rails: " + address.error().message};
    rails.push_back(address.value());
  }
  if (!rails.empty()) {
    if (options.choice == Choice::kTcp || options.choice == Choice::kShm) {
      base::warnOnce("rails", "rails: of no effect with transport = %s; verbs or auto use them",
                     options.choice == Choice::kTcp ? "tcp" : "shm");
    } else if (options.tls == Tls::kAll) {
      base::warnOnce("rails",
                     "rails: of no effect with tls = all, which RDMA can't; control or off let it");
    }
  }
  return std::unique_ptr<Endpoint>(std::make_unique<EndpointCore>(options, std::move(rails)));
}

}  // namespace olpager::transport
