#include "tests/unit/transport/rig.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>

#include "coherence/transport/core/address.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/core/endpoint.h"
#include "coherence/transport/trust/tls.h"

// The sanitizer notes what sendmsg reads when it has returned; by then the peer may have answered
// and the memory be in other use. That the answer comes after the bytes were read is out of its
// sight: it goes through the network.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:olpager::transport::Stream::write\n";
}

namespace olpager::transport::test {

Buffer::Buffer(uint64_t bytes, bool shared) : length(bytes) {
  if (shared) {
    fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(fd, static_cast<off_t>(length)) == 0);
    REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  }
  void* got = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                   shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
  REQUIRE(got != MAP_FAILED);
  base = static_cast<std::byte*>(got);
}

Buffer::~Buffer() {
  munmap(base, length);
  if (fd >= 0) close(fd);
}

std::byte Buffer::patternAt(uint64_t seed, uint64_t offset) {
  const uint64_t mixed = (seed * 0x9e3779b97f4a7c15ull + (offset >> 3)) * 0xd6e8feb86659fd93ull;
  return static_cast<std::byte>(mixed >> (8 + (offset & 7) * 6));
}

void Buffer::fill(uint64_t seed) {
  for (uint64_t i = 0; i < length; ++i) base[i] = patternAt(seed, i);
}

bool Buffer::holds(uint64_t seed, uint64_t offset, uint64_t count) const {
  for (uint64_t i = offset; i < offset + count; ++i) {
    if (base[i] != patternAt(seed, i)) return false;
  }
  return true;
}

Side::Side(const Options& options) {
  auto made = makeEndpoint(options);
  REQUIRE(made.ok());
  endpoint = std::move(made.value());
  queue = endpoint->makeQueue();
}

RegionPtr Side::add(const Buffer& buffer, uint32_t access) {
  auto region = registerMemory(domain, buffer.memory(), access);
  REQUIRE(region.ok());
  return std::move(region.value());
}

std::optional<Completion> Side::next(std::chrono::microseconds timeout) {
  if (!early.empty()) {
    Completion first = std::move(early.front());
    early.pop_front();
    return first;
  }
  Completion one;
  if (queue->wait({&one, 1}, timeout) == 0) return std::nullopt;
  return one;
}

Completion Side::await(Kind kind, std::chrono::microseconds timeout) {
  for (auto each = early.begin(); each != early.end(); ++each) {
    if (each->kind != kind) continue;
    Completion found = std::move(*each);
    early.erase(each);
    return found;
  }
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        end - std::chrono::steady_clock::now());
    Completion one;
    const bool got = left.count() > 0 && queue->wait({&one, 1}, left) != 0;
    INFO("waiting for a completion of kind " << static_cast<int>(kind));
    REQUIRE(got);
    if (one.kind == kind) return one;
    early.push_back(std::move(one));
  }
}

namespace {

const char* cardAddress() {
  const char* const address = std::getenv("OL_TEST_RDMA_ADDRESS");
  return address == nullptr ? "" : address;
}

}  // namespace

bool haveCard() { return *cardAddress() != '\0'; }

std::string addressFor(const Options& options) {
  return (options.choice == Choice::kVerbs ? cardAddress() : std::string("127.0.0.1")) + ":0";
}

Options optionsFor(Choice choice) {
  Options options;
  options.choice = choice;
  if (choice == Choice::kVerbs) {
    Secret secret{};
    secret.fill(0x5a);
    options.keys = std::make_shared<KeyRing>(std::vector{NamedKey{"test", secret}});
    options.tls = Tls::kOff;
    // A virtual machine's processors may be interpreted, on a machine that is busy.
    options.connect_ms = options.limits.handshake_ms = 20000;
  }
  return options;
}

Options anyThreads(Choice choice) {
  Options options = optionsFor(choice);
  options.io_threads = GENERATE(0u, 6u);
  return options;
}

Pair::Pair(const Options& server_options, const Options& client_options)
    : server(server_options), client(client_options) {
  auto listening = server.endpoint->listen(addressFor(server_options),
                                           [this](const PeerInfo&) -> Result<Accepted> {
                                             return Accepted{server.domain, server.queue};
                                           });
  if (!listening.ok()) FAIL(listening.error().message);
  listener = std::move(listening.value());
  up = connect();
  peer = server.await(Kind::kUp).link;
  REQUIRE(peer->id() == up->id());
}

Pair::~Pair() {
  listener.reset();
  server.early.clear();
  client.early.clear();
}

LinkPtr Pair::connect(const std::string& replaces) {
  auto link =
      client.endpoint->connect(listener->address(), {client.domain, client.queue, replaces});
  if (!link.ok()) FAIL(link.error().message);
  return link.value();
}

namespace {

base::UniqueFd connectBlocking(const SocketAddress& to, int receive_buffer = 0) {
  base::UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (receive_buffer != 0)
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  REQUIRE(connect(fd.get(), to.get(), to.length) == 0);
  return fd;
}

// Opens a link without a key; the acceptor's Hello.
wire::Hello sayHello(const base::UniqueFd& fd, const wire::Hello& own,
                     std::chrono::milliseconds pause = {}) {
  const wire::Preamble preamble;
  REQUIRE(send(fd.get(), &preamble, sizeof preamble, MSG_NOSIGNAL) == sizeof preamble);
  std::this_thread::sleep_for(pause);
  struct {
    wire::Header header;
    wire::Hello hello;
  } opening;
  opening.header.frame = wire::Frame::kHello;
  opening.header.length = sizeof opening.hello;
  opening.hello = own;
  REQUIRE(send(fd.get(), &opening, sizeof opening, MSG_NOSIGNAL) == sizeof opening);
  wire::Header header;
  wire::Hello theirs;
  REQUIRE(recv(fd.get(), &header, sizeof header, MSG_WAITALL) == sizeof header);
  REQUIRE(recv(fd.get(), &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
  return theirs;
}

// Makes the connection the first lane of the link with that Hello.
void showTicket(const base::UniqueFd& fd, const wire::Hello& hello) {
  struct {
    wire::Preamble preamble;
    wire::Ticket ticket;
  } opening;
  opening.preamble.kind = wire::Preamble::Kind::kLane;
  opening.ticket = makeTicket(deriveSecrets(Stream(), hello).value(), linkIdOf(hello.link_id), 0);
  REQUIRE(send(fd.get(), &opening, sizeof opening, MSG_NOSIGNAL) == sizeof opening);
  wire::TicketReply reply;
  REQUIRE(recv(fd.get(), &reply, sizeof reply, MSG_WAITALL) == sizeof reply);
}

}  // namespace

RawPeer::RawPeer(const std::string& address, int receive_buffer, std::chrono::milliseconds pause) {
  const auto to = resolve(address, false).value().front();
  wire::Hello own;
  own.lanes = 1;
  own.kinds = Kinds{LinkKind::kTcp}.bits();
  own.message_bytes = 4096;
  own.slices = own.requests = own.notices = own.stream = 16;
  control = connectBlocking(to, receive_buffer);
  hello = sayHello(control, own, pause);
  std::this_thread::sleep_for(pause);
  lane = connectBlocking(to, receive_buffer);
  showTicket(lane, hello);
  wire::Header header;
  REQUIRE(recv(control.get(), &header, sizeof header, MSG_WAITALL) == sizeof header);
  REQUIRE(header.frame == wire::Frame::kReady);
}

RawAcceptor::RawAcceptor(std::function<void(wire::Hello&)> change)
    : listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  SocketAddress at = resolve("127.0.0.1:0", true).value().front();
  REQUIRE(bind(listener.get(), at.get(), at.length) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  address = localAddress(listener.get()).text();
  thread = std::thread([this, change = std::move(change)] {
    const base::UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    struct {
      wire::Preamble preamble;
      wire::Header header;
      wire::Hello hello;
    } opening;
    if (recv(fd.get(), &opening, sizeof opening, MSG_WAITALL) != sizeof opening) return;
    change(opening.hello);
    constexpr size_t kAnswer = sizeof opening.header + sizeof opening.hello;
    (void)!send(fd.get(), &opening.header, kAnswer, MSG_NOSIGNAL);
    char byte = 0;
    while (recv(fd.get(), &byte, 1, 0) > 0) {
    }
  });
}

RawShmPeer::RawShmPeer(const std::string& address) {
  const base::UniqueFd first = connectBlocking(resolve(address, false).value().front());
  const wire::Hello hello = sayHello(first, EndpointCore(optionsFor(Choice::kShm)).hello());
  socket = connectBlocking(unixAddress(hello.unix_path).value());
  showTicket(socket, hello);
  uint32_t offer[2] = {};  // the version, the message length that the rings are made for
  base::UniqueFd fds[3];
  REQUIRE(waitFor(socket.get(), POLLIN, nowMs() + 5000));
  REQUIRE(receiveWithFds(socket.get(), offer, sizeof offer, fds, 3) == sizeof offer);
  auto opened = Channel::open(std::move(fds[0]), std::move(fds[1]), std::move(fds[2]), offer[1]);
  if (!opened.ok()) FAIL(opened.error().message);
  channel = std::move(opened.value());
}

namespace {

bool moveAll(Stream& stream, void* bytes, size_t length, bool out) {
  for (size_t done = 0; done < length;) {
    const iovec part{static_cast<char*>(bytes) + done, length - done};
    const ssize_t moved = out ? stream.write(&part, 1) : stream.read(&part, 1);
    if (moved > 0) {
      done += static_cast<size_t>(moved);
    } else if (moved != -EAGAIN ||
               !waitFor(stream.fd(), out ? POLLOUT : POLLIN, nowMs() + kLong.count() * 1000)) {
      return false;
    }
  }
  return true;
}

template <typename T>
T need(Result<T> result) {
  if (!result.ok()) FAIL(result.error().message);
  return std::move(result.value());
}

}  // namespace

RawVerbsPeer::RawVerbsPeer(const std::string& address) {
  const Options options = optionsFor(Choice::kVerbs);
  const auto to = resolve(address, false).value().front();
  const Patience patience{nowMs() + kLong.count() * 1000};
  const NamedKey& key = options.keys->own();
  control = Stream(need(connectSocket(to, patience)), nullptr);
  wire::Preamble preamble;
  preamble.kind = wire::Preamble::Kind::kTlsLink;
  REQUIRE(moveAll(control, &preamble, sizeof preamble, true));
  auto session = need(TlsSession::client(control.fd(), key.name, key.secret));
  for (auto step = session->handshake(); step != TlsSession::Step::kDone;
       step = session->handshake()) {
    REQUIRE(step != TlsSession::Step::kFailed);
    REQUIRE(waitFor(control.fd(), step == TlsSession::Step::kRead ? POLLIN : POLLOUT,
                    patience.until()));
  }
  control.startTls(std::move(session));
  wire::Hello own;
  own.lanes = 1;
  own.kinds = Kinds{LinkKind::kVerbs}.bits();
  own.message_bytes = 4096;
  own.slices = own.requests = own.notices = own.stream = 16;
  wire::Header header;
  header.frame = wire::Frame::kHello;
  header.length = sizeof own;
  REQUIRE(moveAll(control, &header, sizeof header, true));
  REQUIRE(moveAll(control, &own, sizeof own, true));
  wire::Hello theirs;
  REQUIRE(moveAll(control, &header, sizeof header, false));
  REQUIRE(header.frame == wire::Frame::kHello);
  REQUIRE(moveAll(control, &theirs, sizeof theirs, false));
  const LinkSecrets secrets = need(deriveSecrets(control, theirs));
  const LinkId id = linkIdOf(theirs.link_id);
  control.endTls();
  pairs = std::make_unique<verbs::QueuePairs>(*verbs::api(), domain, options.dead_ms, Tls::kOff);
  const auto connected = pairs->connect(localAddress(control.fd()),
                                        withPort(to, theirs.rail[0].port), secrets, id, patience);
  if (!connected.ok()) FAIL(connected.error().message);
  pairs->messages()->settle();
  lane = Stream(need(connectSocket(to, patience)), nullptr);
  preamble.kind = wire::Preamble::Kind::kLane;
  wire::Ticket ticket = makeTicket(secrets, id, 0, 1);
  wire::TicketReply reply;
  REQUIRE(moveAll(lane, &preamble, sizeof preamble, true));
  REQUIRE(moveAll(lane, &ticket, sizeof ticket, true));
  REQUIRE(moveAll(lane, &reply, sizeof reply, false));
  REQUIRE(moveAll(control, &header, sizeof header, false));
  REQUIRE(header.frame == wire::Frame::kReady);
  region = need(registerMemory(domain, memory.memory(), kLocalOnly));
}

bool RawVerbsPeer::say(const wire::Header& header, std::span<const std::byte> payload) {
  wire::Header copy = header;
  std::vector<std::byte> bytes(payload.begin(), payload.end());
  return moveAll(control, &copy, sizeof copy, true) &&
         moveAll(control, bytes.data(), bytes.size(), true);
}

wire::Reach RawVerbsPeer::reach(uint64_t key) {
  wire::Header header;
  header.frame = wire::Frame::kReach;
  header.key = key;
  REQUIRE(say(header, {}));
  while (header.frame != wire::Frame::kReached) {
    REQUIRE(moveAll(control, &header, sizeof header, false));
    if (header.frame == wire::Frame::kReached) break;
    std::vector<std::byte> other(header.length);  // a ping
    REQUIRE(moveAll(control, other.data(), other.size(), false));
  }
  wire::Reach reach;
  REQUIRE(header.length == sizeof reach);
  REQUIRE(moveAll(control, &reach, sizeof reach, false));
  return reach;
}

ibv_wc_status RawVerbsPeer::move(Class klass, ibv_wr_opcode how, uint64_t address, uint32_t rkey,
                                 uint32_t bytes) {
  const auto* const known = verbs::CardDomain::known(*region->entry(), pairs->card());
  REQUIRE(known != nullptr);
  ibv_sge place{known->address(), bytes, known->lkey()};
  ibv_send_wr request{}, *refused = nullptr;
  request.sg_list = &place;
  request.num_sge = 1;
  request.opcode = how;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = rkey;
  REQUIRE(ibv_post_send(pairs->of(klass), &request, &refused) == 0);
  ibv_wc done{};
  for (const int64_t until = nowMs() + kLong.count() * 1000; nowMs() < until;) {
    if (ibv_poll_cq(pairs->completions(), 1, &done) == 1) return done.status;
    std::this_thread::sleep_for(100us);
  }
  FAIL("a request that does not end");
  return done.status;
}

void limitSending(const base::UniqueFd& to, int bytes) {
  sockaddr_storage here{}, there{};
  socklen_t here_length = sizeof here;
  REQUIRE(getsockname(to.get(), reinterpret_cast<sockaddr*>(&here), &here_length) == 0);
  bool found = false;
  for (int fd = 0; fd < 4096 && !found; ++fd) {
    socklen_t length = sizeof there;
    found = fd != to.get() && getpeername(fd, reinterpret_cast<sockaddr*>(&there), &length) == 0 &&
            length == here_length && std::memcmp(&here, &there, length) == 0;
    if (found) REQUIRE(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
  }
  REQUIRE(found);
}

std::vector<std::byte> bytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string textOf(const Message& message) {
  return {reinterpret_cast<const char*>(message.bytes().data()), message.bytes().size()};
}

RemoteRange whole(const RegionPtr& region) { return {region->key(), 0, region->length()}; }
LocalRange wholeLocal(const RegionPtr& region) { return {region.get(), 0, region->length()}; }

int scaled(int rounds) {
  const char* given = std::getenv("OL_TEST_SCALE");
  const double scale = given == nullptr ? 1 : std::atof(given);
  return scale > 0 ? std::max(1, static_cast<int>(rounds * scale)) : rounds;
}

std::mt19937_64 seededRandom(const char* test) {
  const char* given = std::getenv("OL_TEST_SEED");
  const uint64_t seed =
      given != nullptr && *given != '\0' ? std::strtoull(given, nullptr, 0) : 20240611;
  std::cout << test << ": OL_TEST_SEED=" << seed << "\n";
  return std::mt19937_64(seed);
}

}  // namespace olpager::transport::test
