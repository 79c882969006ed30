// Several listeners behind one address: whom a connection goes to, and that nobody is held up by
// who comes for another.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <thread>

#include "coherence/transport/core/endpoint.h"
#include "coherence/transport/routes.h"
#include "tests/temporary_folder.h"
#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

namespace {

constexpr uint64_t kFirst = 0x1111, kSecond = 0x2222;

Options with(uint8_t key, Choice choice = Choice::kTcp) {
  Options options = optionsFor(choice);
  NamedKey named;
  named.name = "k";
  named.secret.fill(key);
  options.keys = std::make_shared<const KeyRing>(std::vector{named});
  options.connect_ms = 3000;
  return options;
}

AcceptFn into(const Side& side) {
  return [&side](const PeerInfo&) -> Result<Accepted> { return Accepted{side.domain, side.queue}; };
}

/// Listens behind a front.
struct Behind {
  Behind(const Options& options, Routes& routes, uint64_t route) : side(options) {
    auto sockets = makeHandoverSockets();
    REQUIRE(sockets.ok());
    routes.add(route, std::move(sockets.value().from));
    auto listening = side.endpoint->listenBehind(std::move(sockets.value().to), into(side));
    REQUIRE(listening.ok());
    listener = std::move(listening.value());
  }
  Side side;
  std::unique_ptr<Listener> listener;
};

/// Has the address, with a key of its own, and two behind it with other keys.
struct Front {
  explicit Front(const std::string& address = "127.0.0.1:0", Choice choice = Choice::kTcp)
      : side(with(1)),
        first(with(2, choice), *routes, kFirst),
        second(with(3, choice), *routes, kSecond) {
    auto listening = side.endpoint->listen(address, into(side), routes);
    REQUIRE(listening.ok());
    listener = std::move(listening.value());
  }
  Result<LinkPtr> connect(Side& client, uint64_t route) const {
    return client.endpoint->connect(listener->address(), {client.domain, client.queue, "", route});
  }
  /// "": a link with that key comes to `at`, and carries a message; else why not.
  std::string tryTo(uint8_t key, uint64_t route, Side& at, Choice choice = Choice::kTcp) const {
    Side client(with(key, choice));
    auto link = connect(client, route);
    if (!link.ok()) return link.error().message;
    REQUIRE(link.value()->send(MessageClass::kNotice, bytesOf("hello")) == Outcome::kOk);
    REQUIRE(textOf(at.await(Kind::kMessage).message) == "hello");
    link.value()->close("done");
    client.await(Kind::kDown);
    at.await(Kind::kDown);
    at.early.clear();
    return "";
  }
  const RoutesPtr routes = std::make_shared<Routes>();
  Side side;
  Behind first, second;
  std::unique_ptr<Listener> listener;
};

/// A connection that begins a link, or a lane, by that route, and says nothing more.
base::UniqueFd begun(const SocketAddress& to, uint64_t route, wire::Preamble::Kind kind) {
  base::UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const linger now{1, 0};  // else the ports are used up
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  if (connect(fd.get(), to.get(), to.length) != 0) return {};
  wire::Preamble preamble;
  preamble.kind = kind;
  preamble.route = route;
  (void)!send(fd.get(), &preamble, sizeof preamble, MSG_NOSIGNAL);
  return fd;
}

bool closes(const base::UniqueFd& fd) {
  char bytes[512];
  while (waitFor(fd.get(), POLLIN, nowMs() + 10'000)) {
    if (recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT) <= 0) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("behind one address each is reached by its route, with all lanes and with its own key",
          "[routes]") {
  const auto choice = GENERATE(Choice::kTcp, Choice::kShm);
  const bool unix_socket = GENERATE(false, true);
  const olpager::test::TemporaryFolder folder;
  Front front(unix_socket ? "unix:" + folder.path + "/front.sock" : "127.0.0.1:0", choice);
  CHECK(front.first.listener->address().empty());
  Side client(with(3, choice));
  auto link = front.connect(client, kSecond);
  if (!link.ok()) FAIL(link.error().message);
  const Completion up = front.second.side.await(Kind::kUp);
  CHECK(up.link->peer().kind == (choice == Choice::kShm ? LinkKind::kShm : LinkKind::kTcp));
  CHECK(up.link->peer().address.starts_with(unix_socket ? "unix:" : "127.0.0.1:"));
  Buffer there(8 << 20), here(8 << 20);
  there.fill(4);
  const auto region = front.second.side.add(there, kRemoteReadWrite);
  const auto local = client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  REQUIRE(link.value()->read({&all, 1}, whole(region), Class::kDemand, 0) == Outcome::kOk);
  REQUIRE(client.await(Kind::kRead).outcome == Outcome::kOk);
  CHECK(here.holds(4, 0, here.length));
  CHECK(front.tryTo(2, kFirst, front.first.side, choice).empty());
  CHECK(front.tryTo(1, 0, front.side).empty());
  // Links that are up need neither the route nor the address any more.
  front.routes->remove(kSecond);
  front.listener.reset();
  here.fill(5);
  REQUIRE(link.value()->write({&all, 1}, whole(region), Class::kWriteBack, 0) == Outcome::kOk);
  REQUIRE(client.await(Kind::kWrite).outcome == Outcome::kOk);
  CHECK(there.holds(5, 0, there.length));
}

TEST_CASE("a route alone opens nothing", "[routes]") {
  Front front;
  const auto says = [&](uint8_t key, uint64_t route, const char* what) {
    const std::string why = front.tryTo(key, route, front.side);
    INFO(why);
    CHECK(why.find(what) != std::string::npos);
  };
  says(3, kFirst, "key of that name is another one");  // another's
  says(1, kFirst, "key of that name is another one");  // that of who has the address
  says(2, 0, "key of that name is another one");       // and the other way round
  says(2, kFirst ^ 1, "(0000000000001110) is not here");
  front.routes->remove(kFirst);
  says(2, kFirst, "is not here, or not any more");
  CHECK(front.tryTo(3, kSecond, front.second.side).empty());
  front.second.listener.reset();  // ended, and the route is still there
  says(3, kSecond, "is not here, or not any more");
  CHECK(front.tryTo(1, 0, front.side).empty());
  // A listener with nobody behind it.
  Side alone(with(1));
  const auto listener = alone.endpoint->listen("127.0.0.1:0", into(alone));
  REQUIRE(listener.ok());
  Side client(with(1));
  const auto link = client.endpoint->connect(listener.value()->address(),
                                             {client.domain, client.queue, "", kFirst});
  REQUIRE(!link.ok());
  CHECK(link.error().message.find("is not here") != std::string::npos);
}

TEST_CASE("limits of who is behind an address are its own", "[routes]") {
  const auto routes = std::make_shared<Routes>();
  Side front(with(1));
  const auto listener = front.endpoint->listen("127.0.0.1:0", into(front), routes);
  REQUIRE(listener.ok());
  Options options = with(2);
  options.limits.handshakes_per_second = 4;  // one from an address
  options.limits.handshake_ms = 300;
  Behind behind(options, *routes, kFirst);
  Side client(with(2));
  std::string told;
  for (int i = 0; i < 20 && told.empty(); ++i) {
    const auto link = client.endpoint->connect(listener.value()->address(),
                                               {client.domain, client.queue, "", kFirst});
    if (!link.ok()) told = link.error().message;
  }
  INFO(told);
  CHECK(told.find("handshakes a second from one address") != std::string::npos);
  // A peer that says no more than the route is not waited for.
  const auto to = resolve(listener.value()->address(), false).value().front();
  for (const auto kind : {wire::Preamble::Kind::kTlsLink, wire::Preamble::Kind::kLane})
    CHECK(closes(begun(to, kFirst, kind)));
}

TEST_CASE("strangers who come by a route without end keep nobody out", "[routes]") {
  const auto kind = GENERATE(wire::Preamble::Kind::kTlsLink, wire::Preamble::Kind::kLane);
  Front front;
  const auto to = resolve(front.listener->address(), false).value().front();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> opened{0};
  std::thread stranger([&] {
    std::deque<base::UniqueFd> open;
    for (uint32_t i = 0; !stop; ++i) {
      // To one that is there, and now and then to one that is not.
      open.push_back(begun(to, i % 8 == 7 ? 0x3333 : kFirst, kind));
      ++opened;
      if (open.size() > 400) open.pop_front();
      if (i % 10 == 9) std::this_thread::sleep_for(1ms);
    }
  });
  while (opened < 1000) std::this_thread::sleep_for(1ms);
  std::vector<std::string> refused;
  for (int i = 0; i < 5; ++i) {
    for (const auto& why :
         {front.tryTo(1, 0, front.side), front.tryTo(3, kSecond, front.second.side)}) {
      if (!why.empty()) refused.push_back(why);
    }
  }
  // Lanes cost nobody his turn, also by the route that they come by.
  if (kind == wire::Preamble::Kind::kLane) {
    if (const auto why = front.tryTo(2, kFirst, front.first.side); !why.empty())
      refused.push_back(why);
  }
  stop = true;
  stranger.join();
  INFO(opened << " connections; " << (refused.empty() ? "" : refused.front()));
  CHECK(refused.empty());
  CHECK(front.tryTo(3, kSecond, front.second.side).empty());
}

TEST_CASE("who does not take what is handed over to him loses it, and nobody waits", "[routes]") {
  Front front;
  auto sockets = makeHandoverSockets();
  REQUIRE(sockets.ok());
  front.routes->add(0x4444, std::move(sockets.value().from));
  const auto to = resolve(front.listener->address(), false).value().front();
  std::deque<base::UniqueFd> open;
  size_t refused = 0;
  for (int i = 0; i < 400; ++i) open.push_back(begun(to, 0x4444, wire::Preamble::Kind::kTlsLink));
  CHECK(front.tryTo(1, 0, front.side).empty());
  CHECK(front.tryTo(2, kFirst, front.first.side).empty());
  std::this_thread::sleep_for(1500ms);  // for so long they may wait
  for (const auto& fd : open) {
    wire::Header said;
    refused += recv(fd.get(), &said, sizeof said, MSG_DONTWAIT) == sizeof said &&
                       said.frame == wire::Frame::kGoodbye
                   ? 1
                   : 0;
  }
  CHECK(refused > 100);
  CHECK(refused < 400);
  // Nobody will take the others either: they end with the socket.
  sockets.value().to.reset();
  for (const auto& fd : open) CHECK(closes(fd));
}

TEST_CASE("what is no connection on the socket for them is passed over", "[routes]") {
  const auto routes = std::make_shared<Routes>();
  auto sockets = makeHandoverSockets();
  REQUIRE(sockets.ok());
  Side side(with(2));
  const auto listener = side.endpoint->listenBehind(std::move(sockets.value().to), into(side));
  REQUIRE(listener.ok());
  const int socket = sockets.value().from.get();
  wire::Preamble preamble;
  REQUIRE(send(socket, &preamble, sizeof preamble, MSG_NOSIGNAL) ==
          sizeof preamble);  // without a descriptor
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const base::UniqueFd far(ends[0]);
  base::UniqueFd near(ends[1]);
  REQUIRE(sendWithFds(socket, &preamble, 5, &ends[1], 1));  // too short
  near.reset();
  CHECK(closes(far));
  const base::UniqueFd unconnected(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      file(memfd_create("x", MFD_CLOEXEC));
  for (const int fd : {unconnected.get(), file.get()})
    REQUIRE(sendWithFds(socket, &preamble, sizeof preamble, &fd, 1));
  routes->add(kFirst, std::move(sockets.value().from));
  Side front(with(1));
  const auto at = front.endpoint->listen("127.0.0.1:0", into(front), routes);
  REQUIRE(at.ok());
  Side client(with(2));
  CHECK(client.endpoint->connect(at.value()->address(), {client.domain, client.queue, "", kFirst})
            .ok());
}
