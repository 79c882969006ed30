// Driver calls that take VRAM of their own (arrays, modules, managed and exportable memory): one
// that runs out of memory makes the pager give some back, and is made again. VRAM that the call got
// is the pager's again when the object is gone. Thread-safety: any thread. Lock: Loans::mutex; none
// while no object needed relief.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

#include "interpose/local/context.h"
#include "interpose/local/root.h"

namespace olpager::local {

inline constexpr uint64_t kReliefSlack = 4ull << 20;  // what the driver rounds a request up by

namespace detail {
void loanMade(uint64_t object, CUcontext context, CUdevice device, uint64_t bytes);
}

/// The object is gone: what was given up for it is the pager's again. One load while there is none.
void loanGone(uint64_t object);
template <typename Handle>
void loanGone(Handle* object) {
  loanGone(reinterpret_cast<uint64_t>(object));
}

/// The context is gone for the pager: the objects in it go, and their handles may be given out
/// anew.
void loansOfContextGone(CUcontext context);

namespace detail {
template <typename Call, typename Object>
CUresult again(CUdevice device, std::initializer_list<uint64_t> steps, Call call, Object object) {
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  pager::Pool* running = pool();
  if (running == nullptr) return result;
  uint64_t lent = 0;
  for (const uint64_t bytes : steps) {
    const uint64_t more = running->relieve(device, bytes);
    if (more == 0) break;
    lent += more;
    result = call();
    if (result != CUDA_ERROR_OUT_OF_MEMORY) break;
  }
  if (lent != 0 && result == CUDA_SUCCESS) {
    loanMade(object(), currentContext(), device, lent);
  } else if (lent != 0) {
    running->regain(device, lent);
  }
  return result;
}
}  // namespace detail

/// `call`; while it answers CUDA_ERROR_OUT_OF_MEMORY it is made again, with `steps` bytes of the
/// pager's VRAM on `device` given back to the driver before. `object` names what it made, once it
/// has succeeded.
template <typename Call, typename Object>
CUresult withRelief(CUdevice device, std::initializer_list<uint64_t> steps, Call call,
                    Object object) {
  const CUresult result = call();
  return result != CUDA_ERROR_OUT_OF_MEMORY ? result : detail::again(device, steps, call, object);
}

/// The same on the device of the calling thread's context.
template <typename Call, typename Object>
CUresult withRelief(std::initializer_list<uint64_t> steps, Call call, Object object) {
  const CUresult result = call();
  Place place;
  if (result != CUDA_ERROR_OUT_OF_MEMORY || currentPlace(&place) != CUDA_SUCCESS) return result;
  return detail::again(place.device, steps, call, object);
}

/// Steps for a module, whose size in VRAM nobody knows beforehand.
inline constexpr std::initializer_list<uint64_t> kModuleSteps = {8ull << 20, 64ull << 20,
                                                                 256ull << 20};

}  // namespace olpager::local
