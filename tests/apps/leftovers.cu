// Finished work leaves nothing behind that later calls would pay for, as forwarded mode sees it.
// The first argument says what to look at; tests/integration/forward/sessions.py looks at what the
// calls of the first three have waited for.
//   functions   host functions beside a capture, in one, and in graphs that were launched: copies
//               to the GPU wait for none of them later
//   captures    streams that capture are destroyed, reset with their context, or end with their
//               thread: launches are not asked for one by one
//   compare     nothing of either, and the same copies and launches
//   idle        a graph with a host function is gone, or is there and not launched: nothing runs
//               while the program sleeps
//   callbacks   the session is lost: callbacks are called with an error in their order, host
//               functions are not ("enqueued", then its worker is ended)
// "OK" at the end.
#include <cuda.h>

#include <dirent.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "common.h"

namespace {

constexpr unsigned kTimes = 200;
CUdevice g_device;
CUcontext g_context;

__global__ void bump(unsigned* at, unsigned turns) {
  unsigned x = 1;
  for (unsigned i = 0; i < turns; ++i) x = x * 1664525u + 1013904223u;
  *at += x != 0 || turns == 0 ? 1 : 2;
}

void enter() {
  DRIVER_OK(cuDevicePrimaryCtxRetain(&g_context, g_device));
  DRIVER_OK(cuCtxSetCurrent(g_context));
}

void launch(CUstream stream, CUdeviceptr at, unsigned turns = 0) {
  CUfunction function = nullptr;
  RUNTIME_OK(cudaGetFuncBySymbol(reinterpret_cast<cudaFunction_t*>(&function),
                                 reinterpret_cast<const void*>(bump)));
  void* parameters[] = {&at, &turns};
  DRIVER_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
}

void count(void* counter) { ++*static_cast<std::atomic<unsigned>*>(counter); }

/// Copies that would wait for host functions, and launches that would be round trips.
void pay(CUstream stream, CUdeviceptr memory) {
  static unsigned words[64];
  for (unsigned i = 0; i < kTimes; ++i) {
    words[0] = i;
    DRIVER_OK(cuMemcpyHtoDAsync(memory, words, sizeof words, stream));
    launch(stream, memory);
  }
  DRIVER_OK(cuStreamSynchronize(stream));
  unsigned is = 0;
  DRIVER_OK(cuMemcpyDtoH(&is, memory, sizeof is));
  CHECK(is == kTimes, "%u instead of %u", is, kTimes);
}

/// A host function's result, read by a copy behind it that is called before the function is over.
struct Result {
  unsigned words[64];
  unsigned given;
};
void give(void* data) {
  auto* const result = static_cast<Result*>(data);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  result->words[0] = result->given;
}
void takeResult(CUstream stream, CUdeviceptr memory, Result& result, const char* where) {
  unsigned is = 0;
  DRIVER_OK(cuMemcpyHtoDAsync(memory, result.words, sizeof result.words, stream));
  DRIVER_OK(cuMemcpyDtoHAsync(&is, memory, sizeof is, stream));
  DRIVER_OK(cuStreamSynchronize(stream));
  CHECK(is == result.given, "a copy behind a host function %s took %u instead of %u", where, is,
        result.given);
}

void functions(CUstream stream, CUdeviceptr memory) {
  CUstream captured = nullptr, joined = nullptr;
  CUevent fork = nullptr, join = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  std::atomic<unsigned> beside{0}, within{0};
  DRIVER_OK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  DRIVER_OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  DRIVER_OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  launch(captured, memory);
  DRIVER_OK(cuLaunchHostFunc(stream, count, &beside));
  DRIVER_OK(cuStreamSynchronize(stream));
  CHECK(beside == 1, "the function beside the capture was called %u times", beside.load());
  static Result result;
  result.given = 17;
  DRIVER_OK(cuLaunchHostFunc(stream, give, &result));
  takeResult(stream, memory, result, "beside a capture");
  // One in the stream itself, one in a stream that has joined it.
  DRIVER_OK(cuLaunchHostFunc(captured, count, &within));
  DRIVER_OK(cuEventRecord(fork, captured));
  DRIVER_OK(cuStreamWaitEvent(joined, fork, 0));
  DRIVER_OK(cuLaunchHostFunc(joined, count, &within));
  DRIVER_OK(cuEventRecord(join, joined));
  DRIVER_OK(cuStreamWaitEvent(captured, join, 0));
  DRIVER_OK(cuLaunchHostFunc(captured, give, &result));
  DRIVER_OK(cuStreamEndCapture(captured, &graph));
  CHECK(within == 0 && beside == 1, "%u functions were called by the capture", within.load());
  pay(stream, memory);
  DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
  for (unsigned times = 1; times <= 3; ++times) {
    DRIVER_OK(cuGraphLaunch(exec, captured));
    // Without a call that would receive anything.
    for (unsigned ms = 0; within != 2 * times && ms < 10000; ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(within == 2 * times, "%u functions were called by %u launches", within.load(), times);
    DRIVER_OK(cuStreamSynchronize(captured));
    result.given = times;
    DRIVER_OK(cuGraphLaunch(exec, captured));
    takeResult(captured, memory, result, "of a graph");
    within -= 2;
  }
  CHECK(beside == 1, "the function beside the capture was called %u times", beside.load());
  // The word of it comes by itself.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  pay(stream, memory);
  DRIVER_OK(cuGraphExecDestroy(exec));
  DRIVER_OK(cuGraphDestroy(graph));
}

/// Forbidden while something captures that is not relaxed.
void allocate() {
  CUdeviceptr more = 0;
  DRIVER_OK(cuMemAlloc(&more, 4096));
  DRIVER_OK(cuMemFree(more));
}

void captures(CUstream stream, CUdeviceptr memory) {
  CUstream gone = nullptr;
  DRIVER_OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuStreamBeginCapture(gone, CU_STREAM_CAPTURE_MODE_GLOBAL));
  DRIVER_OK(cuStreamDestroy(gone));
  allocate();
  pay(stream, memory);
  // In a context of its own, captured while another is current.
  CUcontext own = nullptr;
  DRIVER_OK(cuCtxCreate(&own, nullptr, 0, g_device));
  DRIVER_OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuCtxSetCurrent(g_context));
  DRIVER_OK(cuStreamBeginCapture(gone, CU_STREAM_CAPTURE_MODE_RELAXED));
  DRIVER_OK(cuCtxDestroy(own));
  pay(stream, memory);
  std::thread([] {
    DRIVER_OK(cuCtxSetCurrent(g_context));
    DRIVER_OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
  }).join();
  allocate();
  pay(stream, memory);
  DRIVER_OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuStreamBeginCapture(gone, CU_STREAM_CAPTURE_MODE_RELAXED));
  DRIVER_OK(cuDevicePrimaryCtxReset(g_device));
  enter();
  DRIVER_OK(cuMemAlloc(&memory, 4096));
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  pay(stream, memory);
}

/// How often the program's threads have gone to sleep.
unsigned long sleeps() {
  unsigned long all = 0;
  DIR* const tasks = opendir("/proc/self/task");
  CHECK(tasks != nullptr, "no threads in /proc");
  while (const dirent* const task = readdir(tasks)) {
    std::ifstream status(std::string("/proc/self/task/") + task->d_name + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.rfind("voluntary_ctxt_switches:", 0) == 0)
        all += std::stoul(line.substr(line.find(':') + 1));
  }
  closedir(tasks);
  return all;
}

unsigned long sleepsInASecond() {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const unsigned long before = sleeps();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return sleeps() - before;
}

void idle(CUstream stream) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  std::atomic<unsigned> called{0};
  const unsigned long first = sleepsInASecond();
  DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  DRIVER_OK(cuLaunchHostFunc(stream, count, &called));
  DRIVER_OK(cuStreamEndCapture(stream, &graph));
  DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
  DRIVER_OK(cuGraphLaunch(exec, stream));
  DRIVER_OK(cuStreamSynchronize(stream));
  CHECK(called == 1, "the function was called %u times", called.load());
  const unsigned long there = sleepsInASecond();
  DRIVER_OK(cuGraphExecDestroy(exec));
  DRIVER_OK(cuGraphDestroy(graph));
  const unsigned long gone = sleepsInASecond();
  CHECK(there < first + 150 && gone < first + 150,
        "threads went to sleep %lu times in a second, %lu with the graph, %lu after it", first,
        there, gone);
}

struct Called {
  std::atomic<unsigned>* turn;
  unsigned at = 0;
  CUresult status = CUDA_SUCCESS;
};

void callbacks(CUstream stream, CUdeviceptr memory) {
  std::atomic<unsigned> turn{0}, functions{0};
  Called called[3] = {{&turn}, {&turn}, {&turn}};
  launch(stream, memory, ~0u);  // longer than the worker
  for (Called& one : called) {
    DRIVER_OK(cuLaunchHostFunc(stream, count, &functions));
    DRIVER_OK(cuStreamAddCallback(
        stream,
        [](CUstream, CUresult status, void* data) {
          auto* const one = static_cast<Called*>(data);
          one->status = status;
          one->at = one->turn->load() + 1;
          ++*one->turn;
        },
        &one, 0));
  }
  std::printf("enqueued\n");
  std::fflush(stdout);
  for (unsigned ms = 0; turn != 3 && ms < 20000; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(turn == 3, "%u callbacks of 3 were called", turn.load());
  for (unsigned i = 0; i < 3; ++i)
    CHECK(called[i].status == CUDA_ERROR_DEVICE_UNAVAILABLE && called[i].at == i + 1,
          "callback %u: %d, as number %u", i, int(called[i].status), called[i].at);
  CHECK(functions == 0, "%u host functions were called", functions.load());
  CHECK(cuStreamSynchronize(stream) != CUDA_SUCCESS, "a success without a worker");
  CHECK(cuStreamAddCallback(
            stream, [](CUstream, CUresult, void*) {}, nullptr, 0) != CUDA_SUCCESS,
        "a callback without a worker");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  DRIVER_OK(cuInit(0));
  DRIVER_OK(cuDeviceGet(&g_device, 0));
  enter();
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuMemAlloc(&memory, 4096));
  DRIVER_OK(cuMemsetD8(memory, 0, 4096));
  launch(stream, memory);
  DRIVER_OK(cuStreamSynchronize(stream));
  if (what == "functions") {
    functions(stream, memory);
  } else if (what == "captures") {
    captures(stream, memory);
  } else if (what == "compare") {
    for (unsigned times = 0; times < 2; ++times) pay(stream, memory);
  } else if (what == "idle") {
    idle(stream);
  } else if (what == "callbacks") {
    callbacks(stream, memory);
  } else {
    CHECK(false, "no such thing: %s", what.c_str());
  }
  std::printf("OK\n");
  return 0;
}
