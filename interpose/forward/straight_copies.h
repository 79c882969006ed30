// Copies between devices of two gpunodes that go straight from worker to worker
// (docs/internals/forwarding.md). Two workers are linked at the first copy between them: the one of
// the lower slot connects, or, where that can't be, the other one. If neither reaches the other,
// copies go through this process: told once, and tried again at long intervals.
//
// States of a pair: unlinked -> linked -> unlinked (lost) ...; refused, for a time. Thread-safety:
// any thread.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "forwarding/wire/straight.h"
#include "interpose/forward/program.h"

namespace olpager::forward {

class Call;
class Executor;
class Session;

/// By `call`, a kPeerLink: the worker that it goes to, which is the program's in `slot`, connects
/// to that of `to`. `text`: how, or why not. `result`: whether it could be asked.
PeerLinked linkWorker(Call& call, unsigned slot, const Executor& to, std::string* text,
                      CUresult* result);

/// Links between workers.
struct PeerLinks {
  struct Pair {
    std::mutex mutex;  // held while the workers are linked, which takes seconds at most
    PeerLinked linked = PeerLinked::kNo;
    uint64_t link = 0;  // counts links: which one was lost
    std::chrono::steady_clock::time_point retry{};
    bool told = false;
  };
  std::array<std::array<Pair, kMostSessions>, kMostSessions> pairs;  // by slot, the lower first
  std::atomic<uint64_t> next_copy{1};
};

/// One end of a copy, and where it is ordered.
struct StraightEnd {
  Session* session = nullptr;
  CUdeviceptr address = 0;
  uint64_t context = 0;  // 0: the caller's
  CUstream stream = nullptr;
  bool per_thread = false;
  bool now = false;  // what it has to be behind is done already
};

/// Behind what is in both streams; returns when it is over. Nothing: there is no link, or it was
/// lost on the way; the copy has to be made, or made again, in another way.
std::optional<CUresult> copyStraight(const StraightEnd& to, const StraightEnd& from,
                                     uint64_t bytes);
/// One that went through this process, for the count.
void countThroughHere(uint64_t bytes);
/// At the program's end, in the log: how much went which way.
void tellCopiesBetween();

}  // namespace olpager::forward
