// The path of an operation while something is not in VRAM, where its caller waits.
#include <chrono>

#include "pager/launch/acquisition.h"
#include "pager/pool.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

CUresult Access::acquireSlow() {
  PoolState& state = *pool_.state_;
  Lock lock(state.mutex);
  Acquisition acquisition(state, operation_);
  acquisition.begin(lock);
  while (acquisition.commit(lock, submission_) == Acquisition::State::kWaiting) {
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
    acquisition.ready(lock);
  }
  if (acquisition.state() == Acquisition::State::kRefused) return acquisition.result();
  lock.unlock();
  if (submission_.timed != nullptr) submission_.timed->begin(state.driver, operation_.stream);
  return CUDA_SUCCESS;
}

}  // namespace olpager::pager
