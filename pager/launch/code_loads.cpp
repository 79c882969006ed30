#include "pager/launch/code_loads.h"

#include <chrono>
#include <new>

#include "pager/clock.h"
#include "pager/launch/streams.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {

constexpr std::chrono::microseconds kLoadLook{100};
// Work that runs gets nearer to its end within this time, or the load does not wait for it: that
// costs the way of the pages, and no more.
constexpr uint64_t kDrainNs = 20'000'000;
// Pages and what reaches them come nearer to the CPU, or the load is made all the same.
constexpr uint64_t kHomeNs = 1'000'000'000;

// Tells if something goes on changing: it is over when nothing has changed for `most_ns`.
class Progress {
 public:
  explicit Progress(uint64_t most_ns) : most_ns_(most_ns) {}
  bool isOver(uint64_t now_at) {
    const uint64_t now = nowNs();
    if (now_at != at_ || since_ns_ == 0) at_ = now_at, since_ns_ = now;
    return now - since_ns_ > most_ns_;
  }

 private:
  const uint64_t most_ns_;
  uint64_t at_ = 0, since_ns_ = 0;
};

// Managed memory goes to the CPU, until nothing of that comes nearer to it.
template <typename Look>
void callHome(PoolState& state, Look look, Lock& lock) {
  Progress home(kHomeNs);
  for (Managed::Called called;; look()) {
    const uint64_t away = state.managed->callHome(called, lock);  // it may release the mutex
    if (away == 0 || state.stopped) return;
    const uint64_t at =
        away * 0x9e3779b97f4a7c15u + state.streams.underWay(StreamTable::kAllDevices);
    if (at == state.loads.in_vain) return;
    if (home.isOver(at)) {
      state.loads.in_vain = at;
      return;
    }
    state.changed.wait_for(lock, kLoadLook);
  }
}

}  // namespace

CodeLoad Streams::codeLoadBegins(CUdevice device) {
  PoolState& state = *state_;
  if (state.forked.load() || !state.has_managed.load()) return CodeLoad::kPlain;
  Lock lock(state.mutex);
  CodeLoads& loads = state.loads;
  // Deferred launches need the driver before their function is over. But a function may wait for
  // the thread that loads: then it is over only when the load has gone on beside it.
  constexpr uint64_t kAskNs = 100'000'000;
  Progress functions(HostFunctions::kPatienceNs);
  for (uint64_t asked = nowNs();
       !state.stopped && (loads.on(device) || (!state.deferred.empty() &&
                                               !functions.isOver(state.deferred.front()->id)));) {
    state.changed.wait_for(lock, std::chrono::nanoseconds(kAskNs));
    if (state.deferred.empty() || nowNs() - asked < kAskNs) continue;
    lookForEnded(state, lock);
    asked = nowNs();
  }
  if (state.stopped) return CodeLoad::kPlain;
  loads.begins(device);
  const auto look = [&] {
    lock.unlock();
    state.streams.poll();
    lock.lock();
  };
  const auto pause = [&] { state.changed.wait_for(lock, kLoadLook); };
  const auto runs = [&] { return state.anyHostFunction() || state.streams.underWay(device) != 0; };
  Progress drain(kDrainNs);
  for (look(); runs(); look()) {
    if (drain.isOver(state.streams.underWay(device)) || state.stopped) break;
    pause();
  }
  if (!runs()) return CodeLoad::kAlone;
  loads.goesOnBeside(device);
  state.changed.notify_all();
  try {
    callHome(state, look, lock);
  } catch (const std::bad_alloc&) {
    // Then the load begins beside what is not there yet.
  }
  return CodeLoad::kBeside;
}

void Streams::codeLoadEnded(CUdevice device) {
  if (state_->forked.load()) return;
  Lock lock(state_->mutex);
  state_->loads.ended(device);
  state_->changed.notify_all();
}

}  // namespace olpager::pager
