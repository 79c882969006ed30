#include "coherence/transport/core/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/format.h"
#include "base/runtime_folder.h"
#include "base/text.h"
#include "coherence/transport/core/own_descriptors.h"
#include "coherence/transport/core/reactor.h"
#include "coherence/transport/trust/tls.h"

namespace olpager::transport {
namespace {

constexpr size_t kSocketDigits = 16;
constexpr std::string_view kSocketSuffix = ".sock";

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44  // Linux 6.15; refused before
#endif

}  // namespace

bool SocketAddress::loopback() const {
  if (family() == AF_UNIX) return true;
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) != 0 ||
         (IN6_IS_ADDR_V4MAPPED(&v6) != 0 && v6.s6_addr[12] == 127);
}

uint64_t SocketAddress::source() const {
  constexpr uint64_t kIpv4 = 1ull << 32, kUnix = 1ull << 33;  // no such /64 is given to anybody
  if (family() == AF_INET)
    return kIpv4 | ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr);
  if (family() != AF_INET6) return kUnix;
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
  const size_t first = IN6_IS_ADDR_V4MAPPED(&v6) != 0 ? 12 : 0, end = first == 12 ? 16 : 8;
  uint64_t id = 0;
  for (size_t i = first; i < end; ++i) id = id << 8 | v6.s6_addr[i];
  return first == 12 ? kIpv4 | id : id;
}

std::string SocketAddress::text() const {
  if (family() == AF_UNIX)
    return base::format("unix:{}", reinterpret_cast<const sockaddr_un*>(&storage)->sun_path);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getnameinfo(get(), length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  return family() == AF_INET6 ? base::format("[{}]:{}", host, port)
                              : base::format("{}:{}", host, port);
}

Result<SocketAddress> unixAddress(const std::string& path) {
  SocketAddress address;
  auto* into = reinterpret_cast<sockaddr_un*>(&address.storage);
  if (path.empty() || path.size() >= sizeof into->sun_path) {
    return Error{base::format("'{}' is no path for a Unix socket: 1 to {} bytes",
                              base::printable(path), sizeof into->sun_path - 1)};
  }
  into->sun_family = AF_UNIX;
  std::memcpy(into->sun_path, path.c_str(), path.size() + 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

Result<std::vector<SocketAddress>> resolve(const std::string& address, bool passive) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, std::min(colon, address.size()));
  if (colon == std::string::npos || colon + 1 == address.size() || host.empty()) {
    const std::string all =
        passive && colon == 0 ? base::format("; for every network: [::]{}", address) : "";
    return Error{base::format("'{}' is no address: host:port or [v6]:port{}",
                              base::printable(address), base::printable(all))};
  }
  // getaddrinfo takes 65537 for 1.
  unsigned port = 0;
  const char* const end = address.data() + address.size();
  const auto [rest, error] = std::from_chars(address.data() + colon + 1, end, port);
  if (error != std::errc() || rest != end || port > 65535) {
    return Error{base::format("'{}': a port is a number up to 65535", base::printable(address))};
  }
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = (passive ? AI_PASSIVE : 0) | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int why = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
      why != 0) {
    const char* const what_to_do =
        why == EAI_NONAME ? "; give a name that this machine can look up, or an IP address" : "";
    return Error{base::format("{}: {}{}", base::printable(address), gai_strerror(why), what_to_do)};
  }
  std::vector<SocketAddress> all;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress one;
    std::memcpy(&one.storage, each->ai_addr, each->ai_addrlen);
    one.length = each->ai_addrlen;
    all.push_back(one);
  }
  freeaddrinfo(found);
  return all;
}

base::UniqueFd makeSocket(int family) {
  base::UniqueFd made(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  noteOwnDescriptor(made.get());
  return made;
}

void tuneTcp(int fd, uint32_t dead_ms, uint32_t unsent) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  const int third = static_cast<int>(std::max(1u, dead_ms / 3000));
  set(IPPROTO_TCP, TCP_KEEPIDLE, third);
  set(IPPROTO_TCP, TCP_KEEPINTVL, third);
  set(IPPROTO_TCP, TCP_KEEPCNT, 2);
  // Unacknowledged bytes are sent again, and a full window asked for, at distances that grow up to
  // two minutes: no more than this where the system can. No TCP_USER_TIMEOUT: ack_watch.h says why.
  set(IPPROTO_TCP, TCP_RTO_MAX_MS, 1000 * third);
  if (unsent != 0) set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(unsent));
  SocketAddress peer;
  peer.length = sizeof peer.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) == 0 &&
      peer.loopback()) {
    // Nothing can be congested; what paces by timers (bbr) costs a third of the rate. Every kernel
    // has and allows reno.
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  }
}

std::string whyNotBound(const SocketAddress& address, int error) {
  const std::string at = address.text(), why = std::strerror(error);
  struct stat about {};
  const std::string path = isUnix(at) ? at.substr(5) : "";
  if (error == EADDRINUSE && lstat(path.c_str(), &about) == 0 && !S_ISSOCK(about.st_mode))
    return base::format("{}: something that is no socket is there; take another path", at);
  if (error == ENOENT && address.family() == AF_UNIX)
    return base::format("{}: its folder is not there; make it, or take another path", at);
  if (error == EADDRINUSE && address.family() == AF_UNIX)
    return base::format("{}: {}; ss -lxp tells by whom; take another path", at, why);
  if (error == EADDRINUSE) {
    return base::format("{}: {}; by whom: ss -ltnp 'sport = :{}'; end that, or take another port",
                        at, why, at.substr(at.rfind(':') + 1));
  }
  if (error == EADDRNOTAVAIL)
    return base::format(
        "{}: {}: no interface of this machine has it (ip -brief address lists those that do)", at,
        why);
  if (error == EACCES && address.family() != AF_UNIX)
    return base::format("{}: {}: ports below 1024 are root's; take a higher one", at, why);
  return base::format("{}: {}", at, why);
}

std::string whyNotConnected(const SocketAddress& address, int error) {
  const char* hint = "";
  if (error == ECONNREFUSED || (error == ENOENT && address.family() == AF_UNIX))
    hint = ": nothing listens there; start the daemon, or name the address that it printed";
  if (error == EHOSTUNREACH || error == ENETUNREACH)
    hint = ": there is no way there from this machine";
  if (error == ETIMEDOUT) hint = ": is the machine up, and does its firewall let the port through?";
  return base::format("{}: {}{}", address.text(), std::strerror(error), hint);
}

SocketAddress localAddress(int fd) {
  SocketAddress local;
  local.length = sizeof local.storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local.storage), &local.length) != 0) return {};
  return local;
}

SocketAddress withPort(const SocketAddress& address, uint16_t port) {
  SocketAddress changed = address;
  if (address.family() == AF_INET)
    reinterpret_cast<sockaddr_in*>(&changed.storage)->sin_port = htons(port);
  if (address.family() == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&changed.storage)->sin6_port = htons(port);
  return changed;
}

Result<SocketAddress> numericAddress(const std::string& text) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    address.length = sizeof v4;
  } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    address.length = sizeof v6;
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) != 0)
      return Error{base::format("{}: a link-local address says nothing to a peer", text)};
  } else {
    return Error{base::format("'{}' is no IPv4 or IPv6 address, such as 10.0.0.2", text)};
  }
  return address;
}

std::array<uint8_t, 16> addressBytes(const SocketAddress& address) {
  std::array<uint8_t, 16> bytes{};
  if (address.family() == AF_INET) {
    bytes[10] = bytes[11] = 0xff;
    std::memcpy(&bytes[12], &reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr, 4);
  } else {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr,
                bytes.size());
  }
  return bytes;
}

SocketAddress addressFrom(const uint8_t (&bytes)[16], uint16_t port) {
  SocketAddress address;
  in6_addr all;
  std::memcpy(&all, bytes, sizeof all);
  if (IN6_IS_ADDR_V4MAPPED(&all) != 0) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, bytes + 12, 4);
    address.length = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = all;
    address.length = sizeof v6;
  }
  return withPort(address, port);
}

bool waitFor(int fd, short events, int64_t deadline_ms) {
  for (;;) {
    // The last look decides, not the clock: what came while this thread did not run is there.
    const int64_t left = std::max<int64_t>(deadline_ms - nowMs(), 0);
    pollfd waiting{fd, events, 0};
    const int count = poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (count > 0) return true;
    if (left == 0 || (count < 0 && errno != EINTR)) return false;
  }
}

int64_t Patience::until() const {
  return answer_ms == 0 ? deadline_ms : std::min(deadline_ms, nowMs() + answer_ms);
}

Patience Patience::half() const {
  const int64_t now_ms = nowMs();
  return {now_ms + (deadline_ms - now_ms) / 2, answer_ms};
}

Result<base::UniqueFd> connectSocket(const SocketAddress& address, const Patience& patience) {
  base::UniqueFd fd = makeSocket(address.family());
  if (!fd) return Error{base::format("socket: {}", std::strerror(errno))};
  if (connect(fd.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return Error{whyNotConnected(address, errno)};
    if (!waitFor(fd.get(), POLLOUT, patience.until())) {
      return Error{base::format(
          "{}: no answer in time; is the machine up, and does its firewall let the port through?",
          address.text())};
    }
    int why = 0;
    socklen_t length = sizeof why;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &why, &length);
    if (why != 0) return Error{whyNotConnected(address, why)};
  }
  return fd;
}

std::string bootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.size() == 36 ? id : "";
}

Result<std::string> socketFolder() {
  const std::string folder = base::runtimeFolders().front();
  struct stat about {};
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error{base::format("{}: {}", folder, std::strerror(errno))};
  }
  if (lstat(folder.c_str(), &about) != 0 || !S_ISDIR(about.st_mode) || about.st_uid != geteuid() ||
      (about.st_mode & 077) != 0) {
    return Error{base::format("{}: not a folder of this user's with mode 0700; remove it", folder)};
  }
  return folder;
}

std::string newSocketPath(const std::string& folder) {
  uint8_t random[kSocketDigits / 2];
  randomBytes(random);
  std::string path = folder + "/";
  for (const uint8_t byte : random) path += base::format("{:02x}", byte);
  return path.append(kSocketSuffix);
}

bool isDeadSocket(const std::string& path) {
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0 || !S_ISSOCK(about.st_mode) || about.st_uid != geteuid())
    return false;
  const auto address = unixAddress(path);
  // The type is another than ours: if somebody has the socket, the kernel says that it is the wrong
  // type, and tells nobody.
  const base::UniqueFd probe(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!address.ok() || !probe) return false;
  return connect(probe.get(), address.value().get(), address.value().length) != 0 &&
         errno == ECONNREFUSED;
}

void removeDeadSockets(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.size() != kSocketDigits + kSocketSuffix.size() || !name.ends_with(kSocketSuffix) ||
        name.find_first_not_of("0123456789abcdef") != kSocketDigits) {
      continue;
    }
    // One that is being made is there a moment before it is somebody's.
    struct stat about {};
    if (lstat(entry.path().c_str(), &about) != 0 || time(nullptr) - about.st_mtime < 2) continue;
    if (isDeadSocket(entry.path())) unlink(entry.path().c_str());
  }
}

}  // namespace olpager::transport
