// The table of a session's stand-ins (stand_ins.h, which is the face).
//
// Locks: StandInTable::send_mutex, under which changes go in the order in which they were seen;
// below it StandInTable::mutex; below that the one of SpareStandIns. Calls are made under the first
// alone.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "interpose/forward/stand_ins.h"

namespace olpager::forward {

/// Memory at a worker.
struct StandInPlace {
  Session* session = nullptr;
  uint64_t there = 0;
  uint64_t room = 0;
  std::vector<std::byte> agreed;  // what both last agreed on; as long as `room`
};

/// Places that nobody needs any more. A launch may still use them: they serve again when none of
/// the session's is under way.
struct SpareStandIns {
  std::mutex mutex;
  std::vector<StandInPlace> all;
};

struct StandIn {
  StandIn(StandInPlace&& at, uint64_t address, uint64_t count)
      : place(std::move(at)), here(address), bytes(count) {}
  ~StandIn();  // whoever drops it may hold the table's mutex
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  StandInPlace place;
  const uint64_t here;
  const uint64_t bytes;
};

struct StandInTable {
  using StreamOf = std::pair<CUstream, uint32_t>;  // with the thread whose default stream it is
  struct Exec {
    StandIns base;                            // of its graph
    std::map<CUgraphNode, StandIns> changed;  // by node
  };

  std::mutex send_mutex;
  std::mutex mutex;
  // By address at the worker; one that is gone stays until its place serves another.
  std::map<uint64_t, std::weak_ptr<StandIn>> there;
  std::map<CUgraphExec, Exec> execs;
  std::map<CUgraphNode, StandIns> nodes;
  std::set<CUgraph> bodies;
  uint64_t sent = 0;                               // bytes, since no launch was under way
  StreamOf stream{};                               // of the last launch
  std::atomic<uint32_t> live{0}, with{0}, set{0};  // stand-ins, entries of `execs`, of `nodes`
  SpareStandIns spare;

  void count() {
    with.store(static_cast<uint32_t>(execs.size()));
    set.store(static_cast<uint32_t>(nodes.size()));
  }
};

}  // namespace olpager::forward
