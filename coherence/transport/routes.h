// Several processes behind one address: the one that listens there hands connections on to the
// others. Whom a connection is for it says in the clear before anything else: a route, a number
// that is not 0. A route only names: that both ends are who they should be the handshake proves,
// with whoever the connection was handed to.
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

/// What connections are handed over by: `from` is for Routes::add, `to` for Endpoint::listenBehind,
/// in whatever process.
struct HandoverSockets {
  base::UniqueFd from, to;
};
Result<HandoverSockets> makeHandoverSockets();

/// Who is behind an address. Thread-safety: any thread; its lock is a leaf, and nothing is waited
/// for under it.
class Routes {
 public:
  /// Connections with `route` go to who listens behind `socket`, from now on.
  void add(uint64_t route, base::UniqueFd socket);
  /// None goes there any more. Those that have gone stay.
  void remove(uint64_t route);

  enum class Handed : uint8_t { kTaken, kNobody, kFull };
  /// For a listener: hands over a connection of which `said` has been read. kTaken: the caller's
  /// descriptor is one too many. kNobody: there is no such route, or who listened there is gone.
  /// kFull: who listens there is far behind, or the system passes no more descriptors now.
  Handed hand(uint64_t route, int connection, std::span<const std::byte> said);

 private:
  std::mutex mutex_;
  std::map<uint64_t, base::UniqueFd> sockets_;
};

}  // namespace olpager::transport
