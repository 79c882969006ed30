// Sockets of this machine by which workers hand each other descriptors: SOCK_SEQPACKET, in the
// abstract name space, so that nothing is left behind. The sockets' names begin with "olpager-".
// Thread-safety: any thread.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/fd.h"

namespace olpager::gpunode {

/// A connection to the socket of that name; none: it is not there, or too many wait for it already.
/// Never waits.
inline base::UniqueFd connectToNamed(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!name.starts_with("olpager-") || name.size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  base::UniqueFd peer(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (peer && (connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
               fcntl(peer.get(), F_SETFL, 0) != 0))
    peer.reset();
  return peer;
}

/// One message, with a descriptor unless it is none.
inline bool sendWith(int peer, const void* bytes, size_t size, int descriptor, int flags = 0) {
  iovec part{const_cast<void*>(bytes),
             size};  // NOLINT(cppcoreguidelines-pro-type-const-cast): sendmsg only reads it
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(peer, &message, MSG_NOSIGNAL | flags) == static_cast<ssize_t>(size);
}

/// The bytes of one message, as recv() says, and the descriptor that came with it.
inline ssize_t receiveWith(int peer, void* into, size_t size, base::UniqueFd* descriptor,
                           int flags = 0) {
  iovec part{into, size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(peer, &message, MSG_CMSG_CLOEXEC | flags);
  const cmsghdr* const header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    descriptor->reset(received);
  }
  return got;
}

}  // namespace olpager::gpunode
