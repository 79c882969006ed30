// The driver's log, line by line to a client that listens.
#include "gpunode/worker/logs.h"

#include <algorithm>
#include <span>
#include <utility>

#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

constexpr size_t kMostLine = 64 << 10;

void CUDA_CB logged(void* worker, CUlogLevel level, char* message, size_t length) {
  if (message == nullptr) return;
  static_cast<Worker*>(worker)->tell(
      forward::Answer::kLog, static_cast<uint32_t>(level), CUDA_SUCCESS,
      std::as_bytes(std::span(message, std::min(length, kMostLine))), true);
}

}  // namespace

CUresult LogListener::listen(Worker& worker) {
  const api::DriverTable& driver = worker.driver();
  if (driver.cuLogsRegisterCallback == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(mutex_);
  return handle_ != nullptr ? CUDA_SUCCESS
                            : driver.cuLogsRegisterCallback(logged, &worker, &handle_);
}

CUresult LogListener::stop(const Worker& worker) {
  const api::DriverTable& driver = worker.driver();
  if (driver.cuLogsUnregisterCallback == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(mutex_);
  return handle_ == nullptr ? CUDA_SUCCESS
                            : driver.cuLogsUnregisterCallback(std::exchange(handle_, nullptr));
}

CUresult logsListen(Invocation& in) {
  const bool listen = in.value<uint8_t>() != 0;
  if (!in.ok()) return in.refusal();
  LogListener& listener = in.worker().logListener();
  return listen ? listener.listen(in.worker()) : listener.stop(in.worker());
}

}  // namespace olpager::gpunode
