// Streams and events: states, order, errors.
#include <atomic>
#include <cstring>

#include "record.h"

namespace conformance {
namespace {

/// Keeps a stream busy until release(): a kernel that looks at a flag in mapped host memory. For 5
/// s at most: where it does not see what the host writes meanwhile (forwarded by tcp), that is when
/// it ends.
class Busy {
 public:
  Busy(const Kernels& kernels, CUstream stream) {
    void* host = nullptr;
    need(api.cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    flag_ = static_cast<uint32_t*>(host);
    *flag_ = 0;
    CUdeviceptr address = CUdeviceptr(host);
    uint64_t ns = 5'000'000'000;
    need(launchOne(kernels.spin, {&address, &ns}, stream), "spin");
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
  record("streams.create_priority_minus_100",
         api.cuStreamCreateWithPriority(&eager, CU_STREAM_NON_BLOCKING, -100));
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
  record("events.create_interprocess_with_timing",
         api.cuEventCreate(&event, CU_EVENT_INTERPROCESS));
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
    record("events.elapsed_done", api.cuEventElapsedTime(&elapsed, timed, second));
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
  record("streams.host_function",
         api.cuLaunchHostFunc(
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
  need(api.cuCtxSynchronize(),
       "cuCtxSynchronize");  // a memset is asynchronous and `a` does not wait for the legacy stream
  record("streams.write_value",
         api.cuStreamWriteValue32(a, word, 42, CU_STREAM_WRITE_VALUE_DEFAULT));
  record("streams.wait_value", api.cuStreamWaitValue32(a, word, 40, CU_STREAM_WAIT_VALUE_GEQ));
  record("streams.wait_value_unaligned",
         api.cuStreamWaitValue32(a, word + 2, 0, CU_STREAM_WAIT_VALUE_GEQ));
  record("streams.value_synchronize", api.cuStreamSynchronize(a));
  uint32_t got = 0;
  api.cuMemcpyDtoH(&got, word, 4);
  recordNumber("streams.written_value", got);
}

}  // namespace conformance
