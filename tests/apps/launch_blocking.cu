// Settings of the driver in a program's environment. First "loads eagerly" or "loads lazily", then
// a line for each line of its standard input:
//   run     launches a long kernel in a stream: "over" when the launch has waited for it, else
//           "running"
//   thread  the same in the thread's own stream
//   graph   captures launches, and launches their graph, which takes long: "over" or "running" as
//           well
//   fault   launches a kernel that faults: "launch" when the launch itself says so, "later" when
//           what waits for it does
#include <cuda.h>

#include <cstring>
#include <string>

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

static CUfunction g_bump;

static CUresult launch(CUstream stream, CUdeviceptr at, unsigned turns) {
  void* parameters[] = {&at, &turns};
  return cuLaunchKernel(g_bump, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

static const char* run(CUstream stream, CUdeviceptr at) {
  // A launch like one that was seen before goes without a wait for the driver's answer.
  GOOD(launch(stream, at, 1));
  GOOD(cuStreamSynchronize(stream));
  GOOD(launch(stream, at, 60000000));
  const CUresult state = cuStreamQuery(stream);
  GOOD(cuStreamSynchronize(stream));
  return state == CUDA_SUCCESS ? "over" : "running";
}

int main() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  GOOD(cuInit(0));
  GOOD(cuDeviceGet(&device, 0));
  GOOD(cuDevicePrimaryCtxRetain(&context, device));
  GOOD(cuCtxSetCurrent(context));
  CUdeviceptr memory = 0;
  GOOD(cuMemAlloc(&memory, 4096));
  GOOD(cuMemsetD8(memory, 0, 4096));
  CHECK(cudaGetFuncBySymbol(reinterpret_cast<cudaFunction_t*>(&g_bump),
                            reinterpret_cast<const void*>(bump)) == cudaSuccess,
        "no kernel");
  CUstream stream = nullptr;
  GOOD(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUmoduleLoadingMode mode{};
  GOOD(cuModuleGetLoadingMode(&mode));
  std::printf("loads %s\n", mode == CU_MODULE_EAGER_LOADING ? "eagerly" : "lazily");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const std::string said(line, std::strcspn(line, "\n"));
    std::string answer = "unknown";
    if (said == "run") {
      answer = run(stream, memory);
    } else if (said == "thread") {
      answer = run(CU_STREAM_PER_THREAD, memory);
    } else if (said == "graph") {
      CUgraph graph = nullptr;
      CUgraphExec made = nullptr;
      unsigned before = 0, behind = 0;
      GOOD(cuMemcpyDtoH(&before, memory, sizeof before));
      GOOD(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
      GOOD(launch(stream, memory, 1));
      GOOD(launch(stream, memory, 60000000));
      GOOD(cuStreamEndCapture(stream, &graph));
      GOOD(cuGraphInstantiate(&made, graph, 0));
      GOOD(cuGraphLaunch(made, stream));
      answer = cuStreamQuery(stream) == CUDA_SUCCESS ? "over" : "running";
      GOOD(cuStreamSynchronize(stream));
      GOOD(cuMemcpyDtoH(&behind, memory, sizeof behind));
      CHECK(behind == before + 2, "%u, %u", before, behind);
    } else if (said == "fault") {
      const CUresult launched = launch(stream, 0x4000, 1);
      const CUresult waited = cuStreamSynchronize(stream);
      CHECK(waited == CUDA_ERROR_ILLEGAL_ADDRESS, "%d", int(waited));
      CHECK(launched == CUDA_SUCCESS || launched == waited, "%d", int(launched));
      answer = launched == CUDA_SUCCESS ? "later" : "launch";
    }
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  }
  return 0;
}
