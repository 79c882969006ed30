// Addresses as users write them: "host:port", "[v6]:port", "unix:/path". Sockets for them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace olpager::transport {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  /// This host and nobody else can reach it.
  bool loopback() const;
  /// One number for all who may be one and the same: an IPv4 address, a /64 of IPv6, all Unix
  /// sockets.
  uint64_t source() const;
  std::string text() const;
};

inline bool isUnix(const std::string& address) { return address.starts_with("unix:"); }
Result<SocketAddress> unixAddress(const std::string& path);
/// Everything that the name stands for. `passive`: to listen on.
Result<std::vector<SocketAddress>> resolve(const std::string& address, bool passive);

/// A numeric IPv4 or IPv6 address without a port, which peers can use as it stands.
Result<SocketAddress> numericAddress(const std::string& text);
/// As 16 bytes of IPv6, IPv4 within it; back, with a port.
std::array<uint8_t, 16> addressBytes(const SocketAddress& address);
SocketAddress addressFrom(const uint8_t (&bytes)[16], uint16_t port);

/// Non-blocking, close-on-exec.
base::UniqueFd makeSocket(int family);
/// Sets the socket options of every connection of a link over IP: no delay, probes of an idle host
/// that end the connection when none is answered for `dead_ms` (whole seconds, at least 3), and a
/// limit for bytes in the kernel that were not sent yet (`unsent`, 0: as the system likes). A host
/// that dies while bytes are on their way to it is AckWatch's. The socket is connected: on loopback
/// it is not paced.
void tuneTcp(int fd, uint32_t dead_ms, uint32_t unsent);
/// One line for a user: why `error` kept it from being listened on, or connected to, and what to
/// do.
std::string whyNotBound(const SocketAddress& address, int error);
std::string whyNotConnected(const SocketAddress& address, int error);
/// This end's address of a connection.
SocketAddress localAddress(int fd);
/// The same address with another port; a Unix socket's as it is.
SocketAddress withPort(const SocketAddress& address, uint16_t port);
/// Waits until `deadline_ms` (of nowMs()) for `events`; false when the time is over and there are
/// none.
bool waitFor(int fd, short events, int64_t deadline_ms);
/// How long somebody who connects waits: for each thing that the peer has to say or do, and in all.
/// A slow peer gets all of the time, a silent one does not.
struct Patience {
  int64_t deadline_ms = 0;  // of nowMs()
  uint32_t answer_ms = 0;   // for each; 0: until the deadline
  /// The time is over for what is waited for from now on.
  int64_t until() const;
  /// The same for half of what is left.
  Patience half() const;
};
Result<base::UniqueFd> connectSocket(const SocketAddress& address, const Patience& patience);

/// This machine's boot, as /proc tells it; "" when it does not.
std::string bootId();
/// The folder for this user's Unix sockets, made if need be: mode 0700 and this user's, or an
/// Error.
Result<std::string> socketFolder();
/// A new path in such a folder.
std::string newSocketPath(const std::string& folder);
/// A Unix socket of this user's at `path` whose process is gone (killed, so that nobody removed
/// it). Nobody who listens notices that it is asked.
bool isDeadSocket(const std::string& path);
/// Removes the dead ones of newSocketPath() from `folder`; nothing else.
void removeDeadSockets(const std::string& folder);

}  // namespace olpager::transport
