// What a program's RDMA cards do for it, in shared memory: a part of the counters' file
// (counters.h). docs/reference/counters.md describes the layout for other readers; a change of it
// raises kCountersVersion.
//
// Thread-safety: one writer at a time, the worker of the tier of memservers, but for
// `refused_bytes`, which whoever makes VRAM chunks adds to; readers of other processes copy it
// whenever they like. Names are written by that writer too, and only where they change. Errors:
// none.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

#include "coherence/status/unified_counters.h"

namespace olpager::pager {

inline constexpr unsigned kMaxCountedLinks = 16;  // links beyond are not shown
inline constexpr unsigned kMaxCountedRails = 4;   // of a link

enum class RailState : uint8_t { kNone, kInUse, kSetAside };

/// One rail: a card of this machine, as far as a link uses it.
struct alignas(64) RailCounters {
  char device[40];        // as libibverbs names it, NUL-terminated, cut where it is longer
  status::Counter port;   // of the device, from 1 on
  status::Counter state;  // RailState
  status::Counter bytes;  // read and written by it, since the link came about
};
static_assert(sizeof(RailCounters) == 64);

/// A link over verbs. One without rails in use or set aside is none.
struct alignas(64) LinkCounters {
  char
      peer[128];  // the memserver's address as it was named, NUL-terminated, cut where it is longer
  RailCounters rails[kMaxCountedRails];
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

/// Writes a name where it is another one than before.
template <size_t size>
void setName(char (&into)[size], std::string_view name) noexcept {
  const size_t length = std::min(name.size(), size - 1);
  if (name.compare(0, length, into, strnlen(into, size)) == 0) return;
  std::memcpy(into, name.data(), length);
  std::memset(into + length, 0, size - length);
}

/// As text: "in use", "set aside"; of anything else "".
constexpr std::string_view textOf(RailState state) {
  return state == RailState::kInUse ? "in use" : state == RailState::kSetAside ? "set aside" : "";
}

/// Of a copy: whether the link has rails.
inline bool hasRails(const LinkCounters& link) noexcept {
  return std::any_of(std::begin(link.rails), std::end(link.rails), [](const RailCounters& rail) {
    return rail.state.load(std::memory_order_relaxed) != 0;
  });
}

}  // namespace olpager::pager
