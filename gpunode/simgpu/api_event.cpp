#include "gpunode/simgpu/api.h"

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/event.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

/// The event, with its own context in working order.
CUresult find(CUevent handle, std::shared_ptr<Event>* event, std::shared_ptr<Context>* context) {
  if (const CUresult result = requireInit()) return result;
  if (ThreadState::get().in_callback) return CUDA_ERROR_NOT_PERMITTED;
  *event = Driver::get().events.find(handle);
  if (*event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = (*event)->context();
  if (*context != nullptr) (*context)->waitForCallLock();
  if (*context == nullptr || !(*context)->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (*context)->error();
}

CUresult record(CUevent handle, CUstream stream_handle, bool per_thread, unsigned flags) {
  std::shared_ptr<Context> context, event_context;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Event> event;
  if (const CUresult result = requireStream(stream_handle, per_thread, &context, &stream))
    return result;
  if (const CUresult result = find(handle, &event, &event_context)) return result;
  if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (event_context != context) return CUDA_ERROR_INVALID_HANDLE;
  return recordEvent(*event, *context, *stream, (flags & CU_EVENT_RECORD_EXTERNAL) != 0);
}

CUresult elapsed(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Event> start, end;
  if (const CUresult result = find(start_handle, &start, &context)) return result;
  if (const CUresult result = find(end_handle, &end, &context)) return result;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto from = start->state(), to = end->state();
  if (from.capture != nullptr || to.capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (!start->timing() || !end->timing() || !from.recorded || !to.recorded)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!from.point.complete() || !to.point.complete()) {
    if (from.point.stream != nullptr) from.point.stream->kick();
    if (to.point.stream != nullptr) to.point.stream->kick();
    return CUDA_ERROR_NOT_READY;
  }
  const auto nanoseconds = static_cast<double>(to.nanoseconds->load() - from.nanoseconds->load());
  *milliseconds = static_cast<float>(nanoseconds / 1e6 / Driver::get().settings.speed);
  return CUDA_SUCCESS;
}

CUresult destroy(CUevent handle) {
  if (const CUresult result = requireInit()) return result;
  if (const auto event = Driver::get().events.find(handle))
    if (const auto context = event->context(); context != nullptr && context->active)
      if (const CUresult error = context->error()) return error;
  return Driver::get().events.remove(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult CUDAAPI cuEventCreate(CUevent* out, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (out == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  // An event like others: cuIpcGetEventHandle, which would hand it to another process, is not
  // supported.
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t handle = newHandleValue(HandleKind::kEvent);
  *out = reinterpret_cast<CUevent>(handle);
  Driver::get().events.set(handle, std::make_shared<Event>(context, *out, flags));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent event) { return destroy(event); }
CUresult CUDAAPI cuEventDestroy_v2(CUevent event) { return destroy(event); }

OLSIM_STREAM_FUNCTION(cuEventRecord, _ptsz, (CUevent event, CUstream stream),
                      return record(event, stream, kPerThread, 0);)
OLSIM_STREAM_FUNCTION(cuEventRecordWithFlags, _ptsz,
                      (CUevent event, CUstream stream, unsigned flags),
                      return record(event, stream, kPerThread, flags);)

CUresult CUDAAPI cuEventQuery(CUevent handle) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Event> event;
  if (const CUresult result = find(handle, &event, &context)) return result;
  const auto state = event->state();
  if (state.capture != nullptr) {
    state.capture->invalidate();
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (const CUresult result = unsafeInCapture()) return result;
  if (state.point.complete()) return context->error();
  state.point.stream->kick();
  return CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Event> event;
  if (const CUresult result = find(handle, &event, &context)) return result;
  const auto state = event->state();
  if (state.capture != nullptr) {
    state.capture->invalidate();
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (const CUresult result = unsafeInCapture()) return result;
  return context->synchronize(state.point);
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
CUresult CUDAAPI cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
