// The greeting of a Channel: on a fresh link, before they attach it, both ends exchange the version
// and the last message that each has taken. The link decides who may use the channel (its key is
// the session's secret).
//
// Thread-safety: the queue is the caller's alone while these run. Each function waits for at most
// the time given.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/result.h"
#include "coherence/transport/transport.h"

namespace olpager::calls {

/// The connecting end: says `taken`, returns the last message that the peer has taken.
Result<uint64_t> greet(transport::Link& link, transport::CompletionQueue& queue, uint64_t taken,
                       std::chrono::milliseconds timeout);
/// The accepting end, once the link is up: the same the other way round.
Result<uint64_t> answerGreeting(transport::Link& link, transport::CompletionQueue& queue,
                                uint64_t taken, std::chrono::milliseconds timeout);

}  // namespace olpager::calls
