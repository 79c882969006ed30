// Natively a driver calls the listeners before the call that it logs something of returns. Here the
// lines come before that call's answer, and the functions run beside it (notifications.h). While
// somebody listens, each session's worker is told to send what its driver logs.
//
// Locks: `registering` (while workers are told; above the sessions' own), then `mutex`, a leaf.
// Neither is held while a function runs.
#include "interpose/forward/logs.h"

#include <string>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/notifications.h"

namespace olpager::forward {
namespace {

LogListeners& listeners() { return *program().parts().listeners; }

// All of them, whatever one says. The first error where none of them does it.
CUresult tellWorkers(bool listen) {
  CUresult first = CUDA_SUCCESS;
  bool any = false;
  for (Session* const session : sessions()) {
    bool& listens = listeners().listens[session->slot()];
    if (listens == listen) continue;
    Call call(Operation::kLogsListen, session);
    call.needsNoContext();
    call.value(static_cast<uint8_t>(listen));
    if (listen) session->somethingComes();
    const CUresult result = call.sync();
    listens = listen && result == CUDA_SUCCESS;
    if (!listens) session->nothingComes();
    any |= result == CUDA_SUCCESS;
    if (first == CUDA_SUCCESS) first = result;
  }
  return any ? CUDA_SUCCESS : first;
}

void callAll(CUlogLevel level, std::string line) {
  LogListeners& all = listeners();
  std::unique_lock lock(all.mutex);
  uint64_t number = 0;
  for (auto at = all.of.begin(); at != all.of.end(); at = all.of.upper_bound(number)) {
    all.called = number = at->first;
    const LogListeners::Listener listener = at->second;
    lock.unlock();
    listener.function(listener.data, level, line.data(), line.size());
    lock.lock();
    all.called = 0;
    all.ended.notify_all();
  }
}

}  // namespace

void driverLogged(uint32_t level, std::string_view line) {
  notify(
      [level = static_cast<CUlogLevel>(level), line = std::string(line)] { callAll(level, line); });
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuLogsRegisterCallback(CUlogsCallback function, void* data,
                                           CUlogsCallbackHandle* out) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (sessions().empty()) return CUDA_ERROR_NOT_INITIALIZED;
  startNotifications();
  LogListeners& all = listeners();
  const std::lock_guard registering(all.registering);
  uint64_t number = 0;
  bool first = false;
  {
    const std::lock_guard lock(all.mutex);
    first = all.of.empty();
    number = all.next++;
    all.of[number] = {function, data};
  }
  if (const CUresult result = first ? tellWorkers(true) : CUDA_SUCCESS; result != CUDA_SUCCESS) {
    const std::lock_guard lock(all.mutex);
    all.of.erase(number);
    return result;
  }
  if (out != nullptr) *out = reinterpret_cast<CUlogsCallbackHandle>(number);
  return CUDA_SUCCESS;
}

// When it returns the function does not run any more, unless it is the function that calls.
CUresult ol_forward_cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  LogListeners& all = listeners();
  const auto number = reinterpret_cast<uint64_t>(handle);
  {
    const std::lock_guard registering(all.registering);
    bool last = false;
    {
      const std::lock_guard lock(all.mutex);
      if (all.of.erase(number) == 0) return CUDA_ERROR_INVALID_VALUE;
      last = all.of.empty();
    }
    // The result does not matter: a late message finds nobody.
    if (last) (void)tellWorkers(false);
  }
  std::unique_lock lock(all.mutex);
  if (!inNotification()) all.ended.wait(lock, [&] { return all.called != number; });
  return CUDA_SUCCESS;
}

}  // extern "C"
