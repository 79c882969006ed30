// Connections that are let in, and the fate of those that are not.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

#include "coherence/transport/core/endpoint.h"
#include "coherence/transport/tcp/sources.h"
#include "coherence/transport/trust/key_access.h"
#include "tests/temporary_folder.h"
#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

namespace {

std::shared_ptr<const KeyRing> ringOf(const std::vector<std::pair<std::string, uint8_t>>& keys) {
  std::vector<NamedKey> all;
  for (const auto& [name, byte] : keys) {
    NamedKey key;
    key.name = name;
    key.secret.fill(byte);
    all.push_back(key);
  }
  return std::make_shared<const KeyRing>(all);
}

Options keyed(const std::vector<std::pair<std::string, uint8_t>>& keys, Tls tls,
              Choice choice = Choice::kTcp) {
  Options options = optionsFor(choice);
  options.keys = ringOf(keys);
  options.tls = tls;
  options.connect_ms = 3000;
  return options;
}

/// A server that accepts everything, and raw sockets to it.
struct Target {
  explicit Target(const Options& options) : side(options) {
    auto listening =
        side.endpoint->listen("127.0.0.1:0", [this](const PeerInfo&) -> Result<Accepted> {
          return Accepted{side.domain, side.queue};
        });
    REQUIRE(listening.ok());
    listener = std::move(listening.value());
  }
  int connect() const {
    const auto address = resolve(listener->address(), false).value().front();
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(fd, address.get(), address.length) == 0);
    timeval limit{10, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  /// True when the server closes the connection; what it says before is thrown away.
  static bool closed(int fd) {
    char bytes[4096];
    for (;;) {
      const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
      if (got < 0) return false;
    }
  }
  /// A link that works, made and used: whatever happened before has harmed nobody.
  void works(const Options& options) {
    Side client(options);
    auto link = client.endpoint->connect(listener->address(), {client.domain, client.queue, ""});
    if (!link.ok()) FAIL(link.error().message);
    REQUIRE(link.value()->send(MessageClass::kNotice, bytesOf("hello")) == Outcome::kOk);
    REQUIRE(textOf(side.await(Kind::kMessage).message) == "hello");
    link.value()->close("done");
    client.await(Kind::kDown);
    side.await(Kind::kDown);
    side.early.clear();
  }
  Side side;
  std::unique_ptr<Listener> listener;
};

TEST_CASE("a port is a number up to 65535", "[trust]") {
  CHECK(resolve("127.0.0.1:65535", false).ok());
  for (const char* address : {"127.0.0.1:65536", "127.0.0.1:99999", "127.0.0.1:4294967297",
                              "127.0.0.1:-1", "127.0.0.1:7070:"})
    CHECK_FALSE(resolve(address, false).ok());
}

}  // namespace

TEST_CASE("whose key files are used", "[trust]") {
  constexpr uid_t kMe = 1000, kRoot = 0, kOther = 1001;
  const auto good = [](mode_t mode, uid_t owner, uid_t self) {
    return checkKeyAccess(S_IFREG | mode, owner, self, "/key").ok();
  };
  for (const mode_t mode : {0400, 0600, 0700}) {
    CHECK(good(mode, kMe, kMe));
    CHECK(good(mode, kRoot, kMe));
    CHECK(good(mode, kRoot, kRoot));
    CHECK_FALSE(good(mode, kOther, kMe));
    CHECK_FALSE(good(mode, kOther, kRoot));
  }
  // Kubernetes' secrets, systemd's credentials: root's, for a group.
  for (const mode_t mode : {0440, 0640}) {
    CHECK(good(mode, kRoot, kMe));
    CHECK_FALSE(good(mode, kMe, kMe));
    CHECK_FALSE(good(mode, kOther, kMe));
  }
  for (const mode_t mode : {0444, 0404, 0644, 0460, 0660, 0450, 0402, 0401}) {
    for (const uid_t owner : {kMe, kRoot}) CHECK_FALSE(good(mode, owner, kMe));
  }
  CHECK(checkKeyAccess(0644, kMe, kMe, "/key").error().message ==
        "key file /key: others can read or change it (mode 644); run: chmod 600 /key");
  CHECK(checkKeyAccess(0644, kRoot, kMe, "/key")
            .error()
            .message.ends_with("; run: chmod g-wx,o= /key"));
}

TEST_CASE("key files", "[trust]") {
  const olpager::test::TemporaryFolder folder;
  const std::string path = folder.path + "/key";
  REQUIRE(createKeyFile(path, "box-1").ok());
  struct stat about {};
  REQUIRE(stat(path.c_str(), &about) == 0);
  REQUIRE((about.st_mode & 07777) == 0600);
  const auto keys = loadKeys(path);
  REQUIRE(keys.ok());
  REQUIRE(keys.value()->own().name == "box-1");
  REQUIRE(keys.value()->find("box-1") == keys.value()->own().secret);
  REQUIRE(!keys.value()->find("box-2"));
  REQUIRE(!createKeyFile(path, "box-1").ok());  // never over an existing one
  REQUIRE(!createKeyFile(folder.path + "/other", "no spaces").ok());

  SECTION("readable by others") {
    for (const mode_t mode : {0604, 0644, 0602, 0660, 0620}) {
      chmod(path.c_str(), mode);
      const auto refused = loadKeys(path);
      REQUIRE(!refused.ok());
      REQUIRE(refused.error().message.find("; run: chmod ") != std::string::npos);
    }
    // Root's files, as this test may make them, may be readable for the group.
    for (const mode_t mode : {0640, 0440}) {
      chmod(path.c_str(), mode);
      REQUIRE(loadKeys(path).ok() == (geteuid() == 0));
    }
  }
  SECTION("by a link, as Kubernetes has it") {
    REQUIRE(symlink(path.c_str(), (folder.path + "/link").c_str()) == 0);
    REQUIRE(loadKeys(folder.path + "/link").ok());
  }
  SECTION("not there") {
    const std::string why = loadKeys(folder.path + "/none").error().message;
    for (const char* place :
         {"--key", "OL_KEY", "olpager.toml", "$CREDENTIALS_DIRECTORY", "olctl keygen"})
      REQUIRE(why.find(place) != std::string::npos);
  }
  SECTION("bad lines") {
    for (const char* text : {"", "name", "name:00", ":00", "na me:00", "# only a comment\n"}) {
      std::ofstream(path) << text;
      REQUIRE(!loadKeys(path).ok());
    }
    std::ofstream(path) << "a:" << std::string(64, '0') << "\na:" << std::string(64, '1') << "\n";
    REQUIRE(loadKeys(path).error().message.find(":2:") != std::string::npos);
  }
  SECTION("several") {
    std::ofstream(path) << "# keys\na:" << std::string(64, 'a') << "\n\nb:" << std::string(64, 'B')
                        << "\n";
    const auto several = loadKeys(path);
    REQUIRE(several.ok());
    REQUIRE(several.value()->size() == 2);
    REQUIRE(several.value()->find("b")->front() == 0xbb);
  }
  SECTION("no file") {
    REQUIRE(!loadKeys(folder.path + "/none").ok());
    REQUIRE(!loadKeys(folder.path).ok());
  }
}

TEST_CASE("with a key everything works at each level of encryption", "[trust]") {
  const auto level = GENERATE(Tls::kOff, Tls::kControl, Tls::kAll);
  const auto choice = GENERATE(Choice::kTcp, Choice::kShm);
  Pair pair(keyed({{"first", 1}, {"second", 2}}, level, choice),
            keyed({{"second", 2}}, Tls::kOff, choice));
  REQUIRE(pair.peer->peer().key_name == "second");
  REQUIRE(pair.up->peer().tls == level);  // the stricter of both
  Buffer there(4 << 20), here(4 << 20);
  there.fill(4);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  REQUIRE(pair.up->read({&all, 1}, whole(region), Class::kDemand, 0) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
  REQUIRE(here.holds(4, 0, here.length));
  here.fill(5);
  REQUIRE(pair.up->write({&all, 1}, whole(region), Class::kWriteBack, 0) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kWrite).outcome == Outcome::kOk);
  REQUIRE(there.holds(5, 0, there.length));
  for (int i = 0; i < 500; ++i) {
    REQUIRE(pair.up->send(MessageClass::kRequest, bytesOf(std::to_string(i))) == Outcome::kOk);
    auto asked = pair.server.await(Kind::kMessage);
    REQUIRE(textOf(asked.message) == std::to_string(i));
    REQUIRE(asked.link->send(MessageClass::kReply, asked.message.bytes()) == Outcome::kOk);
    REQUIRE(textOf(pair.client.await(Kind::kMessage).message) == std::to_string(i));
  }
}

TEST_CASE("without the right key nobody gets in", "[trust]") {
  const Options server = keyed({{"right", 1}}, Tls::kAll);
  Target target(server);
  const auto refused = [&](const Options& options) {
    Side client(options);
    return client.endpoint->connect(target.listener->address(), {client.domain, client.queue, ""});
  };
  const auto says = [&](const Options& options, const char* what) {
    const auto closed = refused(options);
    REQUIRE(!closed.ok());
    INFO(closed.error().message);
    CHECK(closed.error().message.find(what) != std::string::npos);
  };
  // Nor does he learn which names there are.
  says(keyed({{"right", 2}}, Tls::kAll), "key of that name is another one, or it has none");
  says(keyed({{"wrong", 1}}, Tls::kAll), "key of that name is another one, or it has none");
  const auto plain = refused(optionsFor(Choice::kTcp));
  REQUIRE(!plain.ok());
  REQUIRE(plain.error().message.find("key") != std::string::npos);
  target.works(server);
  // And a node with a key does not talk to one without.
  Target open(optionsFor(Choice::kTcp));
  Side client(server);
  const auto closed =
      client.endpoint->connect(open.listener->address(), {client.domain, client.queue, ""});
  REQUIRE(!closed.ok());
  REQUIRE(closed.error().message.find("this node has none") != std::string::npos);
  open.works(optionsFor(Choice::kTcp));
}

TEST_CASE("without a key there is only loopback", "[trust]") {
  Side side(optionsFor(Choice::kTcp));
  const AcceptFn accept = [&](const PeerInfo&) -> Result<Accepted> {
    return Accepted{side.domain, side.queue};
  };
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    const auto refused = side.endpoint->listen(address, accept);
    REQUIRE(!refused.ok());
    REQUIRE(refused.error().message.find("olctl keygen") != std::string::npos);
  }
  REQUIRE(!side.endpoint->connect("192.0.2.1:7000", {side.domain, side.queue, ""}).ok());
  Side trusted(keyed({{"k", 1}}, Tls::kAll));
  REQUIRE(trusted.endpoint->listen("0.0.0.0:0", accept).ok());
}

TEST_CASE("a tap on the wire sees nothing, and can't play it again", "[trust]") {
  // A relay between client and server that keeps what the client says.
  const Options options = keyed({{"k", 7}}, Tls::kAll);
  Target target(options);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(listen(listener, 16) == 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::vector<std::vector<char>> heard(1 + options.lanes);
  std::vector<std::thread> relays;
  std::thread taps([&] {
    for (size_t i = 0; i < heard.size(); ++i) {
      const int from = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      const int into = target.connect();
      const auto relay = [](int a, int b, std::vector<char>* keep) {
        char bytes[65536];
        for (ssize_t got; (got = recv(a, bytes, sizeof bytes, 0)) > 0;) {
          if (keep != nullptr) keep->insert(keep->end(), bytes, bytes + got);
          if (send(b, bytes, static_cast<size_t>(got), MSG_NOSIGNAL) != got) break;
        }
        shutdown(b, SHUT_RDWR);
        shutdown(a, SHUT_RDWR);
      };
      timeval forever{};
      setsockopt(into, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
      relays.emplace_back(relay, from, into, &heard[i]);
      relays.emplace_back(relay, into, from, nullptr);
    }
  });
  Buffer here(1 << 20), there(1 << 20);
  const std::string secret = "the secret in the page, several times over.....................";
  for (uint64_t i = 0; i < here.length; i += secret.size()) {
    std::memcpy(here.base + i, secret.data(), std::min<uint64_t>(secret.size(), here.length - i));
  }
  {
    Side client(options);
    const auto region = target.side.add(there, kRemoteReadWrite);
    const auto local = client.add(here, kLocalOnly);
    auto link = client.endpoint->connect("127.0.0.1:" + std::to_string(ntohs(address.sin_port)),
                                         {client.domain, client.queue, ""});
    if (!link.ok()) FAIL(link.error().message);
    const LocalRange all = wholeLocal(local);
    REQUIRE(link.value()->write({&all, 1}, whole(region), Class::kDemand, 0) == Outcome::kOk);
    REQUIRE(client.await(Kind::kWrite).outcome == Outcome::kOk);
    REQUIRE(link.value()->send(MessageClass::kNotice, bytesOf(secret)) == Outcome::kOk);
    target.side.await(Kind::kMessage);
    link.value()->close("done");
    client.await(Kind::kDown);
    target.side.await(Kind::kDown);
  }
  taps.join();
  for (auto& relay : relays) relay.join();
  close(listener);
  REQUIRE(std::memcmp(here.base, there.base, here.length) == 0);
  size_t total = 0;
  for (const auto& stream : heard) {
    total += stream.size();
    REQUIRE(std::string_view(stream.data(), stream.size()).find("secret in the page") ==
            std::string_view::npos);
  }
  REQUIRE(total > here.length);
  // Played again, byte by byte, it opens nothing: no link, no lane.
  for (const auto& stream : heard) {
    const int fd = target.connect();
    send(fd, stream.data(), stream.size(), MSG_NOSIGNAL);
    REQUIRE(Target::closed(fd));
    close(fd);
  }
  target.side.early.clear();
  REQUIRE(!target.side.next(50ms));
  target.works(options);
}

TEST_CASE("limits on handshakes", "[trust]") {
  Options options = optionsFor(Choice::kTcp);
  options.limits.handshake_ms = 200;
  options.limits.handshakes = 4;
  options.limits.links = 2;
  Target target(options);
  // A silent peer is not waited for.
  const int silent = target.connect();
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(Target::closed(silent));
  REQUIRE(std::chrono::steady_clock::now() - begin < 5s);
  close(silent);
  // A flood is bounded and does not keep others out for longer than its time.
  std::vector<int> flood;
  for (int i = 0; i < 60; ++i) flood.push_back(target.connect());
  for (const int fd : flood) {
    REQUIRE(Target::closed(fd));
    close(fd);
  }
  target.works(options);
  // More links than allowed.
  Side client(optionsFor(Choice::kTcp));
  const auto connect = [&] {
    return client.endpoint->connect(target.listener->address(), {client.domain, client.queue, ""});
  };
  auto first = connect(), second = connect();
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  const auto third = connect();
  REQUIRE(!third.ok());
  REQUIRE(third.error().message.find("more than 2 links") != std::string::npos);
  first.value()->close("room");
  target.side.await(Kind::kDown);
  REQUIRE(connect().ok());
}

TEST_CASE("who has said who it is has as long again for its lanes", "[trust]") {
  Options options = optionsFor(Choice::kTcp);
  options.limits.handshake_ms = 2000;
  Target target(options);
  const RawPeer slow(target.listener->address(), 0, 1200ms);
  target.side.await(Kind::kUp);
}

TEST_CASE("handshakes a second", "[trust]") {
  Options options = optionsFor(Choice::kTcp);
  options.limits.handshakes_per_second = 20;
  Target target(options);
  int closed_at_once = 0;
  std::vector<int> all;
  for (int i = 0; i < 60; ++i) {
    all.push_back(target.connect());
    const wire::Preamble preamble;
    REQUIRE(send(all.back(), &preamble, sizeof preamble, MSG_NOSIGNAL) == sizeof preamble);
  }
  std::this_thread::sleep_for(300ms);
  for (const int fd : all) {
    wire::Header said;
    if (recv(fd, &said, sizeof said, MSG_DONTWAIT) == sizeof said &&
        said.frame == wire::Frame::kGoodbye && Target::closed(fd)) {
      ++closed_at_once;
    }
    close(fd);
  }
  REQUIRE(closed_at_once >= 20);
}

TEST_CASE("who asks too often is told so, with a key as well", "[trust]") {
  Options options = keyed({{"k", 1}}, Tls::kAll);
  options.limits.handshakes_per_second = 4;  // one from an address
  Target target(options);
  Side client(options);
  std::string told;
  for (int i = 0; i < 20 && told.empty(); ++i) {
    const auto link =
        client.endpoint->connect(target.listener->address(), {client.domain, client.queue, ""});
    if (!link.ok()) told = link.error().message;
  }
  INFO(told);
  REQUIRE(told.find("handshakes a second from one address") != std::string::npos);
}

TEST_CASE("a stranger who greets without end takes nothing of those who have the key", "[trust]") {
  Options options = keyed({{"k", 1}}, Tls::kAll);
  options.limits.handshakes_per_second = 16;  // four from an address
  Target target(options);
  // From the same address: with the right name and another key, and with another name.
  std::atomic<bool> stop{false};
  std::atomic<int> refused{0};
  std::vector<std::thread> strangers;
  for (const char* const name : {"k", "other"}) {
    strangers.emplace_back([&, name] {
      Side stranger(keyed({{name, 2}}, Tls::kAll));
      while (!stop) {
        const auto link = stranger.endpoint->connect(target.listener->address(),
                                                     {stranger.domain, stranger.queue, ""});
        if (!link.ok() && link.error().message.find("handshakes a second") != std::string::npos)
          ++refused;
      }
    });
  }
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (refused < 5 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  std::string why;
  for (int i = 0; i < 3; ++i) {
    Side client(options);
    const auto link =
        client.endpoint->connect(target.listener->address(), {client.domain, client.queue, ""});
    if (!link.ok()) why = link.error().message;
  }
  stop = true;
  for (auto& each : strangers) each.join();
  CHECK(refused >= 5);
  INFO(why);
  CHECK(why.empty());
}

TEST_CASE("who has a key from many addresses leaves the others' handshakes to them", "[trust]") {
  Sources sources(16, true);
  const auto begins = [&](uint64_t address, const char* key) {
    Sources::Source* const source = sources.enter(address, key);
    const bool good = sources.begin(source, 1000).empty();
    sources.leave(source);
    return good;
  };
  for (const char* const key : {"greedy", ""}) {
    int good = 0;
    for (int i = 0; i < 100; ++i) good += begins(static_cast<uint64_t>(i % 5), key) ? 1 : 0;
    CHECK(good == 8);  // half
  }
  CHECK(begins(1, "other"));
  CHECK(begins(7, "other"));
}

TEST_CASE("a no that lasts is told from an outage", "[trust]") {
  Options options = keyed({{"k", 1}}, Tls::kAll);
  options.limits.handshakes_per_second = 4;  // one from an address
  Target target(options);
  std::string why;
  const auto lasts = [&](const Options& with, const std::string& address) {
    Side client(with);
    bool told = false;
    const auto link =
        client.endpoint->connect(address, {client.domain, client.queue, "", 0, &told});
    why = link.ok() ? "" : link.error().message;
    return !link.ok() && told;
  };
  CHECK(lasts(keyed({{"k", 2}}, Tls::kAll), target.listener->address()));
  CHECK(why.find("both ends need the same one") != std::string::npos);
  CHECK(lasts(optionsFor(Choice::kTcp), target.listener->address()));
  CHECK(why.find("refused: no key was given") != std::string::npos);
  for (int i = 0; i < 20 && why.find("handshakes a second") == std::string::npos; ++i)
    CHECK(!lasts(options, target.listener->address()));
  CHECK(why.find("handshakes a second") != std::string::npos);
  // A port at which nobody listens, and one at which nobody answers.
  const base::UniqueFd silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress at = resolve("127.0.0.1:0", true).value().front();
  REQUIRE(bind(silent.get(), at.get(), at.length) == 0);
  const std::string nobody = localAddress(silent.get()).text();
  CHECK(!lasts(options, nobody));
  CHECK(!why.empty());
  REQUIRE(listen(silent.get(), 1) == 0);
  Options hasty = options;
  hasty.connect_ms = 200;
  CHECK(!lasts(hasty, nobody));
  CHECK(!why.empty());
}

TEST_CASE("a stranger who connects without end keeps nobody out", "[trust]") {
  const bool many_addresses = GENERATE(false, true);
  const Options options = keyed({{"k", 1}}, Tls::kAll);
  Target target(options);
  const auto to = resolve(target.listener->address(), false).value().front();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> opened{0};
  std::thread stranger([&] {
    std::deque<base::UniqueFd> open;
    for (uint32_t i = 0; !stop; ++i) {
      base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      const linger now{1, 0};  // else the ports are used up
      setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      sockaddr_in from{};
      from.sin_family = AF_INET;
      from.sin_addr.s_addr =
          htonl(many_addresses ? INADDR_LOOPBACK + 1 + i % 250 : INADDR_LOOPBACK);
      if (bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from) != 0) continue;
      if (connect(fd.get(), to.get(), to.length) != 0 && errno != EINPROGRESS) continue;
      ++opened;
      open.push_back(std::move(fd));
      if (open.size() > 400) open.pop_front();
      if (i % 10 == 9) std::this_thread::sleep_for(1ms);
    }
  });
  // All places are taken.
  while (opened < 1000) std::this_thread::sleep_for(1ms);
  const uint64_t before = opened;
  std::vector<std::string> refused;
  for (int i = 0; i < 10; ++i) {
    Side client(options);
    const auto link =
        client.endpoint->connect(target.listener->address(), {client.domain, client.queue, ""});
    if (!link.ok()) refused.push_back(link.error().message);
  }
  stop = true;
  stranger.join();
  INFO(opened << " connections; " << (refused.empty() ? "" : refused.front()));
  CHECK(refused.empty());
  CHECK(opened > before);
}

TEST_CASE("who greets and opens no lanes keeps nobody out", "[trust]") {
  Options options = optionsFor(Choice::kTcp);
  options.limits.handshakes = 8;
  options.lanes = 1;  // 16 places
  Target target(options);
  const auto to = resolve(target.listener->address(), false).value().front();
  struct {
    wire::Preamble preamble;
    wire::Header header;
    wire::Hello hello;
  } opening;
  opening.header.frame = wire::Frame::kHello;
  opening.header.length = sizeof opening.hello;
  opening.hello = EndpointCore(options).hello();
  opening.hello.lanes = wire::kMaxLanes;
  std::vector<base::UniqueFd> held;
  // The places are of two addresses, none of them that of who comes.
  for (uint32_t i = 0; i < 40; ++i) {
    base::UniqueFd& fd = held.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + i % 2);
    REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from) == 0);
    REQUIRE(connect(fd.get(), to.get(), to.length) == 0);
    REQUIRE(send(fd.get(), &opening, sizeof opening, MSG_NOSIGNAL) == sizeof opening);
  }
  // The last has a place, and no more lanes than this end wants.
  struct {
    wire::Header header;
    wire::Hello hello;
  } answer;
  REQUIRE(recv(held.back().get(), &answer, sizeof answer, MSG_WAITALL) == sizeof answer);
  CHECK(answer.header.frame == wire::Frame::kHello);
  CHECK(answer.hello.lanes == 1);
  target.works(options);
}

TEST_CASE("who is refused at once is told why, with a key as well", "[trust]") {
  const auto to = resolve("127.0.0.1:0", true).value().front();
  const base::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(bind(listener.get(), to.get(), to.length) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  SocketAddress bound;
  bound.length = sizeof bound.storage;
  REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) ==
          0);
  std::thread refuses([&] {
    const base::UniqueFd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    struct {
      wire::Header header;
      char text[4] = {'f', 'u', 'l', 'l'};
    } goodbye;
    goodbye.header.frame = wire::Frame::kGoodbye;
    goodbye.header.length = sizeof goodbye.text;
    send(peer.get(), &goodbye, sizeof goodbye, MSG_NOSIGNAL);
    waitFor(peer.get(), POLLIN, nowMs() + 5000);
    // The peer's bytes are not read, so that the connection ends with a reset.
  });
  Side client(keyed({{"k", 1}}, Tls::kAll));
  const auto link = client.endpoint->connect(bound.text(), {client.domain, client.queue, ""});
  refuses.join();
  REQUIRE(!link.ok());
  INFO(link.error().message);
  REQUIRE(link.error().message.find("refused: full") != std::string::npos);
}

TEST_CASE("two ends speak the newest version that both know", "[trust]") {
  struct {
    Versions server, client;
    uint8_t agreed;  // 0: none
  } const kCases[] = {{{5, 5}, {5, 5}, 5},      {{5, 5}, {5, 9}, 5}, {{5, 9}, {5, 5}, 5},
                      {{5, 7}, {6, 9}, 7},      {{6, 9}, {5, 7}, 7}, {{5, 9}, {6, 7}, 7},
                      {{6, 6}, {5, 5}, 0},      {{5, 5}, {6, 6}, 0}, {{8, 9}, {5, 7}, 0},
                      {{5, 255}, {5, 255}, 255}};
  const Choice choice = GENERATE(Choice::kTcp, Choice::kShm);
  for (const auto& [server, client, agreed] : kCases) {
    Options at_server = optionsFor(choice), at_client = optionsFor(choice);
    at_server.versions = server, at_client.versions = client;
    at_server.release = "1.2.3", at_client.release = "4.5.6";
    CAPTURE(server.oldest, server.newest, client.oldest, client.newest);
    Side listens(at_server), connects(at_client);
    auto listener =
        listens.endpoint->listen("127.0.0.1:0", [&](const PeerInfo&) -> Result<Accepted> {
          return Accepted{listens.domain, listens.queue};
        });
    REQUIRE(listener.ok());
    const auto link = connects.endpoint->connect(listener.value()->address(),
                                                 {connects.domain, connects.queue, ""});
    REQUIRE(link.ok() == (agreed != 0));
    if (agreed != 0) {
      REQUIRE(link.value()->peer().version == agreed);
      REQUIRE(listens.await(Kind::kUp).link->peer().version == agreed);
      continue;
    }
    const std::string& why = link.error().message;
    INFO(why);
    for (const std::string& part :
         {versionsText(server.oldest, server.newest), versionsText(client.oldest, client.newest),
          std::string("1.2.3"), std::string("4.5.6"), std::string("install one release")})
      REQUIRE(why.find(part) != std::string::npos);
  }
}

TEST_CASE("an end whose greeting says other versions than its first words is refused", "[trust]") {
  Options options = optionsFor(Choice::kTcp);
  options.versions = {5, 7};
  Target target(options);
  struct {
    wire::Preamble preamble;
    wire::Header header;
    wire::Hello hello;
  } opening;
  opening.header.frame = wire::Frame::kHello;
  opening.header.length = sizeof opening.hello;
  opening.hello = EndpointCore(options).hello();
  opening.hello.version = opening.hello.newest = 8;
  const int fd = target.connect();
  send(fd, &opening, sizeof opening, MSG_NOSIGNAL);
  wire::Header answer;
  REQUIRE(recv(fd, &answer, sizeof answer, MSG_WAITALL) == sizeof answer);
  REQUIRE(answer.frame == wire::Frame::kGoodbye);
  close(fd);
}

TEST_CASE("an acceptor that chooses an older version than both speak is refused", "[trust]") {
  Options options = optionsFor(Choice::kTcp);
  options.versions = {5, 7};
  const RawAcceptor acceptor([](wire::Hello& answer) { answer.version = 5, answer.newest = 7; });
  Side client(options);
  const auto link = client.endpoint->connect(acceptor.address, {client.domain, client.queue, ""});
  REQUIRE(!link.ok());
  INFO(link.error().message);
  REQUIRE(link.error().message.find("not the newest") != std::string::npos);
}

TEST_CASE("a wrong version is told so", "[trust]") {
  Target target(optionsFor(Choice::kTcp));
  wire::Preamble preamble;
  preamble.oldest = Versions().newest + 1;
  const int fd = target.connect();
  send(fd, &preamble, sizeof preamble, MSG_NOSIGNAL);
  wire::Header answer;
  REQUIRE(recv(fd, &answer, sizeof answer, MSG_WAITALL) == sizeof answer);
  REQUIRE(answer.frame == wire::Frame::kGoodbye);
  std::string text(answer.length, '\0');
  REQUIRE(recv(fd, text.data(), text.size(), MSG_WAITALL) == static_cast<ssize_t>(text.size()));
  REQUIRE(text.find("version") != std::string::npos);
  close(fd);
}

TEMPLATE_TEST_CASE("a key or range that was never granted ends the link, and nothing else",
                   "[trust]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  Pair pair(optionsFor(TestType::kChoice));
  const LinkPtr other = pair.connect();
  const LinkPtr other_peer = pair.server.await(Kind::kUp).link;
  const bool shared = GENERATE(false, true);
  Buffer there(1 << 20, shared), here(1 << 20);
  const auto readable = pair.server.add(there, kRemoteRead);
  const auto hidden = pair.server.add(there, kLocalOnly);
  const auto local = pair.client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  there.fill(9);
  RemoteRange bad = whole(readable);
  const int what = GENERATE(0, 1, 2, 3);
  bool write = false;
  if (what == 0) bad.key.key ^= 1;                       // guessed
  if (what == 1) bad.key.length = bad.offset = 1 << 30;  // beyond its end
  if (what == 1) bad.key.length += bad.length;
  if (what == 2) write = true;             // without the right
  if (what == 3) bad.key = hidden->key();  // registered, granted to nobody
  const auto posted = write ? pair.up->write({&all, 1}, bad, Class::kDemand, 1)
                            : pair.up->read({&all, 1}, bad, Class::kDemand, 1);
  REQUIRE(posted == Outcome::kOk);
  const auto done = pair.client.await(write ? Kind::kWrite : Kind::kRead);
  REQUIRE(done.outcome == Outcome::kLinkDown);
  pair.client.await(Kind::kDown);
  REQUIRE(pair.server.await(Kind::kDown).link == pair.peer);
  REQUIRE(there.holds(9, 0, there.length));
  REQUIRE(other->state() == LinkState::kUp);
  REQUIRE(other->read({&all, 1}, whole(readable), Class::kDemand, 2) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
  REQUIRE(here.holds(9, 0, here.length));
}

TEMPLATE_TEST_CASE("a key that was taken back refuses the operation, not the link", "[trust]", Tcp,
                   Shm, Rdma) {
  NEEDS_CARD(TestType);
  const bool shared = GENERATE(false, true);
  Pair pair(optionsFor(TestType::kChoice));
  Buffer there(1 << 20, shared), here(1 << 20);
  auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  const RemoteRange range = whole(region);
  REQUIRE(pair.up->read({&all, 1}, range, Class::kDemand, 0) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
  REQUIRE(region->handedOut() == (shared && TestType::kKind == LinkKind::kShm));
  region.reset();
  // The owner's last message is heard before: one behind it has arrived. Messages have a queue pair
  // of their own by RDMA: there a key that was never asked for has come behind it.
  REQUIRE(pair.peer->send(MessageClass::kNotice, bytesOf("gone")) == Outcome::kOk);
  pair.client.await(Kind::kMessage);
  const auto another = pair.server.add(there, kRemoteRead);
  REQUIRE(pair.up->read({&all, 1}, whole(another), Class::kDemand, 0) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
  REQUIRE(pair.up->read({&all, 1}, range, Class::kDemand, 0) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kRevoked);
  REQUIRE(pair.up->write({&all, 1}, range, Class::kDemand, 0) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kWrite).outcome == Outcome::kRevoked);
  REQUIRE(pair.up->state() == LinkState::kUp);
}

TEST_CASE("noise in place of a handshake", "[trust][fuzz]") {
  auto random = seededRandom("handshake noise");
  const bool with_key = GENERATE(false, true);
  const Options options = with_key ? keyed({{"k", 3}}, Tls::kAll) : optionsFor(Choice::kTcp);
  Options limited = options;
  limited.limits.handshakes_per_second = 100000;
  limited.limits.handshake_ms = 1000;
  Target target(limited);
  for (int round = 0; round < scaled(300); ++round) {
    // A good beginning of random length, then anything.
    struct {
      wire::Preamble preamble;
      wire::Header header;
      wire::Hello hello;
    } good;
    good.preamble.kind = static_cast<wire::Preamble::Kind>(1 + random() % 3);
    good.header.frame = wire::Frame::kHello;
    good.header.length = sizeof good.hello;
    good.hello = static_cast<EndpointCore&>(*target.side.endpoint).hello();
    std::vector<uint8_t> bytes(sizeof good);
    std::memcpy(bytes.data(), &good, sizeof good);
    const size_t changes = 1 + random() % 8;
    for (size_t i = 0; i < changes; ++i)
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    bytes.resize(random() % 3 == 0 ? random() % bytes.size() : bytes.size());
    for (size_t extra = random() % 200; extra != 0; --extra)
      bytes.push_back(static_cast<uint8_t>(random()));
    const int fd = target.connect();
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    REQUIRE(Target::closed(fd));
    close(fd);
  }
  target.works(options);
}
