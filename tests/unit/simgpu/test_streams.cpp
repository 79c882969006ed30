#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "driver.h"

using namespace simgpu_test;

namespace {

/// Keeps a stream busy until released.
struct Gate {
  explicit Gate(CUstream stream) {
    OK(CU(cuMemHostAlloc)(reinterpret_cast<void**>(&flag), 4096, 0));
    __atomic_store_n(flag, 0u, __ATOMIC_SEQ_CST);
    OK(CU(cuStreamWaitValue32)(stream, reinterpret_cast<CUdeviceptr>(flag), 1,
                               CU_STREAM_WAIT_VALUE_EQ));
  }
  void open() { __atomic_store_n(flag, 1u, __ATOMIC_SEQ_CST); }
  uint32_t* flag = nullptr;
};

/// Two streams that wait for nobody, and memory for both.
struct TwoStreams {
  TwoStreams() {
    OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
    OK(CU(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
    OK(CU(cuMemAlloc)(&p, 4096));
  }
  uint8_t last() const {
    uint8_t byte = 0;
    OK(CU(cuMemcpyDtoH)(&byte, p + 4095, 1));
    return byte;
  }
  void end() {
    OK(CU(cuStreamDestroy)(a));
    CHECK(CU(cuStreamQuery)(a) == CUDA_ERROR_INVALID_HANDLE);
    OK(CU(cuStreamDestroy)(b));
    OK(CU(cuMemFree)(p));
  }
  CUstream a = nullptr, b = nullptr;
  CUdeviceptr p = 0;
};

}  // namespace

TEST_CASE("streams run in order and beside each other", "[stream]") {
  const Primary primary;
  TwoStreams two;
  const auto& [a, b, p] = two;
  Gate gate(a);
  OK(CU(cuMemsetD8Async)(p, 1, 4096, a));
  CHECK(CU(cuStreamQuery)(a) == CUDA_ERROR_NOT_READY);
  OK(CU(cuMemsetD8Async)(p, 2, 4096, b));
  OK(CU(cuStreamSynchronize)(b));
  gate.open();
  OK(CU(cuStreamSynchronize)(a));
  OK(CU(cuStreamQuery)(a));
  CHECK(two.last() == 1);
  unsigned long long id_a = 0, id_b = 0;
  OK(CU(cuStreamGetId)(a, &id_a));
  OK(CU(cuStreamGetId)(b, &id_b));
  CHECK(id_a != id_b);
  two.end();
}

// Only where streams share a queue (OL_SIM_CONNECTIONS=1).
TEST_CASE("what stands in a shared queue holds up what other streams submit later",
          "[.connections]") {
  const Primary primary;
  TwoStreams two;
  const auto& [a, b, p] = two;
  OK(CU(cuMemsetD8Async)(p, 1, 4096, b));  // before
  Gate gate(a);
  OK(CU(cuStreamSynchronize)(b));
  OK(CU(cuMemsetD8Async)(p, 2, 4096, b));
  for (int i = 0; i < 20; ++i) {
    CHECK(CU(cuStreamQuery)(b) == CUDA_ERROR_NOT_READY);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  gate.open();
  OK(CU(cuStreamSynchronize)(b));
  CHECK(two.last() == 2);
  two.end();
}

TEST_CASE("the legacy stream waits for blocking streams and they for it", "[stream]") {
  const Primary primary;
  CUstream blocking = nullptr, free_running = nullptr;
  OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  OK(CU(cuStreamCreate)(&free_running, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = 0;
  OK(CU(cuMemAlloc)(&p, 4096));
  Gate gate(blocking);
  OK(CU(cuMemsetD8Async)(p, 1, 4096, blocking));
  OK(CU(cuMemsetD8Async)(p, 2, 4096, nullptr));
  OK(CU(cuMemsetD8Async)(p, 3, 4096, blocking));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(CU(cuStreamQuery)(nullptr) == CUDA_ERROR_NOT_READY);
  OK(CU(cuMemsetD8Async)(p, 9, 4096, free_running));
  OK(CU(cuStreamSynchronize)(free_running));
  gate.open();
  OK(CU(cuCtxSynchronize)());
  uint8_t last = 0;
  OK(CU(cuMemcpyDtoH)(&last, p, 1));
  CHECK(last == 3);
  OK(CU(cuStreamDestroy)(blocking));
  OK(CU(cuStreamDestroy)(free_running));
}

TEST_CASE("the per-thread default stream is each thread's own", "[stream]") {
  const Primary primary;
  unsigned long long mine = 0, same = 0, other = 0;
  OK(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &mine));
  OK(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &same));
  CHECK(mine == same);
  std::thread([&] {
    CHECK(CU(cuCtxSetCurrent)(primary.context) == CUDA_SUCCESS);
    CHECK(CU(cuStreamGetId)(CU_STREAM_PER_THREAD, &other) == CUDA_SUCCESS);
  }).join();
  CHECK(other != mine);
}

TEST_CASE("events order streams and measure time", "[event]") {
  const Primary primary;
  CUstream a = nullptr, b = nullptr;
  OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
  CUevent begin = nullptr, end = nullptr, untimed = nullptr;
  OK(CU(cuEventCreate)(&begin, CU_EVENT_DEFAULT));
  OK(CU(cuEventCreate)(&end, CU_EVENT_BLOCKING_SYNC));
  OK(CU(cuEventCreate)(&untimed, CU_EVENT_DISABLE_TIMING));
  OK(CU(cuEventQuery)(begin));  // never recorded: complete
  CUdeviceptr p = 0;
  OK(CU(cuMemAlloc)(&p, 4096));
  OK(CU(cuEventRecord)(begin, a));
  Gate gate(a);
  OK(CU(cuMemsetD8Async)(p, 1, 4096, a));
  OK(CU(cuEventRecord)(end, a));
  OK(CU(cuEventRecord)(untimed, a));
  OK(CU(cuStreamWaitEvent)(b, end, 0));
  OK(CU(cuMemsetD8Async)(p, 2, 4096, b));
  CHECK(CU(cuEventQuery)(end) == CUDA_ERROR_NOT_READY);
  float milliseconds = -1;
  CHECK(CU(cuEventElapsedTime)(&milliseconds, begin, end) == CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(std::chrono::milliseconds(15));
  gate.open();
  OK(CU(cuEventSynchronize)(end));
  OK(CU(cuStreamSynchronize)(b));
  OK(CU(cuEventElapsedTime)(&milliseconds, begin, end));
  CHECK(milliseconds >= 10);
  CHECK(CU(cuEventElapsedTime)(&milliseconds, begin, untimed) == CUDA_ERROR_INVALID_HANDLE);
  uint8_t last = 0;
  OK(CU(cuMemcpyDtoH)(&last, p, 1));
  CHECK(last == 2);
  OK(CU(cuEventDestroy)(end));
  CHECK(CU(cuEventQuery)(end) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuEventCreate)(&end, 0x4000) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("host functions run in stream order on a thread that may not call the driver",
          "[stream]") {
  const Primary primary;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  struct Seen {
    std::thread::id thread;
    CUresult inside = CUDA_SUCCESS;
    CUresult status = CUDA_ERROR_UNKNOWN;
    int order = 0, callback_at = 0;
  } seen;
  OK(CU(cuLaunchHostFunc)(
      stream,
      [](void* data) {
        auto* s = static_cast<Seen*>(data);
        s->thread = std::this_thread::get_id();
        s->inside = CU(cuCtxSynchronize)();
        s->order = 1;
      },
      &seen));
  OK(CU(cuStreamAddCallback)(
      stream,
      [](CUstream, CUresult status, void* data) {
        auto* s = static_cast<Seen*>(data);
        s->status = status;
        s->callback_at = s->order + 1;
      },
      &seen, 0));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(seen.thread != std::this_thread::get_id());
  CHECK(seen.inside == CUDA_ERROR_NOT_PERMITTED);
  CHECK(seen.status == CUDA_SUCCESS);
  CHECK(seen.callback_at == 2);
}

TEST_CASE("values are written and waited for", "[stream]") {
  const Primary primary;
  CUstream a = nullptr, b = nullptr;
  OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
  CUdeviceptr flag = 0;
  OK(CU(cuMemAlloc)(&flag, 64));
  OK(CU(cuMemsetD8)(flag, 0, 64));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuStreamWaitValue64)(a, flag, 7, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuStreamWriteValue32)(a, flag + 16, 99, 0));
  CHECK(CU(cuStreamQuery)(a) == CUDA_ERROR_NOT_READY);
  OK(CU(cuStreamWriteValue64)(b, flag, 8, 0));
  OK(CU(cuStreamSynchronize)(a));
  uint32_t got = 0;
  OK(CU(cuMemcpyDtoH)(&got, flag + 16, 4));
  CHECK(got == 99);
  CHECK(CU(cuStreamWaitValue64)(a, flag + 4, 7, 0) == CUDA_ERROR_INVALID_VALUE);
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, flag, {5}, 0, 0};
  ops[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, flag, {5}, CU_STREAM_WAIT_VALUE_EQ, 0};
  OK(CU(cuStreamBatchMemOp)(a, 2, ops, 0));
  OK(CU(cuStreamSynchronize)(a));
}

TEST_CASE("many threads submit to many streams", "[stream][stress]") {
  const Primary primary;
  constexpr int kThreads = 4, kRounds = 60;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      if (CU(cuCtxSetCurrent)(primary.context) != CUDA_SUCCESS) ++wrong;
      CUstream stream = nullptr;
      CUevent event = nullptr;
      CUdeviceptr p = 0;
      void* host = nullptr;
      if (CU(cuStreamCreate)(&stream, t % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT) !=
          CUDA_SUCCESS)
        ++wrong;
      if (CU(cuEventCreate)(&event, 0) != CUDA_SUCCESS) ++wrong;
      if (CU(cuMemHostAlloc)(&host, 4096, 0) != CUDA_SUCCESS) ++wrong;
      for (int round = 0; round < kRounds; ++round) {
        if (CU(cuMemAlloc)(&p, size_t{4096} * static_cast<size_t>(1 + round % 3)) != CUDA_SUCCESS)
          ++wrong;
        if (CU(cuMemsetD8Async)(p, uint8_t(round + t), 4096, stream) != CUDA_SUCCESS) ++wrong;
        if (CU(cuMemcpyDtoHAsync)(host, p, 4096, stream) != CUDA_SUCCESS) ++wrong;
        if (CU(cuEventRecord)(event, stream) != CUDA_SUCCESS) ++wrong;
        if (CU(cuStreamWaitEvent)(nullptr, event, 0) != CUDA_SUCCESS) ++wrong;
        if (CU(cuEventSynchronize)(event) != CUDA_SUCCESS) ++wrong;
        if (static_cast<uint8_t*>(host)[4095] != uint8_t(round + t)) ++wrong;
        if (CU(cuMemFree)(p) != CUDA_SUCCESS) ++wrong;
      }
      if (CU(cuStreamDestroy)(stream) != CUDA_SUCCESS) ++wrong;
      if (CU(cuEventDestroy)(event) != CUDA_SUCCESS) ++wrong;
      if (CU(cuMemFreeHost)(host) != CUDA_SUCCESS) ++wrong;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
