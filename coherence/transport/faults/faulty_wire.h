// A relay in front of a TCP listener that does to bytes what networks and broken peers do: holds a
// connection's bytes back (so that lanes overtake each other), changes them, loses the end of them,
// cuts connections. Seeded.
//
// Thread-safety: any thread. Runs threads of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace olpager::transport {

/// Chances are of 1 000 000 for each piece of up to 64 KiB that passes.
struct WirePlan {
  uint64_t seed = 1;
  uint32_t delay = 0;
  uint32_t delay_us = 0;
  uint32_t cut = 0;      // the connection ends, after a part of the piece
  uint32_t corrupt = 0;  // a bit is another
  uint64_t quiet_bytes =
      0;  // of each connection and direction that pass unharmed first (the handshake)
};

class FaultyWire {
 public:
  virtual ~FaultyWire() = default;
  /// To connect to.
  virtual const std::string& address() const = 0;
  /// From now on nothing passes any more, and nobody is told: a cable is pulled.
  virtual void freeze() = 0;
  /// Bytes that were held back go on.
  virtual void thaw() = 0;
  /// From now on messages longer than a few short ones pass a byte at a time, ten a second.
  virtual void drip() = 0;
  /// Every connection that there is ends now; new ones are taken.
  virtual void cut() = 0;
  virtual uint64_t faults() const = 0;
};

/// `target`: host:port of the listener.
Result<std::unique_ptr<FaultyWire>> makeFaultyWire(const std::string& target, const WirePlan& plan);

}  // namespace olpager::transport
