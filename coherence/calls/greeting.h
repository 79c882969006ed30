// What both ends of a Channel say to each other on a fresh link before they attach it: the version,
// and the last message that each has taken. Who may use the channel is the link's business (its key
// is the session's secret).
//
// Thread-safety: the queue is the caller's alone while these run. They wait for at most the time
// given.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/result.h"
#include "coherence/transport/transport.h"

namespace olpager::calls {

/// The connecting end: says `taken`, returns what the peer has taken.
Result<uint64_t> greet(transport::Link& link, transport::CompletionQueue& queue, uint64_t taken,
                       std::chrono::milliseconds timeout);
/// The accepting end, once the link is up: the same the other way round.
Result<uint64_t> answerGreeting(transport::Link& link, transport::CompletionQueue& queue,
                                uint64_t taken, std::chrono::milliseconds timeout);

}  // namespace olpager::calls
