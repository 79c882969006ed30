// Green contexts: each has a context that stands for it, which the client makes current and which
// goes with it.
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

// The number of a green context, if it has one, is found by what the driver says: the driver has
// one context for each.
CUresult greenContext(Invocation& in) {
  const auto green = in.handle<CUgreenCtx>();
  if (!in.ok()) return in.refusal();
  if (in.driver().cuCtxFromGreenCtx == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUcontext context = nullptr;
  const CUresult result = in.driver().cuCtxFromGreenCtx(&context, green);
  if (result == CUDA_SUCCESS) in.results().value(in.numberFor(context));
  return result;
}

// With the last one a primary context ends that nobody has retained, and all that is known of it.
CUresult greenDestroy(Invocation& in) {
  const auto number = in.peek<uint64_t>();
  const auto green = in.handle<CUgreenCtx>();
  if (!in.ok()) return in.refusal();
  const api::DriverTable& driver = in.driver();
  if (driver.cuGreenCtxDestroy == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Worker& worker = in.worker();
  CUcontext context = nullptr;
  CUdevice device = CU_DEVICE_INVALID;
  if (driver.cuCtxFromGreenCtx == nullptr ||
      driver.cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS) {
    context = nullptr;
  } else {
    worker.setCurrent(context);
    if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) device = CU_DEVICE_INVALID;
  }
  // Debts behind the context's launches are debts of its streams. And nobody destroys what is
  // current here.
  if (worker.exchange().owes()) worker.exchange().settle();
  const uint64_t stood_for_it = context != nullptr ? in.numberFor(context) : 0;
  const uint64_t primary = forward::primaryHandle(worker.options().handle_slot, device);
  if (context != nullptr) worker.faults().contextEnds(stood_for_it);
  if (device != CU_DEVICE_INVALID)
    worker.faults().contextEnds(primary);  // its next call watches it again
  worker.setCurrent(nullptr);
  const CUresult result = driver.cuGreenCtxDestroy(green);
  if (result != CUDA_SUCCESS) return result;
  in.gone(number);
  if (context != nullptr) {
    worker.contextGone(stood_for_it, context);
    in.gone(stood_for_it);
  }
  unsigned flags = 0;
  int active = 1;
  uint64_t known = 0;
  if (device != CU_DEVICE_INVALID && worker.handles().find(primary, HandleKind::kContext, &known) &&
      driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active == 0)
    worker.contextGone(primary, handleFrom<CUcontext>(known));
  return result;
}

}  // namespace olpager::gpunode
