// The results of launches that are known to have failed after they were made, and of what they
// left: for tests of forwarded mode, in which a launch on a stream that is gone is such a one.
// Every check is of one argument:
//   unregister  memory that kernels used is unregistered when something has failed: it is
//               unregistered, and nothing is lost
//   questions   calls that tell of no failure leave it to the next that does
//   refused     a launch that forwarded mode refuses leaves nothing to wait for
//   reset       what failed in a context is of no concern to the next one
//   retained    one that somebody else retains has to tell all the same
//   ends        what makes or ends something does not tell: it is done
//   devices     what failed on one device is of no concern to another, and told by its own (two
//               devices)
//   streams     who asks a stream of another device hears of its fault, which is not the current
//               one's (two devices)
//   large       large copies in streams of another device (two devices)
//   fault       behind a kernel's fault every call is refused, and none of them is waited for
//   looping     a program that launches on and on behind a fault, and waits for nothing, hears of
//               it
//   rested      so does one that has called nothing since the fault
//   unmapped    what kernels write to registered memory that the program has unmapped or protected
//               harms nobody (an H100 writes to what is protected)
//   beside      what the host wrote comes to another context of the device also where a call behind
//               the fault was to bring it (for the simulated GPU: on an H100 the process has lost
//               all of its contexts)
//   elsewhere   a fault in a stream of another device is of that device alone (two devices)
//   successor   a thread's launches in its own stream are paid for when another thread has taken
//               its place
// "OK" at the end.
#include <cuda.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "common.h"

#define GOOD(call)                                               \
  do {                                                           \
    const CUresult result = (call);                              \
    CHECK(result == CUDA_SUCCESS, "%s: %d", #call, int(result)); \
  } while (false)

__global__ void bump(unsigned* at, unsigned turns) {
  unsigned x = 1;
  for (unsigned i = 0; i < turns; ++i) x = x * 1664525u + 1013904223u;
  *at += x != 0 || turns == 0 ? 1 : 2;
}

static CUdevice g_device;
static CUcontext g_context;

static void enter() {
  GOOD(cuDevicePrimaryCtxRetain(&g_context, g_device));
  GOOD(cuCtxSetCurrent(g_context));
}

/// The second device's context, current, and memory there.
static CUcontext enterSecond(CUdeviceptr* there) {
  CUcontext other = nullptr;
  CUdevice second = 0;
  GOOD(cuDeviceGet(&second, 1));
  GOOD(cuDevicePrimaryCtxRetain(&other, second));
  GOOD(cuCtxSetCurrent(other));
  GOOD(cuMemAlloc(there, 4096));
  GOOD(cuMemsetD8(*there, 0, 4096));
  return other;
}

static CUresult launch(CUstream stream, CUdeviceptr at, unsigned turns) {
  static std::map<CUcontext, CUfunction> functions;  // behind a fault the runtime tells none
  CUcontext current = nullptr;
  GOOD(cuCtxGetCurrent(&current));
  CUfunction& function = functions[current];
  if (function == nullptr &&
      cudaGetFuncBySymbol(reinterpret_cast<cudaFunction_t*>(&function),
                          reinterpret_cast<const void*>(bump)) != cudaSuccess)
    return CUDA_ERROR_NOT_FOUND;
  void* parameters[] = {&at, &turns};
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

/// A launch that fails where nobody waits for it: taken before, on a stream that is gone.
static void fail(CUdeviceptr memory) {
  CUstream stream = nullptr;
  GOOD(cuStreamCreate(&stream, 0));
  GOOD(launch(stream, memory, 1));
  GOOD(cuStreamSynchronize(stream));
  GOOD(cuStreamDestroy(stream));
  GOOD(launch(stream, memory, 1));
}

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  GOOD(cuInit(0));
  GOOD(cuDeviceGet(&g_device, 0));
  enter();
  CUdeviceptr memory = 0;
  GOOD(cuMemAlloc(&memory, 4096));
  GOOD(cuMemsetD8(memory, 0, 4096));
  GOOD(launch(nullptr, memory, 1));
  GOOD(cuCtxSynchronize());
  static unsigned words[1 << 14];
  if (what == "unregister") {
    CUdeviceptr there = 0;
    GOOD(cuMemHostRegister(words, sizeof words, 0));
    GOOD(cuMemHostGetDevicePointer(&there, words, 0));
    GOOD(launch(nullptr, there, 1));
    GOOD(cuCtxSynchronize());
    CHECK(words[0] == 1, "%u", words[0]);
    fail(memory);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (cuMemHostUnregister(words) == CUDA_SUCCESS)
      CHECK(cuCtxSynchronize() != CUDA_SUCCESS, "nobody tells of the failure");
    words[0] = 77;  // is exchanged no more
    GOOD(launch(nullptr, memory, 1));
    GOOD(cuCtxSynchronize());
    CHECK(cuMemHostUnregister(words) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
          "it is still registered");
  } else if (what == "questions") {
    const char* name = nullptr;
    GOOD(cuMemHostRegister(words, sizeof words, 0));
    fail(memory);
    GOOD(cuGetErrorName(CUDA_ERROR_UNKNOWN, &name));
    GOOD(cuMemHostUnregister(words));
    CHECK(cuCtxSynchronize() != CUDA_SUCCESS, "nobody tells of the failure");
    GOOD(cuCtxSynchronize());
  } else if (what == "refused") {
    unsigned* pinned = nullptr;
    GOOD(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, 0));
    std::memset(pinned, 0, 4096);
    GOOD(launch(nullptr, CUdeviceptr(pinned), 1));
    GOOD(cuCtxSynchronize());
    CUevent event = nullptr;
    GOOD(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
    attribute.value.programmaticEvent.event = event;
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY =
        config.blockDimZ = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUfunction function = nullptr;
    CHECK(cudaGetFuncBySymbol(reinterpret_cast<cudaFunction_t*>(&function),
                              reinterpret_cast<const void*>(bump)) == cudaSuccess,
          "no kernel");
    unsigned turns = 1;
    void* parameters[] = {&memory, &turns};
    CHECK(cuLaunchKernelEx(&config, function, parameters, nullptr) == CUDA_ERROR_NOT_SUPPORTED,
          "it is not refused any more");
    GOOD(cuCtxSynchronize());
    GOOD(cuMemcpyHtoD(memory, pinned, 4096));
  } else if (what == "reset") {
    std::thread([&] {
      GOOD(cuCtxSetCurrent(g_context));
      fail(memory);
    }).join();
    GOOD(cuDevicePrimaryCtxReset(g_device));
    enter();
    GOOD(cuCtxSynchronize());
  } else if (what == "retained") {
    unsigned* pinned = nullptr;
    GOOD(cuMemFree(memory));
    GOOD(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, 0));
    std::thread([&] {
      GOOD(cuCtxSetCurrent(g_context));
      fail(CUdeviceptr(pinned));
    }).join();
    CUcontext again = nullptr;
    GOOD(cuDevicePrimaryCtxRetain(&again, g_device));
    GOOD(cuDevicePrimaryCtxRelease(g_device));
    CHECK(cuCtxSynchronize() != CUDA_SUCCESS, "nobody tells of the failure");
    GOOD(cuCtxSynchronize());
  } else if (what == "ends") {
    fail(memory);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CUdeviceptr more = 0;
    CUevent event = nullptr;
    CUcontext again = nullptr;
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    GOOD(cuMemAlloc(&more, 64 << 20));
    GOOD(cuMemFree(more));
    GOOD(cuMemFree(memory));
    GOOD(cuEventCreate(&event, 0));
    GOOD(cuStreamCreate(&stream, 0));
    GOOD(cuDevicePrimaryCtxRetain(&again, g_device));
    GOOD(cuDevicePrimaryCtxRelease(g_device));
    GOOD(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    GOOD(cuStreamEndCapture(stream, &graph));
    CHECK(cuEventQuery(event) != CUDA_SUCCESS, "nobody tells of the failure");
    GOOD(cuEventQuery(event));
    GOOD(cuCtxSynchronize());
  } else if (what == "devices" || what == "streams" || what == "large") {
    CUstream here = nullptr;
    GOOD(cuStreamCreate(&here, CU_STREAM_NON_BLOCKING));
    CUdeviceptr there = 0;
    const CUcontext other = enterSecond(&there);
    if (what == "devices") {
      GOOD(cuCtxSetCurrent(g_context));
      fail(memory);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      GOOD(cuCtxSetCurrent(other));
      GOOD(cuCtxSynchronize());
      fail(there);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      CHECK(cuCtxSynchronize() != CUDA_SUCCESS, "nobody tells of the second failure");
      GOOD(cuCtxSynchronize());
      GOOD(cuCtxSetCurrent(g_context));
      CHECK(cuCtxSynchronize() != CUDA_SUCCESS, "nobody tells of the first failure");
      GOOD(cuCtxSynchronize());
    } else if (what == "streams") {
      GOOD(cuCtxSetCurrent(g_context));
      (void)launch(here, 0x4000, 1);
      GOOD(cuCtxSetCurrent(other));
      CHECK(cuStreamSynchronize(here) == CUDA_ERROR_ILLEGAL_ADDRESS, "nobody tells of the fault");
      for (int again = 0; again < 3; ++again) {
        GOOD(launch(nullptr, there, 1));
        GOOD(cuMemsetD8Async(there + 1024, 0, 1024, nullptr));
        GOOD(cuCtxSynchronize());
      }
      unsigned is = 0;
      GOOD(cuMemcpyDtoH(&is, there, sizeof is));
      CHECK(is == 3, "%u", is);
      GOOD(cuCtxSetCurrent(g_context));
      CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS, "the fault is forgotten");
    } else {
      constexpr size_t kBytes = 5 << 20;
      unsigned char *from = nullptr, *to = nullptr;
      CUdeviceptr large = 0;
      GOOD(cuMemHostAlloc(reinterpret_cast<void**>(&from), kBytes, CU_MEMHOSTALLOC_PORTABLE));
      GOOD(cuMemHostAlloc(reinterpret_cast<void**>(&to), kBytes, CU_MEMHOSTALLOC_PORTABLE));
      GOOD(cuCtxSetCurrent(g_context));
      GOOD(cuMemAlloc(&large, kBytes));
      GOOD(cuCtxSetCurrent(other));
      for (unsigned round = 0; round < 3; ++round) {
        for (size_t i = 0; i < kBytes; ++i)
          from[i] = static_cast<unsigned char>(i * 7 + i / 4096 + round);
        GOOD(cuMemcpyHtoDAsync(large, from, kBytes, here));
        GOOD(cuMemcpyDtoHAsync(to, large, kBytes, here));
        GOOD(cuStreamSynchronize(here));
        CHECK(std::memcmp(from, to, kBytes) == 0, "round %u: other bytes", round);
      }
      GOOD(cuCtxSynchronize());
    }
  } else if (what == "fault") {
    unsigned* pinned = nullptr;
    GOOD(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, 0));
    std::memset(pinned, 0, 4096);
    GOOD(launch(nullptr, CUdeviceptr(pinned), 1));
    GOOD(cuCtxSynchronize());
    (void)launch(nullptr, 0x4000, 1);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS, "nobody tells of the fault");
    bool called = false;
    for (int again = 0; again < 3; ++again) {
      CHECK(cuMemcpyDtoHAsync(pinned, memory, 4096, nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS,
            "a copy behind a fault");
      CHECK(cuLaunchHostFunc(
                nullptr, [](void* flag) { *static_cast<bool*>(flag) = true; }, &called) ==
                CUDA_ERROR_ILLEGAL_ADDRESS,
            "a host function behind a fault");
      CHECK(launch(nullptr, memory, 1) == CUDA_ERROR_ILLEGAL_ADDRESS, "a launch behind a fault");
      CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS, "a synchronisation behind a fault");
    }
    CHECK(!called && *pinned == 1, "%u", *pinned);
  } else if (what == "looping") {
    (void)launch(nullptr, 0x4000, 1);
    CUresult result = CUDA_SUCCESS;
    const auto begun = std::chrono::steady_clock::now();
    unsigned long long launches = 0;
    for (; result == CUDA_SUCCESS &&
           std::chrono::steady_clock::now() - begun < std::chrono::seconds(10);
         ++launches) {
      result = launch(nullptr, memory, 1);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    CHECK(result == CUDA_ERROR_ILLEGAL_ADDRESS, "%llu launches behind a fault: %d", launches,
          int(result));
    CUevent event = nullptr;
    CUdeviceptr more = 0;
    CHECK(cuMemsetD8Async(memory, 0, 16, nullptr) == result, "a memset behind a fault");
    CHECK(cuMemcpyHtoDAsync(memory, words, 16, nullptr) == result, "a copy behind a fault");
    CHECK(cuEventCreate(&event, 0) == result, "an event behind a fault");
    CHECK(cuMemAlloc(&more, 4096) == result, "an allocation behind a fault");
    CHECK(cuMemFree(memory) == result, "a free behind a fault");
    CHECK(cuCtxSynchronize() == result, "a synchronisation behind a fault");
  } else if (what == "rested") {
    (void)launch(nullptr, 0x4000, 1);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    CHECK(launch(nullptr, memory, 1) == CUDA_ERROR_ILLEGAL_ADDRESS, "a launch long behind a fault");
  } else if (what == "unmapped") {
    constexpr size_t kBytes = 64 << 10;
    void* blocks[2];  // what is registered stays so where it is: the second one may not lie where
                      // the first was
    for (void*& block : blocks) {
      block = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK(block != MAP_FAILED, "no memory");
    }
    for (void* const mapped : blocks) {
      const bool unmaps = mapped == blocks[0];
      CUdeviceptr there = 0;
      GOOD(cuMemHostRegister(mapped, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
      GOOD(cuMemHostGetDevicePointer(&there, mapped, 0));
      for (size_t at = 0; at < kBytes; at += 4096) GOOD(launch(nullptr, there + at, 1));
      GOOD(cuCtxSynchronize());
      CHECK(*static_cast<unsigned*>(mapped) == 1, "%u", *static_cast<unsigned*>(mapped));
      CHECK((unmaps ? munmap(mapped, kBytes) : mprotect(mapped, kBytes, PROT_READ)) == 0,
            "it stays");
      for (size_t at = 0; at < kBytes; at += 4096) GOOD(launch(nullptr, there + at, 1));
      GOOD(cuMemsetD8Async(there + 64, 1, kBytes - 64, nullptr));
    }
    GOOD(launch(nullptr, memory, 1));
    GOOD(cuCtxSynchronize());
  } else if (what == "beside") {
    unsigned* pinned = nullptr;
    GOOD(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, CU_MEMHOSTALLOC_PORTABLE));
    std::memset(pinned, 0, 4096);
    CUcontext other = nullptr;
#if CUDA_VERSION >= 13000
    GOOD(cuCtxCreate(&other, nullptr, 0, g_device));
#else
    GOOD(cuCtxCreate(&other, 0, g_device));
#endif
    GOOD(launch(nullptr, CUdeviceptr(pinned), 1));
    GOOD(cuCtxSynchronize());
    GOOD(cuCtxSetCurrent(g_context));
    (void)launch(nullptr, 0x4000, 1);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS, "nobody tells of the fault");
    for (unsigned round = 1; round <= 3; ++round) {
      *pinned = round * 100;
      CHECK(launch(nullptr, CUdeviceptr(pinned), 1) == CUDA_ERROR_ILLEGAL_ADDRESS,
            "a launch behind a fault");
      GOOD(cuCtxSetCurrent(other));
      GOOD(launch(nullptr, CUdeviceptr(pinned), 1));
      GOOD(cuCtxSynchronize());
      CHECK(*pinned == round * 100 + 1, "%u instead of %u", *pinned, round * 100 + 1);
      GOOD(cuCtxSetCurrent(g_context));
    }
  } else if (what == "elsewhere") {
    CUstream here = nullptr;
    GOOD(cuStreamCreate(&here, CU_STREAM_NON_BLOCKING));
    CUdeviceptr there = 0;
    const CUcontext other = enterSecond(&there);
    GOOD(launch(nullptr, there, 1));
    (void)cuMemsetD8Async(0x4000, 0, 16, here);  // refused, if it is looked at
    GOOD(cuCtxSetCurrent(g_context));
    (void)launch(here, 0x4000, 1);
    GOOD(cuCtxSetCurrent(other));
    std::this_thread::sleep_for(std::chrono::seconds(2));
    for (int again = 0; again < 100; ++again) GOOD(launch(nullptr, there, 1));
    GOOD(cuCtxSynchronize());
    GOOD(cuCtxSetCurrent(g_context));
    CHECK(launch(nullptr, memory, 1) == CUDA_ERROR_ILLEGAL_ADDRESS, "the fault is forgotten");
    GOOD(cuCtxSetCurrent(other));
    GOOD(launch(nullptr, there, 1));
    unsigned is = 0;
    GOOD(cuMemcpyDtoH(&is, there, sizeof is));
    CHECK(is == 102, "%u", is);
  } else if (what == "successor") {
    unsigned* pinned = nullptr;
    GOOD(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, 0));
    std::memset(pinned, 0, 4096);
    GOOD(launch(nullptr, CUdeviceptr(pinned), 1));
    GOOD(cuCtxSynchronize());
    for (unsigned round = 2; round <= 6; ++round) {
      std::thread([&] {
        GOOD(cuCtxSetCurrent(g_context));
        GOOD(launch(CU_STREAM_PER_THREAD, CUdeviceptr(pinned), 20000000));
      }).join();
      std::thread([&] {
        GOOD(cuCtxSetCurrent(g_context));
        GOOD(launch(CU_STREAM_PER_THREAD, memory, 1));
      }).join();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      GOOD(cuCtxSynchronize());
      CHECK(*pinned == round, "%u instead of %u", *pinned, round);
    }
  } else {
    CHECK(false, "no such check: %s", what.c_str());
  }
  std::printf("OK\n");
  return 0;
}
