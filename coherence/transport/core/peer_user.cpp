#include "coherence/transport/core/peer_user.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "base/format.h"
#include "coherence/transport/core/address.h"

namespace olpager::transport {
namespace {

// An end of a TCP connection as the kernel's sock_diag names it.
struct End {
  int family = AF_UNSPEC;
  __be16 port = 0;
  __be32 address[4] = {};
};

End endOf(const SocketAddress& of) {
  End end;
  end.family = of.family();
  if (end.family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(of.storage);
    end.port = v4.sin_port;
    end.address[0] = v4.sin_addr.s_addr;
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(of.storage);
    end.port = v6.sin6_port;
    std::memcpy(end.address, &v6.sin6_addr, sizeof end.address);
  }
  return end;
}

Error unknown(int error) {
  return Error{base::format(
      "who is at the other end can't be found out: {}; give both ends the same key (olctl keygen)",
      std::strerror(error))};
}

// The user of the socket `owner` that is connected to `other`.
Result<uint32_t> ownerOf(const End& owner, const End& other) {
  const base::UniqueFd kernel(
      socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG));
  if (!kernel) return unknown(errno);
  struct {
    nlmsghdr head{};
    inet_diag_req_v2 about{};
  } ask;
  ask.head.nlmsg_len = sizeof ask;
  ask.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.head.nlmsg_flags = NLM_F_REQUEST;
  ask.about.sdiag_family = static_cast<uint8_t>(owner.family);
  ask.about.sdiag_protocol = IPPROTO_TCP;
  ask.about.id.idiag_sport = owner.port;
  ask.about.id.idiag_dport = other.port;
  std::copy_n(owner.address, 4, ask.about.id.idiag_src);
  std::copy_n(other.address, 4, ask.about.id.idiag_dst);
  std::fill_n(ask.about.id.idiag_cookie, 2, INET_DIAG_NOCOOKIE);
  if (send(kernel.get(), &ask, sizeof ask, 0) != sizeof ask) return unknown(errno);
  alignas(nlmsghdr) char answer[1024];  // is there when the question has been sent
  const ssize_t got = recv(kernel.get(), answer, sizeof answer, 0);
  if (got < 0) return unknown(errno);
  const auto* const head = reinterpret_cast<const nlmsghdr*>(answer);
  if (!NLMSG_OK(head, static_cast<size_t>(got))) return unknown(EPROTO);
  if (head->nlmsg_type == NLMSG_ERROR && head->nlmsg_len >= NLMSG_LENGTH(sizeof(nlmsgerr)))
    return unknown(-static_cast<const nlmsgerr*>(NLMSG_DATA(head))->error);
  if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      head->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg)))
    return unknown(EPROTO);
  const auto* const found = static_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  // If that connection is not there the kernel tells of the listener at its port. One that no
  // process has any more, or has yet, is told as root's.
  if (found->id.idiag_dport != other.port || found->idiag_inode == 0) return unknown(ENOTCONN);
  return found->idiag_uid;
}

}  // namespace

Result<uint32_t> peerUser(int fd) {
  SocketAddress peer;
  peer.length = sizeof peer.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0)
    return unknown(errno);
  if (peer.family() != AF_UNIX) return ownerOf(endOf(peer), endOf(localAddress(fd)));
  ucred about{};
  socklen_t length = sizeof about;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &about, &length) != 0) return unknown(errno);
  return about.uid;
}

std::string whyNotOneUser(int fd, bool connected) {
  const auto peer = peerUser(fd);
  if (!peer.ok()) return peer.error().message;
  const uint32_t self = geteuid();
  if (peer.value() == self) return "";
  return base::format("user {} connects to user {}: {}", connected ? self : peer.value(),
                      connected ? peer.value() : self,
                      localAddress(fd).family() == AF_UNIX
                          ? "a Unix socket is for one user; others come by TCP, with a key"
                          : "without a key both ends have to be one user's; give both the same key "
                            "(olctl keygen)");
}

}  // namespace olpager::transport
