// Finds the counters for a link to a gpunode: in the process's counters, by the slot of the worker
// (coherence/status/link_counters.h). Thread-safety: any thread. Owner: the program's counters,
// which outlive everything here.
#pragma once

#include "coherence/status/link_counters.h"
#include "interpose/forward/program.h"

namespace olpager::forward {

using LinksSource = status::LinksCounters& (*)();

/// Before the sessions are connected, which asks for them once. Nobody has said so: nothing is
/// counted.
inline void countLinks(LinksSource source) { program().links_source.store(source); }

/// The counters of the program's worker in `slot`; null: nothing is counted.
inline status::LinkBytes* countedLink(unsigned slot) {
  status::LinksCounters* const all = program().links.load(std::memory_order_acquire);
  return all != nullptr ? &all->of(slot) : nullptr;
}

}  // namespace olpager::forward
