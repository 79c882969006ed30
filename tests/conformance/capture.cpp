// Stream capture: what it records, what it forbids in each mode, and what that does to it.
#include <functional>
#include <thread>

#include "record.h"

namespace conformance {

void sectionCapture() {
  const Base base;
  const Kernels kernels;
  CUstream a = nullptr, b = nullptr;
  need(api.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  need(api.cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUevent event = nullptr, outside = nullptr;
  need(api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  need(api.cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  need(api.cuEventRecord(outside, b), "cuEventRecord");
  CUdeviceptr p = 0, q = 0;
  need(api.cuMemAlloc(&p, 1 << 20), "cuMemAlloc");
  void* host = nullptr;
  need(api.cuMemHostAlloc(&host, 4096, 0), "cuMemHostAlloc");
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  record("capture.end_without_begin", api.cuStreamEndCapture(a, &graph));
  record("capture.begin_legacy", api.cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  record("capture.begin_bad_mode", api.cuStreamBeginCapture(a, CUstreamCaptureMode(9)));
  record("capture.begin", api.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  record("capture.begin_again", api.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  record("capture.status", api.cuStreamIsCapturing(a, &status));
  recordNumber("capture.status.value", status);
  uint32_t value = 5;
  record("capture.launch", launchOne(kernels.store, {&p, &value}, a));
  record("capture.memset", api.cuMemsetD8Async(p, 1, 4096, a));
  record("capture.copy_pinned", api.cuMemcpyHtoDAsync(p, host, 4096, a));
  record("capture.record_event", api.cuEventRecord(event, a));
  record("capture.fork_by_wait", api.cuStreamWaitEvent(b, event, 0));
  api.cuStreamIsCapturing(b, &status);
  recordNumber("capture.forked_status", status);
  record("capture.launch_forked", launchOne(kernels.store, {&p, &value}, b));
  need(api.cuEventRecord(event, b), "cuEventRecord");
  record("capture.join", api.cuStreamWaitEvent(a, event, 0));
  record("capture.host_function", api.cuLaunchHostFunc(
                                      a, [](void*) {}, nullptr));
  record("capture.end", api.cuStreamEndCapture(a, &graph));
  recordBool("capture.graph", graph != nullptr);
  size_t nodes = 0;
  record("capture.nodes", api.cuGraphGetNodes(graph, nullptr, &nodes));
  recordNumber("capture.nodes.count", int64_t(nodes));
  record("capture.forked_status_after_end", [&] {
    api.cuStreamIsCapturing(b, &status);
    return std::to_string(status);
  }());
  // Calls that a global capture forbids, and those that end it. Each in a capture of its own.
  CUstream other_blocking = nullptr;
  need(api.cuStreamCreate(&other_blocking, 0), "cuStreamCreate");
  struct Forbidden {
    const char* name;
    std::function<CUresult()> call;
  };
  const std::vector<uint8_t> pageable(4096);
  CUdeviceptr fresh = 0;
  CUmodule module = nullptr;
  void* more_host = nullptr;
  size_t free_bytes = 0, total = 0;
  CUstream made = nullptr;
  CUevent made_event = nullptr;
  CUcontext its_context = nullptr;
  unsigned stream_flags = 0;
  unsigned long long stream_id = 0;
  int priority = 0;
  const Forbidden attempts[] = {
      {"alloc", [&] { return api.cuMemAlloc(&fresh, 4096); }},
      {"free", [&] { return api.cuMemFree(fresh); }},
      {"host_alloc", [&] { return api.cuMemHostAlloc(&more_host, 4096, 0); }},
      {"synchronize_capturing", [&] { return api.cuStreamSynchronize(a); }},
      {"query_capturing", [&] { return api.cuStreamQuery(a); }},
      {"synchronize_other", [&] { return api.cuStreamSynchronize(b); }},
      {"query_other", [&] { return api.cuStreamQuery(b); }},
      {"synchronize_context", [&] { return api.cuCtxSynchronize(); }},
      {"synchronous_copy", [&] { return api.cuMemcpyHtoD(p, pageable.data(), 4096); }},
      {"synchronous_memset", [&] { return api.cuMemsetD8(p, 1, 16); }},
      {"launch_legacy", [&] { return launchOne(kernels.nothing, {}, nullptr); }},
      {"launch_other", [&] { return launchOne(kernels.nothing, {}, b); }},
      {"launch_other_blocking", [&] { return launchOne(kernels.nothing, {}, other_blocking); }},
      {"pageable_copy", [&] { return api.cuMemcpyHtoDAsync(p, pageable.data(), 4096, a); }},
      {"query_event_outside", [&] { return api.cuEventQuery(outside); }},
      {"synchronize_event_outside", [&] { return api.cuEventSynchronize(outside); }},
      {"wait_event_outside", [&] { return api.cuStreamWaitEvent(a, outside, 0); }},
      {"record_event_other", [&] { return api.cuEventRecord(outside, b); }},
      {"module_load", [&] { return api.cuModuleLoadData(&module, kPtx); }},
      {"memory_info", [&] { return api.cuMemGetInfo(&free_bytes, &total); }},
      {"create_stream", [&] { return api.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING); }},
      {"create_event", [&] { return api.cuEventCreate(&made_event, 0); }},
      {"stream_flags", [&] { return api.cuStreamGetFlags(a, &stream_flags); }},
      {"stream_priority", [&] { return api.cuStreamGetPriority(a, &priority); }},
      {"stream_context", [&] { return api.cuStreamGetCtx(a, &its_context); }},
      {"stream_id", [&] { return api.cuStreamGetId(a, &stream_id); }},
      {"stream_flags_other", [&] { return api.cuStreamGetFlags(b, &stream_flags); }},
      {"alloc_async", [&] { return api.cuMemAllocAsync(&q, 4096, a); }},
      {"alloc_async_other", [&] { return api.cuMemAllocAsync(&q, 4096, b); }},
      {"pointer_attribute",
       [&] {
         CUmemorytype type{};
         return api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
       }},
      {"vmm_create",
       [&] {
         CUmemAllocationProp prop{};
         prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
         prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
         CUmemGenericAllocationHandle handle = 0;
         return api.cuMemCreate(&handle, 2 << 20, &prop, 0);
       }},
  };
  const struct {
    const char* name;
    CUstreamCaptureMode mode;
  } modes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
               {"thread_local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
               {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};
  for (const auto& mode : modes) {
    for (const Forbidden& attempt : attempts) {
      const std::string prefix = std::string("capture.") + mode.name + "." + attempt.name;
      need(api.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
      need(api.cuMemAlloc(&fresh, 4096), "cuMemAlloc");
      need(api.cuStreamBeginCapture(a, mode.mode), "cuStreamBeginCapture");
      need(launchOne(kernels.store, {&p, &value}, a), "launch");
      record(prefix, attempt.call());
      graph = nullptr;
      record(prefix + ".end", api.cuStreamEndCapture(a, &graph));
      recordBool(prefix + ".graph", graph != nullptr);
      if (graph != nullptr) api.cuGraphDestroy(graph);
    }
  }
  // Another thread of the process, in each mode of its own.
  const auto elsewhere = [&](const char* name, CUstreamCaptureMode captured,
                             CUstreamCaptureMode own) {
    CUstream s = nullptr;
    need(api.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    need(api.cuStreamBeginCapture(s, captured), "cuStreamBeginCapture");
    need(launchOne(kernels.store, {&p, &value}, s), "launch");
    CUresult rc = CUDA_SUCCESS;
    std::thread([&] {
      api.cuCtxSetCurrent(base.context);
      CUstreamCaptureMode exchanged = own;
      api.cuThreadExchangeStreamCaptureMode(&exchanged);
      CUdeviceptr mine = 0;
      rc = api.cuMemAlloc(&mine, 4096);
    }).join();
    record(std::string("capture.other_thread.") + name, rc);
    graph = nullptr;
    record(std::string("capture.other_thread.") + name + ".end", api.cuStreamEndCapture(s, &graph));
  };
  elsewhere("global_global", CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
  elsewhere("global_thread_local", CU_STREAM_CAPTURE_MODE_GLOBAL,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  elsewhere("global_relaxed", CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED);
  elsewhere("thread_local_global", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CU_STREAM_CAPTURE_MODE_GLOBAL);
  elsewhere("relaxed_global", CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  record("capture.exchange_mode", api.cuThreadExchangeStreamCaptureMode(&mode));
  recordNumber("capture.exchange_mode.default", mode);
  // The thread that captures, in relaxed mode of its own.
  need(api.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  need(api.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  record("capture.same_thread_relaxed_alloc", api.cuMemAlloc(&fresh, 4096));
  record("capture.same_thread_relaxed_synchronize_other", api.cuStreamSynchronize(b));
  record("capture.same_thread_relaxed_set_access", [&] {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    need(api.cuMemCreate(&handle, 2 << 20, &prop, 0), "cuMemCreate");
    need(api.cuMemAddressReserve(&address, 2 << 20, 0, 0, 0), "cuMemAddressReserve");
    need(api.cuMemMap(address, 2 << 20, 0, handle, 0), "cuMemMap");
    return api.cuMemSetAccess(address, 2 << 20, &access, 1);
  }());
  record("capture.same_thread_relaxed_end", api.cuStreamEndCapture(a, &graph));
  // A question about an event of the capture ends it.
  mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  api.cuThreadExchangeStreamCaptureMode(&mode);
  need(api.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  need(api.cuEventRecord(event, a), "cuEventRecord");
  record("capture.query_captured_event", api.cuEventQuery(event));
  record("capture.query_captured_event.end", api.cuStreamEndCapture(a, &graph));
  // A fork that is never joined.
  need(api.cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  need(api.cuEventRecord(event, a), "cuEventRecord");
  need(api.cuStreamWaitEvent(b, event, 0), "cuStreamWaitEvent");
  need(launchOne(kernels.nothing, {}, b), "launch");
  record("capture.end_forked_stream", api.cuStreamEndCapture(b, &graph));
  record("capture.end_unjoined", api.cuStreamEndCapture(a, &graph));
  record("capture.usable_after", launchOne(kernels.nothing, {}, a));
  record("capture.synchronize_after", api.cuCtxSynchronize());
}

}  // namespace conformance
