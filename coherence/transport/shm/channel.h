// The memory and descriptors that the two ends of a shm link share: a ring and a bell for each
// direction, and for each end a few slots through which it copies what it can't map. The acceptor
// makes it and sends it over the Unix socket.
#pragma once

#include <memory>

#include "base/fd.h"
#include "base/result.h"
#include "coherence/transport/shm/ring.h"

namespace olpager::transport {

class Channel {
 public:
  static constexpr uint32_t kSlots = 8;
  static constexpr uint64_t kSlotBytes = 256 << 10;

  /// `acceptor`: the side that makes it.
  static Result<std::unique_ptr<Channel>> make(uint32_t message_bytes);
  static Result<std::unique_ptr<Channel>> open(base::UniqueFd memory, base::UniqueFd own_bell,
                                               base::UniqueFd peer_bell, uint32_t message_bytes);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  Ring out, in;
  std::byte* ownSlot(uint32_t slot) const { return own_slots_ + slot * kSlotBytes; }
  std::byte* peerSlot(uint32_t slot) const { return peer_slots_ + slot * kSlotBytes; }
  int memoryFd() const { return memory_.get(); }
  int ownBell() const { return own_bell_.get(); }
  int peerBell() const { return peer_bell_.get(); }
  void ringPeer() const;
  void silenceOwn() const;
  void ringOwn() const;

 private:
  Channel() = default;
  Result<std::unique_ptr<Channel>> static map(std::unique_ptr<Channel> channel,
                                              uint32_t message_bytes, bool acceptor);
  base::UniqueFd memory_, own_bell_, peer_bell_;
  std::byte* base_ = nullptr;
  uint64_t length_ = 0;
  std::byte* own_slots_ = nullptr;
  std::byte* peer_slots_ = nullptr;
};

/// Sends `length` bytes and up to 3 descriptors in one piece; false when the socket does not take
/// them now.
bool sendWithFds(int socket, const void* bytes, size_t length, const int* fds, size_t count);
/// Receives what sendWithFds sent: bytes, 0 at the end, or a negative errno. Descriptors beyond
/// `count` are closed.
ssize_t receiveWithFds(int socket, void* bytes, size_t length, base::UniqueFd* fds, size_t count);

}  // namespace olpager::transport
