// Contexts as the driver API gives them: primary contexts, others, the calling thread's stack.
#include "gpunode/simgpu/api.h"

#include <cstdio>
#include <cstdlib>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/event.h"
#include "gpunode/simgpu/green.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

constexpr unsigned kContextFlags = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX |
                                   CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE |
                                   CU_CTX_SYNC_MEMOPS;
constexpr unsigned kApiVersion = 3020;

CUresult device(CUdevice ordinal, Device** out) {
  if (const CUresult result = requireInit()) return result;
  *out = Driver::get().device(ordinal);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/// The context of a handle, or the current one for null; found even when it has failed.
CUresult contextOf(CUcontext handle, std::shared_ptr<Context>* out) {
  if (const CUresult result = requireInit()) return result;
  if (handle == nullptr) {
    *out = currentContext();
    return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  }
  *out = Driver::get().contexts.find(handle);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult create(CUcontext* out, unsigned flags, CUdevice ordinal) {
  Device* found = nullptr;
  if (const CUresult result = device(ordinal, &found)) return result;
  if (out == nullptr || (flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = found->lost) return error;
  const uint64_t handle = newHandleValue(HandleKind::kContext);
  auto context =
      std::make_shared<Context>(*found, reinterpret_cast<CUcontext>(handle), 0, flags, false);
  context->activate();
  Driver::get().contexts.set(handle, context);
  ThreadState::get().stack.push_back(std::move(context));
  *out = reinterpret_cast<CUcontext>(handle);
  return CUDA_SUCCESS;
}

CUresult destroy(CUcontext handle) {
  if (const CUresult result = requireInit()) return result;
  auto context = Driver::get().contexts.find(handle);
  if (context == nullptr)
    return handle == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->primary() || context->green != nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (Driver::get().contexts.remove(handle) == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  context->teardown();
  auto& stack = ThreadState::get().stack;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* out) {
  if (const CUresult result = requireInit()) return result;
  auto& stack = ThreadState::get().stack;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = stack.back() != nullptr ? stack.back()->handle() : nullptr;
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult push(CUcontext handle) {
  if (const CUresult result = requireInit()) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto context = Driver::get().contexts.find(handle);
  if (context == nullptr) {
    if (Driver::get().settings.dead_contexts_end && Driver::get().contexts.wasGivenOut(handle)) {
      std::fprintf(stderr, "olsimcuda: context %p is made current, and was destroyed\n",
                   static_cast<void*>(handle));
      std::abort();
    }
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  ThreadState::get().stack.push_back(std::move(context));
  return CUDA_SUCCESS;
}

CUresult primaryRelease(CUdevice ordinal) {
  Device* found = nullptr;
  if (const CUresult result = device(ordinal, &found)) return result;
  std::scoped_lock lock(Driver::get().primary_mutex);
  if (found->primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--found->primary_references == 0 && found->primary->active) found->primary->teardown();
  return CUDA_SUCCESS;
}

// An owner that has retained it still has, though it is inactive until somebody retains it again.
CUresult primaryReset(CUdevice ordinal) {
  Device* found = nullptr;
  if (const CUresult result = device(ordinal, &found)) return result;
  std::scoped_lock lock(Driver::get().primary_mutex);
  if (found->primary->active) found->primary->teardown();
  found->primary->flags = 0;
  return CUDA_SUCCESS;
}

CUresult primarySetFlags(CUdevice ordinal, unsigned flags) {
  Device* found = nullptr;
  if (const CUresult result = device(ordinal, &found)) return result;
  if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::scoped_lock lock(Driver::get().primary_mutex);
  found->primary->flags = flags;
  return CUDA_SUCCESS;
}

// A primary context's green ones are included, which share its memory.
CUresult synchronize(const std::shared_ptr<Context>& context) {
  if (anyCapture() && context->capturing(true)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (const CUresult result = unsafeInCapture()) return result;
  CUresult result = context->synchronize();
  for (const auto& green : greenContexts().all()) {
    if (&green->context->memoryOwner() != context.get()) continue;
    if (const CUresult of_green = green->context->synchronize(); result == CUDA_SUCCESS)
      result = of_green;
  }
  return result;
}

}  // namespace

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  Device* found = nullptr;
  if (const CUresult result = device(ordinal, &found)) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = found->lost) return error;
  std::scoped_lock lock(Driver::get().primary_mutex);
  ++found->primary_references;
  if (!found->primary->active) found->primary->activate();
  *context = found->primary->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice ordinal) { return primaryRelease(ordinal); }
CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) { return primaryRelease(ordinal); }
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice ordinal) { return primaryReset(ordinal); }
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice ordinal) { return primaryReset(ordinal); }
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags) {
  return primarySetFlags(ordinal, flags);
}
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  return primarySetFlags(ordinal, flags);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  Device* found = nullptr;
  if (const CUresult result = device(ordinal, &found)) return result;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = found->primary->flags;
  *active = found->primary->active ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate(CUcontext* context, unsigned flags, CUdevice ordinal) {
  return create(context, flags, ordinal);
}
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice ordinal) {
  return create(context, flags, ordinal);
}
CUresult CUDAAPI cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int affinities,
                                unsigned flags, CUdevice ordinal) {
  if (affinities != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(context, flags, ordinal);
}
CUresult CUDAAPI cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags,
                                CUdevice ordinal) {
  if (parameters != nullptr) {
    if (parameters->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (parameters->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return create(context, flags, ordinal);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext context) { return destroy(context); }
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context) { return destroy(context); }

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) { return push(context); }
CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context) { return push(context); }
CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) { return pop(context); }
CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* context) { return pop(context); }

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  if (const CUresult result = requireInit()) return result;
  auto& stack = ThreadState::get().stack;
  if (handle == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  auto context = Driver::get().contexts.find(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) {
    stack.push_back(std::move(context));
  } else {
    stack.back() = std::move(context);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* out) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto context = currentContext();
  *out = context != nullptr ? context->handle() : nullptr;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* out, CUcontext handle) {
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(handle, &context)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = context->device().handle();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetDevice(CUdevice* out) { return cuCtxGetDevice_v2(out, nullptr); }

CUresult CUDAAPI cuCtxGetFlags(unsigned* flags) {
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(nullptr, &context)) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetFlags(unsigned flags) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long* id) {
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(handle, &context)) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(handle, &context)) return result;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kApiVersion;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  return synchronize(context);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
  if (handle == nullptr) return cuCtxSynchronize();
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(handle, &context)) return result;
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return synchronize(context);
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return context->setLimit(limit, std::min<size_t>((value + 15) / 16 * 16, 512 << 10));
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
      return context->setLimit(limit, value);
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      return value <= 128 ? context->setLimit(limit, value) : CUDA_ERROR_INVALID_VALUE;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuCtxGetLimit(size_t* value, CUlimit limit) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if (value == nullptr || limit < CU_LIMIT_STACK_SIZE || limit >= CU_LIMIT_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = context->limit(limit);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* config) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetSharedMemConfig(CUsharedconfig) {
  std::shared_ptr<Context> context;
  return requireContext(&context);  // banks have one width since Maxwell: accepted, without effect
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
  std::shared_ptr<Context> context;
  return requireContext(&context);
}

CUresult CUDAAPI cuCtxGetExecAffinity(CUexecAffinityParam*, CUexecAffinityType) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult CUDAAPI cuCtxAttach(CUcontext* out, unsigned flags) {
  if (flags != 0 || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  *out = context->handle();
  ++context->attached;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDetach(CUcontext handle) {
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(handle, &context)) return result;
  if (context->attached > 0) {
    --context->attached;
    return CUDA_SUCCESS;
  }
  return destroy(context->handle());
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto peer = Driver::get().contexts.find(handle);
  if (peer == nullptr || !peer->active) return CUDA_ERROR_INVALID_CONTEXT;
  if (&peer->device() == &context->device()) return CUDA_ERROR_INVALID_CONTEXT;
  return context->enablePeer(*peer);
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext handle) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  auto peer = Driver::get().contexts.find(handle);
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  (void)context->synchronize();
  return context->disablePeer(*peer);
}

CUresult CUDAAPI cuCtxRecordEvent(CUcontext handle, CUevent event_handle) {
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(handle, &context)) return result;
  auto event = Driver::get().events.find(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (context->capturing(true)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto stream = context->barrierStream();
  context->submit(*stream, makeOp("context barrier", [](Context&) { return CUDA_SUCCESS; }),
                  context->pending());
  return recordEvent(*event, *context, *stream, false);
}

CUresult CUDAAPI cuCtxWaitEvent(CUcontext handle, CUevent event_handle) {
  std::shared_ptr<Context> context;
  if (const CUresult result = contextOf(handle, &context)) return result;
  auto event = Driver::get().events.find(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (context->capturing(true)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  for (const auto& stream : context->allStreams())
    if (const CUresult result = waitEvent(*event, *context, *stream, false)) return result;
  return CUDA_SUCCESS;
}
