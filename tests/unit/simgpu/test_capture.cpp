#include <cstring>
#include <thread>

#include "driver.h"

using namespace simgpu_test;

TEST_CASE("a capture hands copies, memsets and host functions to a graph", "[capture]") {
  const Primary primary;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = 0;
  void* host = nullptr;
  OK(CU(cuMemAlloc)(&p, 4096));
  OK(CU(cuMemHostAlloc)(&host, 4096, 0));
  std::memset(host, 0, 4096);
  int calls = 0;
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(CU(cuMemsetD8Async)(p, 0x33, 4096, stream));
  OK(CU(cuMemcpyDtoHAsync)(host, p, 4096, stream));
  OK(CU(cuLaunchHostFunc)(
      stream, [](void* data) { ++*static_cast<int*>(data); }, &calls));
  CUgraph graph = nullptr;
  OK(CU(cuStreamEndCapture)(stream, &graph));
  REQUIRE(graph != nullptr);
  CHECK(static_cast<uint8_t*>(host)[0] == 0);  // nothing has run
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(static_cast<uint8_t*>(host)[4095] == 0x33);
  CHECK(calls == 2);
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

TEST_CASE("what a capture forbids ends it", "[capture]") {
  const Primary primary;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = 0;
  CUgraph graph = nullptr;
  SECTION("allocating in the capturing thread") {
    OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(CU(cuMemAlloc)(&p, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == nullptr);
  }
  SECTION("allocating in another thread, unless that one is relaxed") {
    OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    std::thread([&] {
      CHECK(CU(cuCtxSetCurrent)(primary.context) == CUDA_SUCCESS);
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
      CHECK(CU(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS);
      CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
      CHECK(CU(cuMemAlloc)(&p, 64) == CUDA_SUCCESS);
      CHECK(CU(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS);
      CHECK(CU(cuMemFree)(p) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }).join();
    CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(CU(cuMemFree)(p));
  }
  SECTION("synchronizing the capturing stream") {
    OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(CU(cuStreamSynchronize)(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  SECTION("ending it in another thread") {
    OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    std::thread([&] {
      CHECK(CU(cuCtxSetCurrent)(primary.context) == CUDA_SUCCESS);
      CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  SECTION("the legacy stream beside a blocking stream in capture") {
    CUstream blocking = nullptr;
    OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
    OK(CU(cuMemAlloc)(&p, 64));
    OK(CU(cuStreamBeginCapture)(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(CU(cuMemsetD8Async)(p, 0, 64, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(CU(cuStreamEndCapture)(blocking, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  OK(CU(cuStreamIsCapturing)(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("streams join a capture by events and have to come back", "[capture]") {
  const Primary primary;
  CUstream a = nullptr, b = nullptr;
  CUevent fork = nullptr, join = nullptr;
  OK(CU(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
  OK(CU(cuEventCreate)(&fork, 0));
  OK(CU(cuEventCreate)(&join, 0));
  CUdeviceptr p = 0;
  OK(CU(cuMemAlloc)(&p, 4096));
  for (const bool joined : {true, false}) {
    OK(CU(cuStreamBeginCapture)(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(CU(cuMemsetD8Async)(p, 1, 64, a));
    OK(CU(cuEventRecord)(fork, a));
    OK(CU(cuStreamWaitEvent)(b, fork, 0));
    OK(CU(cuMemsetD8Async)(p + 64, 2, 64, b));
    CHECK(CU(cuStreamEndCapture)(b, nullptr) == CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuEventRecord)(join, b));
    if (joined) OK(CU(cuStreamWaitEvent)(a, join, 0));
    CUgraph graph = nullptr;
    const CUresult ended = CU(cuStreamEndCapture)(a, &graph);
    CHECK(ended == (joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    CHECK((graph != nullptr) == joined);
    if (graph != nullptr) OK(CU(cuGraphDestroy)(graph));
    CHECK(CU(cuEventQuery)(join) == CUDA_ERROR_CAPTURED_EVENT);
    OK(CU(cuStreamSynchronize)(b));
  }
}
