// Messages between two processes of a test program over a connected socket. A process that is gone
// ends the program.
#pragma once

#include <sys/socket.h>

#include <cstring>

#include "common.h"

namespace apps {

/// The other process may go on; hear() waits for that.
inline void tell(int socket) {
  CHECK(send(socket, "x", 1, MSG_NOSIGNAL) == 1, "the other process is gone");
}
inline void hear(int socket) {
  char byte = 0;
  CHECK(recv(socket, &byte, 1, 0) == 1, "the other process is gone");
}

/// A message with room for one descriptor.
struct DescriptorMessage {
  char byte = 'd';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr header{};
  DescriptorMessage() {
    header.msg_iov = &part, header.msg_iovlen = 1;
    header.msg_control = control, header.msg_controllen = sizeof control;
  }
};

inline void sendDescriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS,
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  CHECK(sendmsg(socket, &message.header, MSG_NOSIGNAL) == 1, "the other process is gone");
}

/// The caller's. -1: the other process has ended without sending one.
inline int receiveDescriptor(int socket) {
  DescriptorMessage message;
  if (recvmsg(socket, &message.header, 0) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  CHECK(header != nullptr && header->cmsg_type == SCM_RIGHTS, "no descriptor came");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

}  // namespace apps
