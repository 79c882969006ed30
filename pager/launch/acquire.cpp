// The path of an operation while something is not in VRAM, where its caller waits or makes it again
// later.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "pager/clock.h"
#include "pager/launch/acquisition.h"
#include "pager/launch/deferred.h"
#include "pager/launch/external_operation.h"
#include "pager/pool.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

namespace {

using namespace std::chrono_literals;

// A wait that is shorter is not worth telling.
constexpr uint64_t kMomentNs = 500'000;

std::atomic<void (*)()> g_on_wait{nullptr};

// Looks again whenever something has changed, until the operation waits no more. `tell`: is told
// once, when that has taken a moment, at once where it waits for other executors, and null from
// then on.
void await(Acquisition& acquisition, PoolState& state, void (*&tell)(), Lock& lock) {
  const uint64_t began = tell != nullptr ? nowNs() : 0;
  const auto say = [&] {
    lock.unlock();
    std::exchange(tell, nullptr)();
    lock.lock();
  };
  if (tell != nullptr && acquisition.waitsForOthers()) {
    say();
    if (acquisition.ready(lock) != Acquisition::State::kWaiting) return;
  }
  do {
    // A touch of what the operation claims waits until it is submitted: by its own thread in a
    // signal handler, or by another one while this one is stopped.
    std::optional<base::HeldSignals> held;
    if (acquisition.claims()) held.emplace();
    state.changed.wait_for(lock, tell != nullptr ? std::chrono::nanoseconds(kMomentNs) : kLook);
    if (tell == nullptr || nowNs() - began < kMomentNs) continue;
    say();
  } while (acquisition.ready(lock) == Acquisition::State::kWaiting && !acquisition.mayDefer());
}

// True if the acquisition need not wait any more within a moment.
bool comesSoon(Acquisition& acquisition, PoolState& state, Lock& lock) {
  const uint64_t began = nowNs();
  while (!acquisition.waitsForOthers()) {
    const uint64_t took = nowNs() - began;
    if (took >= kMomentNs) return false;
    state.changed.wait_for(lock, std::chrono::nanoseconds(kMomentNs - took));
    if (acquisition.ready(lock) != Acquisition::State::kWaiting || acquisition.mayDefer())
      return true;
  }
  return false;
}

}  // namespace

void onWait(void (*call)()) { g_on_wait.store(call); }

void tellOfWait() {
  if (auto* const tell = g_on_wait.load(std::memory_order_relaxed); tell != nullptr) tell();
}

void Access::madeInParts() const {
  if (beyond_) countGraphLaunch(beyond_->device, beyond_->bytes, true, true);
}

CUresult Access::acquireSlow(bool suspends) {
  PoolState& state = *pool_.state_;
  ExternalOperation* const external = suspends ? ExternalOperation::current() : nullptr;
  suspends = external != nullptr && external->resumable != nullptr;
  Lock lock(state.mutex);
  std::optional<Acquisition> here;
  std::unique_ptr<Acquisition> kept;
  if (suspends) kept = std::move(external->kept);
  const bool resumed = kept != nullptr;
  if (suspends && !resumed) kept = std::make_unique<Acquisition>(state, operation_);
  Acquisition& acquisition = suspends ? *kept : here.emplace(state, operation_);
  if (!resumed) acquisition.begin(lock);
  auto* tell = g_on_wait.load(std::memory_order_relaxed);
  bool has_turn = false;
  while (acquisition.commit(lock, submission_) == Acquisition::State::kWaiting) {
    if (acquisition.mayDefer()) {
      if (!has_turn && takeTurn(state, pool_, operation_.stream, lock)) {
        has_turn = true;
        if (acquisition.ready(lock) != Acquisition::State::kWaiting || !acquisition.mayDefer())
          continue;
      }
      submission_.number = acquisition.defer(lock);
      return CUDA_SUCCESS;
    }
    if (suspends) {
      if (!resumed && comesSoon(acquisition, state, lock)) continue;
      acquisition.keep();
      external->kept = std::move(kept);
      state.suspended.add(*external);
      return kSuspended;
    }
    await(acquisition, state, tell, lock);
  }
  if (acquisition.state() == Acquisition::State::kRefused) {
    beyond_ = acquisition.beyond();
    return acquisition.result();
  }
  lock.unlock();
  if (submission_.timed != nullptr) submission_.timed->begin(state.driver, operation_.stream);
  return CUDA_SUCCESS;
}

}  // namespace olpager::pager
