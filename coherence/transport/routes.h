// Several processes behind one address: the one that listens there hands connections on to the
// others. A connection names its destination in the clear before anything else: a route, a number
// that is not 0. A route only names: that both ends are who they should be the handshake proves,
// with the process to which the connection was handed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace olpager::transport {

/// The two ends over which connections are handed: `from` is for Routes::add, `to` for
/// Endpoint::listenBehind, in any process.
struct HandoverSockets {
  base::UniqueFd from, to;
};
Result<HandoverSockets> makeHandoverSockets();

/// The processes behind an address. Thread-safety: any thread; its lock is a leaf, and nothing is
/// waited for under it.
class Routes {
 public:
  /// Connections with `route` go to the listener behind `socket`, from now on.
  void add(uint64_t route, base::UniqueFd socket);
  /// None goes there any more. Those that have gone stay.
  void remove(uint64_t route);

  enum class Handed : uint8_t { kTaken, kNobody, kFull };
  /// For a listener: hands over a connection of which `said` has been read. kTaken: the caller's
  /// descriptor is one too many. kNobody: there is no such route, or its listener is gone. kFull:
  /// the listener is far behind, or the system passes no more descriptors now.
  Handed hand(uint64_t route, int connection, std::span<const std::byte> said);

 private:
  std::mutex mutex_;
  std::map<uint64_t, base::UniqueFd> sockets_;
};

}  // namespace olpager::transport
