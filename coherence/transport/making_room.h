// Chooses the holder that makes room when a daemon's places are taken: of those who hold one
// without need, one of the key that holds most of them, there of the address that does, there the
// oldest. So a peer that takes places without end takes them from itself. Thread-safety: pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coherence/transport/transport.h"

namespace olpager::transport {

/// A holder of a place that it does not need.
struct Holder {
  const PeerInfo* peer = nullptr;
  int64_t since_ms = 0;
};

struct MakesRoom {
  size_t which = 0;       // of the holders
  size_t of_key = 0;      // how many hold one with its key
  size_t of_address = 0;  // and of these from its address
};
/// `holders` is not empty.
MakesRoom whoMakesRoom(const std::vector<Holder>& holders);
/// One number for all addresses that may be one peer's, as SocketAddress::source().
uint64_t sourceOf(const PeerInfo& peer);

}  // namespace olpager::transport
