// Faults for tests: wraps an endpoint; the code under test gets the wrapped one and is none the
// wiser. Arrivals are delayed, reordered, corrupted or cut short, and links break, as the seed has
// it. Contracts still hold: each operation completes once, messages stay in order, nothing comes
// after kDown.
//
// Faults below the interface (bytes of a connection lost or changed) are made by FaultyWire, for
// TCP.
//
// Thread-safety: as what it wraps. Listeners of a faulty endpoint hand out faulty links as well.
#pragma once

#include <atomic>
#include <memory>

#include "coherence/transport/transport.h"

namespace olpager::transport {

/// Chances are of 1 000 000, for each completion that passes (drop: for each operation or message
/// posted).
struct FaultPlan {
  uint64_t seed = 1;
  uint32_t delay =
      0;  // held back for up to delay_us; later ones of other operations pass it (reordering)
  uint32_t delay_us = 0;
  uint32_t drop = 0;      // the link breaks; what was under way has landed in part
  uint32_t corrupt = 0;   // a bit of the bytes read, or of the message, is another
  uint32_t truncate = 0;  // a message loses its end; a read loses its link half-way
};

struct FaultCounts {
  std::atomic<uint64_t> delayed{0}, dropped{0}, corrupted{0}, truncated{0};
};

/// `counts` may be null; it has to outlive the endpoint's links.
std::unique_ptr<Endpoint> makeFaulty(std::unique_ptr<Endpoint> endpoint, const FaultPlan& plan,
                                     FaultCounts* counts = nullptr);

}  // namespace olpager::transport
