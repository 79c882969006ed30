// Counters of a program's RDMA cards, in shared memory: a part of the counters' file (counters.h).
// docs/reference/counters.md describes the layout for other readers; a change of it raises
// kCountersVersion.
//
// Thread-safety: one writer at a time, the worker of the tier of memservers, but for
// `refused_bytes`, to which the maker of VRAM chunks adds; readers of other processes copy it
// whenever they like. Names are written by that writer too, and only where they change. Errors:
// none.
#pragma once

#include <algorithm>
#include <iterator>

#include "coherence/status/link_counters.h"

namespace olpager::pager {

inline constexpr unsigned kMaxCountedLinks = 16;  // links beyond are not shown

using status::RailCounters;
using status::RailState;
using status::setName;
using status::textOf;

/// A link over verbs. One without rails in use or set aside is none.
struct alignas(64) LinkCounters {
  char
      peer[128];  // the memserver's address as it was named, NUL-terminated, cut where it is longer
  RailCounters rails[status::kMaxCountedRails];
};
static_assert(sizeof(LinkCounters) == 384);

struct alignas(64) RdmaCounters {
  // Bytes of pages between this process and memservers, over verbs:
  status::Counter direct_in;   // memservers to VRAM, without host memory between
  status::Counter direct_out;  // VRAM to memservers, likewise
  status::Counter frames_in;   // memservers to host memory
  status::Counter frames_out;  // host memory to memservers
  // Of VRAM that a card could not have: pages go by host memory there.
  status::Counter refused_bytes;
  status::Counter reserved[3];
  LinkCounters links[kMaxCountedLinks];
};
static_assert(sizeof(RdmaCounters) == 64 + kMaxCountedLinks * sizeof(LinkCounters));

/// True if the link of a copy of counters has rails.
inline bool hasRails(const LinkCounters& link) noexcept {
  return std::any_of(std::begin(link.rails), std::end(link.rails), [](const RailCounters& rail) {
    return rail.state.load(std::memory_order_relaxed) != 0;
  });
}

}  // namespace olpager::pager
