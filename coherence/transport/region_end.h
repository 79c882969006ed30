// The end of a region in two steps, for callers that may not wait for a peer. Thread-safety: any
// thread.
#pragma once

#include <functional>

#include "coherence/transport/regions.h"

namespace olpager::transport {

/// Takes the key back: nothing new touches the memory. True: nothing does any more, and the
/// region's end waits for no peer. Else `idle` is called once, when nothing does any more, by who
/// was the last to; it must not wait, and is called before any end of the region has returned.
bool revoke(const Region& region, std::function<void()> idle);

}  // namespace olpager::transport
