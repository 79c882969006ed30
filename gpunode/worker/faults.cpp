#include "gpunode/worker/faults.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/kernel_faults.h"
#include "gpunode/worker/relaxed.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstTurn = 2ms, kLastTurn = 500ms;

}  // namespace

void FaultWatch::add(uint64_t context) {
  const auto isWatched = [&] {
    std::lock_guard lock(mutex_);
    const bool watched = watched_.contains(context);
    if (watched) last_.store(context, std::memory_order_relaxed);
    return watched;
  };
  if (isWatched()) return;
  const std::lock_guard hands(hands_);
  if (isWatched()) return;
  Watched made;
  const CUresult state = stateOf(context, made);
  // A context that is gone may be there again under its number, and is asked anew then.
  if (made.stream == nullptr && state != CUDA_SUCCESS && !base::isKernelFault(state)) return;
  std::lock_guard lock(mutex_);
  watched_.emplace(context, made);
  last_.store(context, std::memory_order_relaxed);
}

std::chrono::milliseconds FaultWatch::turn() {
  if (worked_.exchange(false, std::memory_order_relaxed) || turn_ == 0ms) turn_ = kFirstTurn;
  return turn_;
}

void FaultWatch::attend() {
  if (Clock::now() - asked_ < turn_) return;
  const std::unique_lock hands(hands_, std::try_to_lock);
  if (!hands) return;
  ask(false);
  asked_ = Clock::now();
  turn_ = std::min<std::chrono::milliseconds>(2 * turn_, kLastTurn);
}

bool FaultWatch::look(uint64_t context) {
  const std::lock_guard hands(hands_);
  ask(true);
  std::lock_guard lock(mutex_);
  const auto found = watched_.find(context);
  return found != watched_.end() && found->second.told;
}

CUresult FaultWatch::stateOf(uint64_t context) {
  const std::lock_guard hands(hands_);
  Watched* watched = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = watched_.find(context);
    if (found == watched_.end() || found->second.stream == nullptr) return CUDA_SUCCESS;
    watched = &found->second;
  }
  const CUresult state = stateOf(context, *watched);
  worker_.setCurrent(nullptr);  // as in ask()
  return state;
}

// Under hands_, without which nothing of what is watched changes.
void FaultWatch::ask(bool makes_streams) {
  std::vector<std::pair<uint64_t, Watched*>> all;
  {
    std::lock_guard lock(mutex_);
    for (auto& [context, watched] : watched_) {
      if (!watched.told && (watched.stream != nullptr || makes_streams))
        all.emplace_back(context, &watched);
    }
  }
  if (all.empty()) return;
  for (const auto& [context, watched] : all) {
    const CUresult state = stateOf(context, *watched);
    if (!base::isKernelFault(state)) continue;
    {
      std::lock_guard lock(mutex_);
      watched->told = true;
    }
    worker_
        .drainText();  // what is said of a failure is there before it is: the program may end then
    worker_.tell(forward::Answer::kFault, 0, state, std::as_bytes(std::span(&context, 1)), true);
  }
  worker_.setCurrent(nullptr);  // another thread may destroy what this one has asked about
}

// By a stream of the watch's own: to ask one of the program's, or the default one, would be part of
// a capture. Nothing is made current again behind it: every call begins with its own, and what was
// current before may be gone.
CUresult FaultWatch::stateOf(uint64_t context, Watched& watched) {
  const api::DriverTable& driver = worker_.driver();
  uint64_t there = 0;
  if (driver.cuStreamCreate == nullptr || driver.cuStreamQuery == nullptr ||
      !worker_.handles().find(context, HandleKind::kContext, &there))
    return CUDA_SUCCESS;
  worker_.setCurrent(handleFrom<CUcontext>(there));
  const Relaxed relaxed(driver);
  if (watched.stream != nullptr) return driver.cuStreamQuery(watched.stream);
  const CUresult made = driver.cuStreamCreate(&watched.stream, CU_STREAM_NON_BLOCKING);
  if (made != CUDA_SUCCESS) watched.stream = nullptr;
  return made;
}

void FaultWatch::contextEnds(uint64_t context) {
  const std::lock_guard hands(hands_);
  Watched watched;
  {
    std::lock_guard lock(mutex_);
    const auto found = watched_.extract(context);
    if (found.empty()) return;
    watched = found.mapped();
    last_.store(0, std::memory_order_relaxed);
  }
  uint64_t there = 0;
  if (watched.stream == nullptr || !worker_.handles().find(context, HandleKind::kContext, &there))
    return;
  const Relaxed relaxed(worker_.driver());
  worker_.setCurrent(handleFrom<CUcontext>(there));
  (void)worker_.driver().cuStreamDestroy_v2(watched.stream);  // where the context stays
}

}  // namespace olpager::gpunode
