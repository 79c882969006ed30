#include "gpunode/worker/client_functions.h"

#include <chrono>

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

void ClientFunctions::call(uint32_t number, CUresult status) {
  constexpr auto kSlice = std::chrono::milliseconds(500);
  {
    std::lock_guard lock(mutex_);
    ++called_[number].calls;
  }
  worker_.lead().functionBegins();
  worker_.tell(forward::Answer::kHostFunction, number, status, {}, true);
  {
    std::unique_lock lock(mutex_);
    // Without the client the stream must go on, or nothing of the session could be taken down.
    Called& called = called_[number];  // stays: this call is counted
    while (!worker_.ended() && called.done == 0) done_.wait_for(lock, kSlice);
    if (called.done != 0) --called.done;
    if (--called.calls == 0) called_.erase(number);
  }
  worker_.lead().functionIsOver();
}

void ClientFunctions::isOver(uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = called_.find(number);
  if (found == called_.end()) return;  // nonsense
  ++found->second.done;
  done_.notify_all();
}

}  // namespace olpager::gpunode
