#include "gpunode/worker/client_functions.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gpunode/worker/relaxed.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

void ClientFunctions::call(uint32_t number, CUresult status) {
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

// --- graphs --------------------------------------------------------------------------------------

CUresult ClientFunctions::launchGraph(Invocation& in, const CalledWith& with,
                                      forward::Reader arguments,
                                      const std::function<CUresult()>& launch) {
  if (!in_graphs_.load()) return launch();
  (void)arguments.raw(static_cast<uint64_t>(with.stream));
  const auto number = arguments.value<uint64_t>();
  const CUstream stream = in.streamOf(number, with.per_thread);
  // Part of a graph that is captured is launched with that.
  if (!in.ok() || isCapturing(in, stream)) return launch();
  launching_.fetch_add(1);
  const CUresult result = launch();
  if (result == CUDA_SUCCESS) mark(in, {number, stream});
  launching_.fetch_sub(1);
  return result;
}

// If the driver gives no event, nothing is known, as behind a fault.
void ClientFunctions::mark(Invocation& in, const StreamKey& key) {
  const api::DriverTable& driver = in.driver();
  const uint64_t context = in.enterContextOf(key.second);
  Passed passed;
  {
    const std::lock_guard lock(graphs_mutex_);
    const auto found = passed_.find(key);
    if (found != passed_.end() && found->second.context == context) {
      found->second.mark = ++marks_;  // who asks meanwhile does not take the event away
      passed = found->second;
    }
  }
  if (passed.event == nullptr) {
    if (driver.cuEventCreate(&passed.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
    passed.context = context;
  }
  const bool recorded = driver.cuEventRecord(passed.event, key.second) == CUDA_SUCCESS;
  if (!recorded && passed.mark == 0) (void)driver.cuEventDestroy_v2(passed.event);
  if (!recorded) return;
  const std::lock_guard lock(graphs_mutex_);
  passed.mark = ++marks_;
  passed_.insert_or_assign(key, passed);
  marked_.store(passed_.size());
}

// Asking is allowed while something captures only to who says that it knows what it does.
bool ClientFunctions::graphsAreAhead() {
  if (launching_.load() != 0) return true;
  if (marked_.load() == 0) return false;
  std::vector<std::pair<StreamKey, Passed>> asked;
  {
    const std::lock_guard lock(graphs_mutex_);
    asked.assign(passed_.begin(), passed_.end());
  }
  const api::DriverTable& driver = worker_.driver();
  const Relaxed relaxed(driver);
  for (const auto& [key, passed] : asked) {
    if (driver.cuEventQuery(passed.event) == CUDA_ERROR_NOT_READY) return true;
    {
      const std::lock_guard lock(graphs_mutex_);
      const auto found = passed_.find(key);
      // Another thread has taken it, or another graph was launched meanwhile.
      if (found == passed_.end() || found->second.mark != passed.mark) continue;
      passed_.erase(found);
      marked_.store(passed_.size());
    }
    (void)driver.cuEventDestroy_v2(passed.event);
  }
  return launching_.load() != 0 || marked_.load() != 0;
}

void ClientFunctions::awaitGraphs() {
  using namespace std::chrono_literals;
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (graphsAreAhead() && !worker_.ended() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
}

void ClientFunctions::contextGone(uint64_t context) {
  const std::lock_guard lock(graphs_mutex_);
  std::erase_if(passed_, [&](const auto& one) { return one.second.context == context; });
  marked_.store(passed_.size());
}

}  // namespace olpager::gpunode
