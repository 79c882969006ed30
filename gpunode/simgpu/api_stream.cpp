#include "gpunode/simgpu/api.h"

#include <algorithm>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/copy.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/event.h"
#include "gpunode/simgpu/host_callbacks.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

using ContextPtr = std::shared_ptr<Context>;
using StreamPtr = std::shared_ptr<Stream>;

CUresult createStream(CUstream* out, unsigned flags, int priority) {
  ContextPtr context;
  if (const CUresult result = requireContext(&context)) return result;
  if (out == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *out = context->createStream(flags, std::clamp(priority, kGreatestPriority, 0))->handle();
  return CUDA_SUCCESS;
}

CUresult destroyStream(CUstream handle) {
  ContextPtr context;
  if (const CUresult result = requireContext(&context)) return result;
  auto stream = Driver::get().streams.find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // Without the stream that began it a capture can't end well. Nodes that others have captured stay
  // in the graph.
  if (auto session = stream->captureSession()) {
    const std::scoped_lock lock(session->mutex);
    if (session->members.front().stream.lock() == stream) session->invalidated = true;
  }
  Driver::get().streams.remove(handle);
  if (auto own = stream->context()) own->forgetStream(*stream);
  return CUDA_SUCCESS;
}

/// For functions that only ask about a stream: the same checks, for a stream of any state.
template <typename Call>
CUresult ask(CUstream handle, bool per_thread, const void* out, Call call) {
  ContextPtr context;
  StreamPtr stream;
  if (const CUresult result = requireOwnStream(handle, per_thread, &context, &stream))
    return result;
  return out != nullptr ? call(*context, *stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult query(CUstream handle, bool per_thread) {
  ContextPtr context;
  StreamPtr stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (const CUresult result = notInCapture(*stream)) return result;
  if (const CUresult result = unsafeInCapture()) return result;
  if (stream->idle()) return context->error();
  stream->kick();
  return CUDA_ERROR_NOT_READY;
}

CUresult synchronize(CUstream handle, bool per_thread) {
  ContextPtr context;
  StreamPtr stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (const CUresult result = notInCapture(*stream)) return result;
  if (const CUresult result = unsafeInCapture()) return result;
  if (stream->handle() == CU_STREAM_LEGACY) {
    // Work of blocking streams comes before what is submitted here from now on: wait for it as for
    // the stream's own.
    if (const CUresult result = context->checkLegacyCapture()) return result;
    return context->synchronize(
        context->submit(*stream, makeOp("legacy barrier", [](Context&) { return CUDA_SUCCESS; })));
  }
  return context->synchronize(stream->last());
}

CUresult addCallback(CUstream handle, bool per_thread, CUstreamCallback callback, void* data,
                     unsigned flags) {
  ContextPtr context;
  StreamPtr stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = notInCapture(*stream)) return result;
  if (stream->handle() == CU_STREAM_LEGACY)
    if (const CUresult result = context->checkLegacyCapture()) return result;
  // The callback gets the handle as its caller gave it, and the context's error. The callback runs
  // after a failure too.
  context->submit(*stream, makeAlwaysOp("stream callback", [=](Context& own) {
    const CUresult status = own.error();
    HostCallbacks::get().run([&] { callback(handle, status, data); });
    return CUDA_SUCCESS;
  }));
  return CUDA_SUCCESS;
}

CUresult launchHost(CUstream handle, bool per_thread, CUhostFn function, void* data) {
  ContextPtr context;
  StreamPtr stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_HOST_NODE_PARAMS host{function, data};
  return context->submitOrCapture(*stream, {CU_GRAPH_NODE_TYPE_HOST, context->handle(), host},
                                  [&] { return makeHostOp(host); });
}

CUresult batch(CUstream handle, bool per_thread, unsigned count,
               const CUstreamBatchMemOpParams* ops, unsigned flags) {
  ContextPtr context;
  StreamPtr stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (flags != 0 || count > 256 || (count != 0 && ops == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUstreamBatchMemOpParams> all(ops, ops + count);
  for (const auto& op : all) {
    uint64_t align = 0;
    switch (op.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        align = 4;
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        align = 8;
        break;
      case CU_STREAM_MEM_OP_BARRIER:
        continue;
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    // The address is at the same place for waits and writes.
    if (op.waitValue.address % align != 0 || !Driver::get().memory.known(op.waitValue.address))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return context->submitOrCapture(
      *stream, {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, context->handle(), BatchNode{all}},
      [&] { return makeBatchOp(all); });
}

CUresult waitValue(CUstream stream, bool per_thread, CUstreamBatchMemOpType type,
                   CUdeviceptr address, uint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams op{};
  op.waitValue.operation = type;
  op.waitValue.address = address;
  op.waitValue.value64 = value;
  op.waitValue.flags = flags;
  return batch(stream, per_thread, 1, &op, 0);
}

CUresult writeValue(CUstream stream, bool per_thread, CUstreamBatchMemOpType type,
                    CUdeviceptr address, uint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = type;
  op.writeValue.address = address;
  op.writeValue.value64 = value;
  op.writeValue.flags = flags;
  return batch(stream, per_thread, 1, &op, 0);
}

CUresult attach(CUstream handle, bool per_thread, CUdeviceptr address, unsigned flags) {
  ContextPtr context;
  StreamPtr stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  const auto allocation = Driver::get().memory.find(address);
  if (allocation == nullptr || allocation->kind != AllocationKind::kManaged ||
      allocation->base != address)
    return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  // To one stream: the legacy one is none of its own.
  if (flags == CU_MEM_ATTACH_SINGLE && isLegacy(handle, per_thread))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;  // the memory is one for all: who may use it does not change where it is
}

}  // namespace

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned flags) {
  return createStream(stream, flags, 0);
}
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return createStream(stream, flags, priority);
}
CUresult CUDAAPI cuStreamDestroy(CUstream stream) { return destroyStream(stream); }
CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) { return destroyStream(stream); }

OLSIM_STREAM_FUNCTION(cuStreamGetPriority, _ptsz, (CUstream handle, int* out),
                      return ask(handle, kPerThread, out, [&](Context&, Stream& stream) {
                        *out = stream.priority();
                        return CUDA_SUCCESS;
                      });)
OLSIM_STREAM_FUNCTION(cuStreamGetFlags, _ptsz, (CUstream handle, unsigned* out),
                      return ask(handle, kPerThread, out, [&](Context&, Stream& stream) {
                        if (const CUresult result = notInCapture(stream)) return result;
                        *out = stream.flags();
                        return CUDA_SUCCESS;
                      });)
OLSIM_STREAM_FUNCTION(cuStreamGetId, _ptsz, (CUstream handle, unsigned long long* out),
                      return ask(handle, kPerThread, out, [&](Context&, Stream& stream) {
                        if (const CUresult result = notInCapture(stream)) return result;
                        *out = stream.id();
                        return CUDA_SUCCESS;
                      });)
OLSIM_STREAM_FUNCTION(cuStreamGetDevice, _ptsz, (CUstream handle, CUdevice* out),
                      return ask(handle, kPerThread, out, [&](Context& context, Stream&) {
                        *out = context.device().handle();
                        return CUDA_SUCCESS;
                      });)
OLSIM_STREAM_FUNCTION(cuStreamGetCtx, _ptsz, (CUstream handle, CUcontext* out),
                      return ask(handle, kPerThread, out, [&](Context& context, Stream&) {
                        *out = context.handle();
                        return CUDA_SUCCESS;
                      });)
OLSIM_STREAM_FUNCTION(cuStreamGetCtx_v2, _ptsz,
                      (CUstream handle, CUcontext* out, CUgreenCtx* green),
                      return ask(handle, kPerThread, out, [&](Context& context, Stream&) {
                        if (green != nullptr) *green = context.green;
                        *out = context.handle();
                        return CUDA_SUCCESS;
                      });)

CUresult CUDAAPI cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
  return ask(handle, false, green, [&](Context& context, Stream&) {
    *green = context.green;
    return CUDA_SUCCESS;
  });
}

OLSIM_STREAM_FUNCTION(cuStreamQuery, _ptsz, (CUstream stream), return query(stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuStreamSynchronize, _ptsz, (CUstream stream),
                      return synchronize(stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuStreamAddCallback, _ptsz,
                      (CUstream stream, CUstreamCallback callback, void* data, unsigned flags),
                      return addCallback(stream, kPerThread, callback, data, flags);)
OLSIM_STREAM_FUNCTION(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void* data),
                      return launchHost(stream, kPerThread, function, data);)
OLSIM_STREAM_FUNCTION(cuStreamAttachMemAsync, _ptsz,
                      (CUstream stream, CUdeviceptr address, size_t, unsigned flags),
                      return attach(stream, kPerThread, address, flags);)

OLSIM_STREAM_FUNCTION(
    cuStreamWaitEvent, _ptsz, (CUstream handle, CUevent event_handle, unsigned flags), {
      ContextPtr context;
      StreamPtr stream;
      if (const CUresult result = requireStream(handle, kPerThread, &context, &stream))
        return result;
      const auto event = Driver::get().events.find(event_handle);
      if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      if ((flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
      return waitEvent(*event, *context, *stream, (flags & CU_EVENT_WAIT_EXTERNAL) != 0);
    })

OLSIM_STREAM_FUNCTION(cuStreamBatchMemOp, _ptsz,
                      (CUstream stream, unsigned count, CUstreamBatchMemOpParams* ops,
                       unsigned flags),
                      return batch(stream, kPerThread, count, ops, flags);)
OLSIM_STREAM_FUNCTION(cuStreamBatchMemOp_v2, _ptsz,
                      (CUstream stream, unsigned count, CUstreamBatchMemOpParams* ops,
                       unsigned flags),
                      return batch(stream, kPerThread, count, ops, flags);)
#define OLSIM_VALUE_FUNCTION(name, call, type, bits)                                               \
  OLSIM_STREAM_FUNCTION(                                                                           \
      name, _ptsz, (CUstream stream, CUdeviceptr address, cuuint##bits##_t value, unsigned flags), \
      return call(stream, kPerThread, type, address, value, flags);)
OLSIM_VALUE_FUNCTION(cuStreamWaitValue32, waitValue, CU_STREAM_MEM_OP_WAIT_VALUE_32, 32)
OLSIM_VALUE_FUNCTION(cuStreamWaitValue32_v2, waitValue, CU_STREAM_MEM_OP_WAIT_VALUE_32, 32)
OLSIM_VALUE_FUNCTION(cuStreamWaitValue64, waitValue, CU_STREAM_MEM_OP_WAIT_VALUE_64, 64)
OLSIM_VALUE_FUNCTION(cuStreamWaitValue64_v2, waitValue, CU_STREAM_MEM_OP_WAIT_VALUE_64, 64)
OLSIM_VALUE_FUNCTION(cuStreamWriteValue32, writeValue, CU_STREAM_MEM_OP_WRITE_VALUE_32, 32)
OLSIM_VALUE_FUNCTION(cuStreamWriteValue32_v2, writeValue, CU_STREAM_MEM_OP_WRITE_VALUE_32, 32)
OLSIM_VALUE_FUNCTION(cuStreamWriteValue64, writeValue, CU_STREAM_MEM_OP_WRITE_VALUE_64, 64)
OLSIM_VALUE_FUNCTION(cuStreamWriteValue64_v2, writeValue, CU_STREAM_MEM_OP_WRITE_VALUE_64, 64)
#undef OLSIM_VALUE_FUNCTION

OLSIM_STREAM_FUNCTION(cuStreamGetAttribute, _ptsz,
                      (CUstream handle, CUstreamAttrID id, CUstreamAttrValue* value),
                      return ask(handle, kPerThread, value, [&](Context&, Stream& stream) {
                        return stream.attributes.get(id, value);
                      });)
OLSIM_STREAM_FUNCTION(cuStreamSetAttribute, _ptsz,
                      (CUstream handle, CUstreamAttrID id, const CUstreamAttrValue* value),
                      return ask(handle, kPerThread, value, [&](Context&, Stream& stream) {
                        return stream.attributes.set(id, *value);
                      });)
OLSIM_STREAM_FUNCTION(cuStreamCopyAttributes, _ptsz, (CUstream to, CUstream from),
                      return ask(to, kPerThread, &to, [&](Context& context, Stream& stream) {
                        const auto source = context.stream(from, kPerThread);
                        if (source == nullptr) return CUDA_ERROR_INVALID_HANDLE;
                        stream.attributes.copyFrom(source->attributes);
                        return CUDA_SUCCESS;
                      });)
