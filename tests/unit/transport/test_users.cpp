// Without a key a link is between two ends of one user, whoever of both connects.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "coherence/transport/core/address.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/core/peer_user.h"
#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

namespace {

constexpr uid_t kOther = 65534;

#define NEEDS_ROOT()                                                \
  if (geteuid() != 0) {                                             \
    SUCCEED("skipped: only root can make sockets of another user"); \
    return;                                                         \
  }

/// On a thread of its own that is the other user's, and so are the threads that it starts. By the
/// system call: the C library's function would change all threads.
void asOther(const std::function<void()>& what) {
  long changed = -1;
  std::thread([&] {
    changed = syscall(SYS_setresuid, -1, kOther, -1);
    if (changed == 0) what();
  }).join();
  REQUIRE(changed == 0);
}

base::UniqueFd connectTo(const SocketAddress& address) {
  base::UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(fd.get(), address.get(), address.length) == 0 ? std::move(fd) : base::UniqueFd();
}

}  // namespace

TEST_CASE("another user's program is told that it needs a key", "[users]") {
  NEEDS_ROOT();
  const char* const host = GENERATE("127.0.0.1:0", "[::1]:0");
  Side daemon(optionsFor(Choice::kTcp));
  auto listener = daemon.endpoint->listen(host, [&](const PeerInfo&) -> Result<Accepted> {
    return Accepted{daemon.domain, daemon.queue};
  });
  if (!listener.ok()) return;  // without IPv6
  const std::string& address = listener.value()->address();
  std::string said = "nothing";
  asOther([&] {
    Side program(optionsFor(Choice::kTcp));
    auto link = program.endpoint->connect(address, {program.domain, program.queue, ""});
    said = link.ok() ? "a link" : link.error().message;
  });
  CHECK(said == address +
                    ": refused: user 65534 connects to user 0: without a key both ends have to be "
                    "one user's; give both the same key (olctl keygen)");
  Side program(optionsFor(Choice::kTcp));
  CHECK(program.endpoint->connect(address, {program.domain, program.queue, ""}).ok());
}

TEST_CASE("who stands in a daemon's place gets no link", "[users]") {
  NEEDS_ROOT();
  std::unique_ptr<RawAcceptor> acceptor;
  asOther([&] {
    acceptor = std::make_unique<RawAcceptor>(
        [](wire::Hello& answer) { answer.kinds = Kinds{LinkKind::kTcp}.bits(); });
  });
  Side program(optionsFor(Choice::kTcp));
  const auto link = program.endpoint->connect(acceptor->address, {program.domain, program.queue});
  REQUIRE(!link.ok());
  CHECK(link.error().message == acceptor->address +
                                    ": user 0 connects to user 65534: without a key both ends have "
                                    "to be one user's; give both the same key (olctl keygen)");
}

// The kernel tells of a connection that no process has as root's.
TEST_CASE("a connection whose other end nobody has is nobody's", "[users]") {
  const base::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = resolve("127.0.0.1:0", true).value().front();
  REQUIRE(bind(listener.get(), any.get(), any.length) == 0);
  REQUIRE(listen(listener.get(), 4) == 0);
  base::UniqueFd near = connectTo(localAddress(listener.get()));
  REQUIRE(near);
  CHECK_FALSE(peerUser(near.get()).ok());  // nobody has accepted it
  const base::UniqueFd far(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(far);
  CHECK(peerUser(near.get()).value() == geteuid());
  CHECK(peerUser(far.get()).value() == geteuid());
  near.reset();
  CHECK_FALSE(peerUser(far.get()).ok());
}
