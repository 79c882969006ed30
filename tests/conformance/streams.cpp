// Streams and events: states, order, errors; what a capture forbids; graphs.
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "record.h"

namespace conformance {
namespace {

/// Keeps a stream busy until release(): a kernel that spins on a flag in mapped host memory, bounded.
class Busy {
 public:
  Busy(const Kernels& kernels, CUstream stream) {
    void* host = nullptr;
    need(api.cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    flag_ = static_cast<uint32_t*>(host);
    *flag_ = 0;
    CUdeviceptr address = CUdeviceptr(host);
    uint32_t rounds = 50'000'000;
    need(launchOne(kernels.spin, {&address, &rounds}, stream), "spin");
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  void release() { __atomic_store_n(flag_, 1, __ATOMIC_SEQ_CST); }

 private:
  uint32_t* flag_;
};

}  // namespace

void sectionStreams() {
  const Base base;
  const Kernels kernels;
  CUstream a = nullptr, b = nullptr, blocking = nullptr;
  record("streams.create_null", api.cuStreamCreate(nullptr, 0));
  record("streams.create_bad_flags", api.cuStreamCreate(&a, 0x100));
  record("streams.create", api.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  need(api.cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  need(api.cuStreamCreate(&blocking, CU_STREAM_DEFAULT), "cuStreamCreate");
  unsigned flags = 99;
  const CUresult flagged = api.cuStreamGetFlags(a, &flags);
  recordNumberOr("streams.flags", flagged, flags);
  int priority = 99, least = 99, greatest = 99;
  const CUresult prioritised = api.cuStreamGetPriority(a, &priority);
  recordNumberOr("streams.priority", prioritised, priority);
  record("streams.priority_range", api.cuCtxGetStreamPriorityRange(&least, &greatest));
  CUstream eager = nullptr;
  record("streams.create_priority_minus_100", api.cuStreamCreateWithPriority(&eager, CU_STREAM_NON_BLOCKING, -100));
  const CUresult clamped = api.cuStreamGetPriority(eager, &priority);
  recordBoolOr("streams.priority_clamped", clamped, priority == greatest);
  CUcontext owner = nullptr;
  record("streams.context", api.cuStreamGetCtx(a, &owner));
  recordBool("streams.context.same", owner == base.context);
  unsigned long long id = 0, legacy_id = 0;
  record("streams.id", api.cuStreamGetId(a, &id));
  record("streams.id_legacy", api.cuStreamGetId(CU_STREAM_LEGACY, &legacy_id));
  record("streams.query_idle", api.cuStreamQuery(a));
  record("streams.query_null", api.cuStreamQuery(nullptr));
  record("streams.query_legacy", api.cuStreamQuery(CU_STREAM_LEGACY));
  record("streams.query_per_thread", api.cuStreamQuery(CU_STREAM_PER_THREAD));
  record("streams.destroy_null", api.cuStreamDestroy(nullptr));

  CUevent event = nullptr, timed = nullptr, second = nullptr;
  record("events.create_bad_flags", api.cuEventCreate(&event, 0x1000));
  record("events.create_interprocess_with_timing", api.cuEventCreate(&event, CU_EVENT_INTERPROCESS));
  record("events.create", api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  need(api.cuEventCreate(&timed, CU_EVENT_DEFAULT), "cuEventCreate");
  need(api.cuEventCreate(&second, CU_EVENT_DEFAULT), "cuEventCreate");
  record("events.query_never_recorded", api.cuEventQuery(event));
  record("events.synchronize_never_recorded", api.cuEventSynchronize(event));
  record("events.wait_never_recorded", api.cuStreamWaitEvent(a, event, 0));
  float elapsed = -1;
  record("events.elapsed_never_recorded", api.cuEventElapsedTime(&elapsed, timed, second));
  record("events.record_null_event", api.cuEventRecord(nullptr, a));
  record("events.elapsed_without_timing", [&] {
    api.cuEventRecord(event, a);
    api.cuEventRecord(timed, a);
    api.cuStreamSynchronize(a);
    return api.cuEventElapsedTime(&elapsed, event, timed);
  }());
  {
    Busy busy(kernels, a);
    record("streams.query_busy", api.cuStreamQuery(a));
    record("events.record_busy", api.cuEventRecord(event, a));
    record("events.query_pending", api.cuEventQuery(event));
    record("events.record_timed", api.cuEventRecord(timed, a));
    record("events.elapsed_pending", api.cuEventElapsedTime(&elapsed, timed, timed));
    record("streams.query_other_while_busy", api.cuStreamQuery(b));
    record("streams.query_legacy_while_nonblocking_busy", api.cuStreamQuery(CU_STREAM_LEGACY));
    record("streams.wait_event", api.cuStreamWaitEvent(b, event, 0));
    need(api.cuEventRecord(second, b), "cuEventRecord");
    record("streams.query_waiting", api.cuEventQuery(second));
    record("events.destroy_pending", api.cuEventDestroy(event));
    busy.release();
    record("streams.synchronize", api.cuStreamSynchronize(a));
    record("streams.synchronize_waiting", api.cuStreamSynchronize(b));
    record("streams.query_done", api.cuStreamQuery(a));
    record("events.query_done", api.cuEventQuery(timed));
    const CUresult rc = api.cuEventElapsedTime(&elapsed, timed, second);
    recordBoolOr("events.elapsed_not_negative", rc, elapsed >= 0);
  }
  {
    // The legacy default stream waits for blocking streams and they for it.
    Busy busy(kernels, blocking);
    uint32_t value = 1;
    CUdeviceptr p = 0;
    need(api.cuMemAlloc(&p, 4096), "cuMemAlloc");
    need(launchOne(kernels.store, {&p, &value}, nullptr), "store");
    record("streams.legacy_waits_for_blocking", api.cuStreamQuery(nullptr));
    need(launchOne(kernels.store, {&p, &value}, a), "store");
    api.cuStreamSynchronize(a);
    record("streams.nonblocking_does_not_wait", api.cuStreamQuery(a));
    busy.release();
    record("streams.context_synchronize", api.cuCtxSynchronize());
  }
  {
    Busy busy(kernels, b);
    record("streams.destroy_busy", api.cuStreamDestroy(b));
    busy.release();
    record("streams.synchronize_after_destroy", api.cuCtxSynchronize());
  }
  std::atomic<int> called{0};
  record("streams.host_function", api.cuLaunchHostFunc(
                                      a, [](void* at) { ++*static_cast<std::atomic<int>*>(at); }, &called));
  api.cuStreamSynchronize(a);
  recordNumber("streams.host_function.calls", called);
  std::atomic<int> inside{-1};
  // A driver call inside a host function is refused.
  need(api.cuLaunchHostFunc(
           a,
           [](void* at) {
             CUdeviceptr p = 0;
             *static_cast<std::atomic<int>*>(at) = int(api.cuMemAlloc(&p, 4096));
           },
           &inside),
       "cuLaunchHostFunc");
  api.cuStreamSynchronize(a);
  record("streams.alloc_in_host_function", CUresult(inside.load()));
  // Writing and waiting for values.
  CUdeviceptr word = 0;
  need(api.cuMemAlloc(&word, 4096), "cuMemAlloc");
  need(api.cuMemsetD8(word, 0, 4096), "cuMemsetD8");
  record("streams.write_value", api.cuStreamWriteValue32(a, word, 42, CU_STREAM_WRITE_VALUE_DEFAULT));
  record("streams.wait_value", api.cuStreamWaitValue32(a, word, 40, CU_STREAM_WAIT_VALUE_GEQ));
  record("streams.wait_value_unaligned", api.cuStreamWaitValue32(a, word + 2, 0, CU_STREAM_WAIT_VALUE_GEQ));
  record("streams.value_synchronize", api.cuStreamSynchronize(a));
  uint32_t got = 0;
  api.cuMemcpyDtoH(&got, word, 4);
  recordNumber("streams.written_value", got);
}

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
  record("capture.query_captured_event", api.cuEventQuery(event));
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
  // What a global capture forbids, and whether it ends it. Each in a capture of its own.
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
  const auto elsewhere = [&](const char* name, CUstreamCaptureMode captured, CUstreamCaptureMode own) {
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
  elsewhere("global_thread_local", CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  elsewhere("global_relaxed", CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED);
  elsewhere("thread_local_global", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
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
  // A fork that is never joined.
  mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  api.cuThreadExchangeStreamCaptureMode(&mode);
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
