#include "tests/fuzz/rig/transport_victim.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/routes.h"

namespace olpager::transport::fuzz {
namespace {

constexpr int kStuckMs = 60'000;

[[noreturn]] void stuck(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void must(bool fine, const char* what) {
  if (!fine) {
    std::perror(what);
    std::_Exit(1);  // the machine's fault, not the input's
  }
}

bool ready(int fd, short events) {
  pollfd waiting{fd, events, 0};
  return poll(&waiting, 1, kStuckMs) > 0;
}

}  // namespace

Victim::Victim(bool keyed, bool behind) : domain_(makeDomain()), memory_(256 << 10) {
  base::setLogLevel(base::LogLevel::kOff);
  Options options;
  options.io_threads = 1;
  options.limits.handshakes_per_second = 1'000'000;
  options.limits.handshake_ms = 2000;
  if (keyed) {
    NamedKey key;
    key.name = "fuzz";
    key.secret.fill(7);
    options.keys = std::make_shared<KeyRing>(std::vector<NamedKey>{key});
  }
  auto endpoint = makeEndpoint(options);
  must(endpoint.ok(), "endpoint");
  endpoint_ = std::move(endpoint.value());
  queue_ = endpoint_->makeQueue();
  auto region = registerMemory(domain_, {memory_.data(), memory_.size(), -1, 0}, kRemoteReadWrite);
  must(region.ok(), "region");
  region_ = std::move(region.value());
  key_ = region_->key();
  const auto accept = [this](const PeerInfo&) -> Result<Accepted> {
    return Accepted{domain_, queue_};
  };
  std::string address;
  if (behind) {
    auto front = makeEndpoint(options);
    auto sockets = makeHandoverSockets();
    must(front.ok() && sockets.ok(), "front");
    front_ = std::move(front.value());
    const auto routes = std::make_shared<Routes>();
    routes->add(kRoute, std::move(sockets.value().from));
    auto outside = front_->listen(
        "127.0.0.1:0",
        [](const PeerInfo&) -> Result<Accepted> { return Error{"nobody comes here"}; }, routes);
    auto listener = endpoint_->listenBehind(std::move(sockets.value().to), accept);
    must(outside.ok() && listener.ok(), "listen");
    front_listener_ = std::move(outside.value());
    listener_ = std::move(listener.value());
    address = front_listener_->address();
  } else {
    auto listener = endpoint_->listen("127.0.0.1:0", accept);
    must(listener.ok(), "listen");
    listener_ = std::move(listener.value());
    address = listener_->address();
  }
  port_ = static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

void Victim::settle() {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::milliseconds(kStuckMs);
  for (;;) {
    Completion one;
    const bool open = accepted_ != down_;
    if (queue_->wait({&one, 1},
                     open ? std::chrono::milliseconds(100) : std::chrono::milliseconds(0)) == 0) {
      if (!open) return;
      if (Clock::now() > until) stuck("a link does not end although its peer has gone");
      continue;
    }
    if (one.kind == Completion::Kind::kUp) ++accepted_;
    if (one.kind == Completion::Kind::kDown) ++down_;
  }
}

base::UniqueFd connectTo(const Victim& victim) {
  static uint32_t next = 0;
  base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(0x7f010001 + next++ % 0xfe0000);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(victim.port());
  must(bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from) == 0, "bind");
  must(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0, "connect");
  return fd;
}

void say(int fd, Bytes bytes) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  bool told = false;
  for (size_t done = 0;;) {
    if (!told && done == bytes.size()) {
      shutdown(fd, SHUT_WR);
      told = true;
    }
    if (!ready(fd, static_cast<short>(told ? POLLIN : POLLIN | POLLOUT)))
      stuck("a connection is neither served nor closed");
    if (!told) {
      const ssize_t put = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (put > 0) done += static_cast<size_t>(put);
      if (put < 0 && errno != EAGAIN) done = bytes.size();
    }
    char heard[4096];
    const ssize_t got = recv(fd, heard, sizeof heard, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return;
  }
}

void sayExactly(int fd, const void* bytes, size_t length) {
  for (size_t done = 0; done < length;) {
    const ssize_t put =
        send(fd, static_cast<const char*>(bytes) + done, length - done, MSG_NOSIGNAL);
    if (put <= 0) return;
    done += static_cast<size_t>(put);
  }
}

bool hear(int fd, void* bytes, size_t length) {
  for (size_t done = 0; done < length;) {
    if (!ready(fd, POLLIN)) stuck("an honest peer gets no answer");
    const ssize_t got = recv(fd, static_cast<char*>(bytes) + done, length - done, 0);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

Peer::Peer(const Victim& victim, bool shared) : control(connectTo(victim)) {
  struct {
    wire::Preamble preamble;
    wire::Header header;
    wire::Hello hello;
  } out;
  static EndpointCore* const self = [] {
    Options options;
    options.io_threads = 1;
    return new EndpointCore(options);  // for what an endpoint says of itself
  }();
  out.hello = self->hello();
  out.hello.lanes = 1;
  out.hello.kinds = Kinds{shared ? LinkKind::kShm : LinkKind::kTcp}.bits();
  out.header.frame = wire::Frame::kHello;
  out.header.length = sizeof out.hello;
  sayExactly(control.get(), &out, sizeof out);
  wire::Header header;
  if (!hear(control.get(), &header, sizeof header) || header.frame != wire::Frame::kHello ||
      !hear(control.get(), &hello, sizeof hello) || !checkHello(hello).empty())
    return;
  auto derived = deriveSecrets(Stream(), hello);
  if (!derived.ok()) return;
  secrets = derived.value();
  id = linkIdOf(hello.link_id);
  if (!shared) {
    lane = connectTo(victim);
    wire::Preamble preamble;
    preamble.kind = wire::Preamble::Kind::kLane;
    const wire::Ticket ticket = makeTicket(secrets, id, 0);
    wire::TicketReply reply;
    sayExactly(lane.get(), &preamble, sizeof preamble);
    sayExactly(lane.get(), &ticket, sizeof ticket);
    up = hear(lane.get(), &reply, sizeof reply) && hear(control.get(), &header, sizeof header) &&
         header.frame == wire::Frame::kReady;
    return;
  }
  const auto address = unixAddress(hello.unix_path);
  if (!address.ok()) return;
  const base::UniqueFd first =
      std::move(control);  // until the link is up: its end would be the attempt's
  control = base::UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(control.get(), address.value().get(), address.value().length) != 0) return;
  struct {
    wire::Preamble preamble;
    wire::Ticket ticket;
  } opening;
  opening.preamble.kind = wire::Preamble::Kind::kLane;
  opening.ticket = makeTicket(secrets, id, 0);
  sayExactly(control.get(), &opening, sizeof opening);
  wire::TicketReply reply;
  uint32_t offer[2] = {};
  base::UniqueFd fds[3];
  if (!hear(control.get(), &reply, sizeof reply) || !ready(control.get(), POLLIN) ||
      receiveWithFds(control.get(), offer, sizeof offer, fds, 3) != sizeof offer)
    return;
  auto opened = Channel::open(std::move(fds[0]), std::move(fds[1]), std::move(fds[2]), offer[1]);
  if (!opened.ok()) return;
  channel = std::move(opened.value());
  up = true;
}

void forFrames(Bytes data, const RemoteKey& key,
               const std::function<void(std::vector<uint8_t>& frame)>& each) {
  constexpr uint64_t kGranted = 0x4141414141414141;
  while (!data.empty()) {
    wire::Header header;
    std::memcpy(static_cast<void*>(&header), data.data(), std::min(data.size(), sizeof header));
    const size_t length =
        std::min(data.size(), sizeof header + std::min<size_t>(header.length, 1 << 20));
    std::vector<uint8_t> frame(data.begin(), data.begin() + static_cast<ptrdiff_t>(length));
    if (frame.size() >= sizeof header) {
      header.format ^=
          wire::kFormat;  // 0 in the input is this format: few inputs end at the first check
      if (header.key == kGranted) header.key = key.key;
      std::memcpy(frame.data(), &header, sizeof header);
    }
    each(frame);
    data = data.subspan(length);
  }
}

}  // namespace olpager::transport::fuzz
