#include "coherence/transport/routes.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "coherence/transport/shm/channel.h"

namespace olpager::transport {

Result<HandoverSockets> makeHandoverSockets() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return Error{base::format("no sockets to hand connections over: {}", std::strerror(errno))};
  HandoverSockets sockets{base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
  // Some 40 connections: the others wait at the listener, which knows whose turn it is. And what a
  // user has on its way altogether the system bounds by the limit of descriptors: one who does not
  // take his must not use that up for the others.
  const int bytes = 16 << 10;
  setsockopt(sockets.from.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  return sockets;
}

void Routes::add(uint64_t route, base::UniqueFd socket) {
  std::lock_guard lock(mutex_);
  sockets_[route] = std::move(socket);
}

void Routes::remove(uint64_t route) {
  std::lock_guard lock(mutex_);
  sockets_.erase(route);
}

Routes::Handed Routes::hand(uint64_t route, int connection, std::span<const std::byte> said) {
  std::lock_guard lock(mutex_);
  const auto found = sockets_.find(route);
  if (found == sockets_.end()) return Handed::kNobody;
  if (sendWithFds(found->second.get(), said.data(), said.size(), &connection, 1))
    return Handed::kTaken;
  return errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN ? Handed::kNobody
                                                                    : Handed::kFull;
}

}  // namespace olpager::transport
