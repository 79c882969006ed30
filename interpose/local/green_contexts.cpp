#include "interpose/local/green_contexts.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "interpose/local/captures.h"
#include "interpose/local/contexts.h"
#include "interpose/local/hook.h"
#include "interpose/local/locks.h"
#include "interpose/local/relief.h"
#include "interpose/local/root.h"
#include "interpose/local/runtime.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

namespace {

struct Green {
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;  // that stands for it
  CUcontext primary = nullptr;
  CUdevice device = 0;
};

struct Greens {
  olpager::base::RankedMutex mutex{kGreensMutex};
  std::vector<Green> all;
  std::atomic<bool> any{false};  // there was one: without it nobody takes the mutex
};

Greens& greens() {
  static auto* instance = new Greens;
  return *instance;
}

Green known(CUgreenCtx green) {
  Greens& greens = ::greens();
  std::lock_guard lock(greens.mutex);
  const auto found = std::find_if(greens.all.begin(), greens.all.end(),
                                  [&](const Green& one) { return one.green == green; });
  return found != greens.all.end() ? *found : Green{};
}

}  // namespace

namespace olpager::local {

CUcontext memoryOwner(CUcontext context) {
  Greens& greens = ::greens();
  if (!greens.any.load(std::memory_order_acquire)) return context;
  std::lock_guard lock(greens.mutex);
  for (const Green& one : greens.all)
    if (one.context == context) return one.primary;
  return context;
}

unsigned greenContextsOf(CUdevice device) {
  Greens& greens = ::greens();
  std::lock_guard lock(greens.mutex);
  return static_cast<unsigned>(
      std::count_if(greens.all.begin(), greens.all.end(),
                    [&](const Green& one) { return one.device == device; }));
}

}  // namespace olpager::local

OLPAGER_HOOK(cuGreenCtxCreate)
(CUgreenCtx* out, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
  const CUresult result = driver().cuGreenCtxCreate(out, resources, device, flags);
  if (result != CUDA_SUCCESS || pool() == nullptr || driver().cuCtxFromGreenCtx == nullptr)
    return result;
  Green made{*out, nullptr, nullptr, device};
  if (driver().cuCtxFromGreenCtx(&made.context, *out) != CUDA_SUCCESS) return result;
  // Only to hear which it is: it stays active, as the green context needs it.
  if (driver().cuDevicePrimaryCtxRetain(&made.primary, device) != CUDA_SUCCESS) return result;
  driver().cuDevicePrimaryCtxRelease_v2(device);
  primaryIsThere(device, made.primary);
  thereAreSeveralContexts();
  Greens& greens = ::greens();
  try {
    std::lock_guard lock(greens.mutex);
    greens.all.push_back(made);
    greens.any.store(true, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    static_cast<void>(
        driver().cuGreenCtxDestroy(*out));  // nobody could say whose memory is allocated in it
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

// The pager's records of its streams go with it, before the driver takes it away: nobody may name
// them afterwards. Memory stays.
OLPAGER_HOOK(cuGreenCtxDestroy)(CUgreenCtx green) {
  olpager::pager::Pool* const running = pool();
  const Green going = running != nullptr ? known(green) : Green{};
  if (going.context == nullptr) return driver().cuGreenCtxDestroy(green);
  const CUstream hold = holdStreamGone(going.context);
  running->greenContextGone(going.context);
  if (hold != nullptr)
    static_cast<void>(driver().cuStreamDestroy_v2(hold));  // streams go before a green context does
  capturesOfContextGone(going.context);
  loansOfContextGone(going.context);
  {
    Greens& greens = ::greens();
    std::lock_guard lock(greens.mutex);
    std::erase_if(greens.all, [&](const Green& one) { return one.green == green; });
  }
  primaryMayBeGone(going.device);
  forgetContexts();
  return driver().cuGreenCtxDestroy(green);
}
