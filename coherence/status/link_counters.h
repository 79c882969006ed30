// Traffic counters of a process's links to gpunodes, to programs and between workers, in shared
// memory: a part of the counters' file of its process (pager/counters/counters.h), which olpagestat
// reads while the process runs. docs/reference/counters.md describes the layout for other readers;
// a change of it raises kCountersVersion there. Links to memservers have figures of their own
// (rdma_counters.h, why_counters.h), with the same rails.
//
// Owner: the process's counters. Thread-safety: bytes and times are added to from any thread;
// names, gauges and rails have one writer at a time, the link's user under his lock. Readers of
// other processes copy it whenever they like. Each figure is true by itself. Bytes are what the
// connections told when they were asked last: about twice a second, a program's at its end too.
// `end` is stored last, with release. Errors: none.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <string_view>

#include "coherence/status/unified_counters.h"

namespace olpager::status {

inline constexpr unsigned kMaxCountedRails = 4;   // of a link
inline constexpr unsigned kMaxCountedPeers = 32;  // links of a process; those beyond share the last

enum class RailState : uint8_t { kNone, kInUse, kSetAside };

/// One rail: a card of this machine, as far as a link uses it.
struct alignas(64) RailCounters {
  char device[40];  // as libibverbs names it, NUL-terminated, cut where it is longer
  Counter port;     // of the device, from 1 on
  Counter state;    // RailState
  Counter bytes;    // read and written by it, since the link came about
};
static_assert(sizeof(RailCounters) == 64);

/// The kind of peer at a link's other end.
enum class LinkEnd : uint8_t {
  kNone,     // the entry is free
  kGpunode,  // a program's session with a gpunode
  kProgram,  // a worker's program
  kWorker,   // a worker of another gpunode, of the same program
};
inline constexpr unsigned kLinkEnds = 4;

/// "gpunode", "program", "worker"; of a number that is none of them "".
constexpr std::string_view textOf(LinkEnd end) {
  constexpr std::string_view kTexts[kLinkEnds] = {"", "gpunode", "program", "worker"};
  const auto number = static_cast<unsigned>(end);
  return number < kLinkEnds ? kTexts[number] : "";
}

/// The link to one peer: all connections that it has been so far. (g): a gauge.
struct alignas(64) LinkBytes {
  char peer[128];       // who it is, as the user knows it; NUL-terminated, cut where it is longer
  Counter end;          // LinkEnd
  Counter transport;    // (g) 1 + transport::LinkKind; 0: it is not up
  Counter sent;         // messages, and memory that this side wrote or the peer read
  Counter received;     // messages, and memory that this side read or the peer wrote
  Counter pinned_sent;  // of `sent`: exchanged pinned memory, ahead of launches that reach it
  Counter pinned_received;  // of `received`: what kernels changed of it
  Counter pinned_sends;     // operations ahead of which some was sent
  Counter pinned_ns;        // that threads of the program took to find what has to be sent
  Counter reserved[8];
  RailCounters rails[kMaxCountedRails];  // of the connection that is up
};
static_assert(sizeof(LinkBytes) == 512);

struct alignas(64) LinksCounters {
  LinkBytes links[kMaxCountedPeers];

  LinkBytes& of(unsigned link) noexcept {
    return links[link < kMaxCountedPeers ? link : kMaxCountedPeers - 1];
  }
};
static_assert(sizeof(LinksCounters) == kMaxCountedPeers * sizeof(LinkBytes));

/// For counters that any thread adds to.
inline void count(Counter& counter, uint64_t more) noexcept {
  counter.fetch_add(more, std::memory_order_relaxed);
}

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

/// The bytes that a connection has carried since they were counted last. The owner is the
/// connection's user, under his lock.
struct CountedBytes {
  uint64_t sent = 0, received = 0;
  /// `now`: as the connection tells it (LinkStats). One that tells less than before has carried
  /// nothing since.
  template <typename Stats>
  CountedBytes since(const Stats& now) {
    const CountedBytes more{now.sent > sent ? now.sent - sent : 0,
                            now.received > received ? now.received - received : 0};
    sent = std::max(sent, now.sent);
    received = std::max(received, now.received);
    return more;
  }
};

/// The rails of a connection as they are told (RailStats), by its members.
template <typename Rails>
void noteRails(RailCounters (&into)[kMaxCountedRails], const Rails& rails) noexcept {
  const auto put = [](Counter& to, uint64_t value) { to.store(value, std::memory_order_relaxed); };
  for (size_t i = 0; i < kMaxCountedRails; ++i) {
    if (i >= rails.size()) {
      put(into[i].state, static_cast<uint64_t>(RailState::kNone));
      continue;
    }
    const auto& rail = rails[i];
    setName(into[i].device, rail.device);
    put(into[i].port, rail.port);
    put(into[i].bytes, rail.bytes);
    put(into[i].state,
        static_cast<uint64_t>(rail.in_use ? RailState::kInUse : RailState::kSetAside));
  }
}

}  // namespace olpager::status
