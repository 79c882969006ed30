// For the targets of the transport: an endpoint that listens, and the means of a peer that breaks
// every rule, from plain sockets up to a link whose frames it makes itself. The endpoint's side is
// real: its threads, its checks, its limits.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "coherence/transport/core/endpoint.h"
#include "coherence/transport/shm/channel.h"

namespace olpager::transport::fuzz {

using Bytes = std::span<const uint8_t>;

/// One for the whole process: with a key or without.
class Victim {
 public:
  static constexpr uint64_t kRoute = 0x0707070707070707;
  /// `behind`: it listens behind another, which hands it connections with kRoute and takes none
  /// itself.
  explicit Victim(bool keyed, bool behind = false);
  uint16_t port() const { return port_; }
  const RemoteKey& key() const { return key_; }
  /// Takes what its links said, until each that came up is down; ends the program when that takes
  /// longer than 10 s: it hangs.
  void settle();

 private:
  std::unique_ptr<Endpoint> endpoint_, front_;
  DomainPtr domain_;
  QueuePtr queue_;
  std::unique_ptr<Listener> listener_, front_listener_;
  std::vector<std::byte> memory_;
  RegionPtr region_;
  RemoteKey key_;
  uint16_t port_ = 0;
  std::atomic<uint64_t> accepted_{0};
  uint64_t down_ = 0;
};

/// A connection to it, from an address of its own (so that ports don't run out).
base::UniqueFd connectTo(const Victim& victim);
/// Sends it all and says that it was all, takes what comes until the other end closes; ends the
/// program when that takes longer than 10 s.
void say(int fd, Bytes bytes);
void sayExactly(int fd, const void* bytes, size_t length);
bool hear(int fd, void* bytes, size_t length);

/// A link as an honest peer makes it, up to where frames begin.
struct Peer {
  /// `shared`: by shared memory. Without a key.
  Peer(const Victim& victim, bool shared);
  bool up = false;
  wire::Hello hello;  // the victim's
  LinkSecrets secrets;
  LinkId id{};
  base::UniqueFd control;            // tcp; shm: the Unix socket
  base::UniqueFd lane;               // tcp
  std::unique_ptr<Channel> channel;  // shm
};

/// Calls `each` with the pieces of `data` that are frames by their own length (the last one:
/// whatever is left), headers made of this version. A key of all 0x41 becomes the key that was
/// granted.
void forFrames(Bytes data, const RemoteKey& key,
               const std::function<void(std::vector<uint8_t>& frame)>& each);

}  // namespace olpager::transport::fuzz
