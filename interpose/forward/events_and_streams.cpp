// Events and streams are made without a round trip: what the driver would refuse is refused here.
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are C functions

extern "C" {

CUresult ol_forward_cuEventCreate(CUevent* event, unsigned flags) {
  constexpr unsigned kFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  const bool shared_but_timed = (flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0;
  if ((flags & ~kFlags) != 0 || shared_but_timed) return CUDA_ERROR_INVALID_VALUE;
  return ol_forward_generated_cuEventCreate(event, flags);
}

CUresult ol_forward_cuStreamCreate(CUstream* stream, unsigned flags) {
  if ((flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return ol_forward_generated_cuStreamCreate(stream, flags);
}

CUresult ol_forward_cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  if ((flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return ol_forward_generated_cuStreamCreateWithPriority(stream, flags, priority);
}

}  // extern "C"
