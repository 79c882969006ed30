#include "coherence/transport/shm/channel.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "coherence/transport/core/own_descriptors.h"

namespace olpager::transport {
namespace {

constexpr uint64_t kMinRing = 1 << 20;
constexpr size_t kMaxFds = 3;

uint64_t ringBytes(uint32_t message_bytes) {
  return std::max(kMinRing, 4 * std::bit_ceil(uint64_t{message_bytes}));
}

void ring(int fd) {
  const uint64_t one = 1;
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<std::unique_ptr<Channel>> Channel::make(uint32_t message_bytes) {
  std::unique_ptr<Channel> channel(new Channel);
  channel->memory_ = base::UniqueFd(memfd_create("olpager-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  channel->own_bell_ = base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  channel->peer_bell_ = base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!channel->memory_ || !channel->own_bell_ || !channel->peer_bell_) {
    return Error{base::format("shared memory for a link: {}", std::strerror(errno))};
  }
  noteOwnDescriptor(channel->memory_.get());
  const uint64_t length =
      2 * (sizeof(RingControl) + ringBytes(message_bytes) + kSlots * kSlotBytes);
  if (!base::resizeFile(channel->memory_.get(), length) ||
      fcntl(channel->memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Error{base::format("shared memory for a link: {}", std::strerror(errno))};
  }
  return map(std::move(channel), message_bytes, true);
}

Result<std::unique_ptr<Channel>> Channel::open(base::UniqueFd memory, base::UniqueFd own_bell,
                                               base::UniqueFd peer_bell, uint32_t message_bytes) {
  std::unique_ptr<Channel> channel(new Channel);
  channel->memory_ = std::move(memory);
  channel->own_bell_ = std::move(own_bell);
  channel->peer_bell_ = std::move(peer_bell);
  if (!channel->memory_ || !channel->own_bell_ || !channel->peer_bell_)
    return Error{"the peer sent no shared memory"};
  for (const int bell : {channel->ownBell(), channel->peerBell()}) {
    // A peer's descriptor may be anything: reading it must not block.
    fcntl(bell, F_SETFL, fcntl(bell, F_GETFL) | O_NONBLOCK);
  }
  return map(std::move(channel), message_bytes, false);
}

Result<std::unique_ptr<Channel>> Channel::map(std::unique_ptr<Channel> channel,
                                              uint32_t message_bytes, bool acceptor) {
  const uint64_t ring_bytes = ringBytes(message_bytes);
  channel->length_ = 2 * (sizeof(RingControl) + ring_bytes + kSlots * kSlotBytes);
  const int fd = channel->memory_.get();
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat about {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &about) != 0 ||
      static_cast<uint64_t>(about.st_size) != channel->length_) {
    return Error{"the peer's shared memory is not sealed, or not of the agreed size"};
  }
  void* base = mmap(nullptr, channel->length_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED)
    return Error{base::format("shared memory for a link: {}", std::strerror(errno))};
  madvise(base, channel->length_, MADV_DONTFORK);
  madvise(base, channel->length_, MADV_DONTDUMP);
  channel->base_ = static_cast<std::byte*>(base);
  // Controls, then rings, then slots; index 0 is the connector's.
  auto* controls = reinterpret_cast<RingControl*>(channel->base_);
  std::byte* rings = channel->base_ + 2 * sizeof(RingControl);
  std::byte* slots = rings + 2 * ring_bytes;
  const size_t own = acceptor ? 1 : 0, peer = 1 - own;
  channel->out.attach(&controls[own], rings + own * ring_bytes, ring_bytes);
  channel->in.attach(&controls[peer], rings + peer * ring_bytes, ring_bytes);
  channel->own_slots_ = slots + own * kSlots * kSlotBytes;
  channel->peer_slots_ = slots + peer * kSlots * kSlotBytes;
  return channel;
}

Channel::~Channel() {
  if (base_ != nullptr) munmap(base_, length_);
}

void Channel::ringPeer() const { ring(peer_bell_.get()); }
void Channel::ringOwn() const { ring(own_bell_.get()); }
void Channel::silenceOwn() const {
  uint64_t count = 0;
  while (read(own_bell_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
}

bool sendWithFds(int socket, const void* bytes, size_t length, const int* fds, size_t count) {
  iovec part{const_cast<void*>(bytes), length};
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count != 0) {
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  }
  ssize_t put = 0;
  do {
    put = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (put < 0 && errno == EINTR);
  return put == static_cast<ssize_t>(length);
}

ssize_t receiveWithFds(int socket, void* bytes, size_t length, base::UniqueFd* fds, size_t count) {
  iovec part{bytes, length};
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return -errno;
  size_t taken = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      base::UniqueFd owned(fd);
      noteOwnDescriptor(fd);
      if (taken < count) fds[taken++] = std::move(owned);
    }
  }
  return got;
}

}  // namespace olpager::transport
