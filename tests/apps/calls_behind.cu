// A call that may wait for work (OL_TEST_CALL), behind work that waits for managed memory
// (OL_TEST_WORK): a host function that touches it, one of a graph, or a kernel that waits for a
// thread that touches it. Natively each ends, and the call returns.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common.h"

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr uint32_t kWords = 32;

__global__ void touch(uint32_t* words) { words[threadIdx.x] += 1; }
// A kernel of its own for each first use.
__global__ void first(uint32_t* words) { words[threadIdx.x] += 7; }
__device__ uint32_t variable[kWords];
__global__ void spin(volatile uint32_t* flag) {
  while (*flag == 0) {
  }
}

useconds_t g_after = 0;
uint32_t* g_managed = nullptr;

void touchHere() {
  usleep(g_after);
  for (uint32_t i = 0; i < kWords; ++i) g_managed[i] += 10;
}
void CUDART_CB touches(void*) { touchHere(); }

class Calls {
 public:
  Calls() : bytes_(3 << 20) {
    RUNTIME_OK(cudaMalloc(&memory_, bytes_.size()));
    RUNTIME_OK(cudaMemset(memory_, 0, bytes_.size()));
    RUNTIME_OK(cudaMallocHost(&pinned_, 1 << 20));
    RUNTIME_OK(cudaHostRegister(registered_.data(), registered_.size(), 0));
    RUNTIME_OK(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
  }
  void make(const std::string& call, cudaStream_t stream) {
    const uint32_t words[kWords] = {1, 2, 3};
    void* address = nullptr;
    int blocks = 0;
    cudaFuncAttributes attributes{};
    if (call == "to symbol") {
      RUNTIME_OK(cudaMemcpyToSymbol(variable, words, sizeof words));
    } else if (call == "symbol address") {
      RUNTIME_OK(cudaGetSymbolAddress(&address, variable));
      CHECK(address != nullptr, "a variable has no address");
    } else if (call == "attributes") {
      RUNTIME_OK(cudaFuncGetAttributes(&attributes, first));
      CHECK(attributes.maxThreadsPerBlock > 0, "a kernel takes no threads");
    } else if (call == "occupancy") {
      RUNTIME_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, first, 128, 0));
      CHECK(blocks > 0, "a kernel takes no blocks");
    } else if (call == "first launch") {
      first<<<1, kWords, 0, other_>>>(reinterpret_cast<uint32_t*>(memory_));
      RUNTIME_OK(cudaGetLastError());
    } else if (call == "free host") {
      RUNTIME_OK(cudaFreeHost(pinned_));
    } else if (call == "unregister") {
      RUNTIME_OK(cudaHostUnregister(registered_.data()));
    } else if (call == "copy") {
      RUNTIME_OK(cudaMemcpy(bytes_.data(), memory_, 4096, cudaMemcpyDeviceToHost));
      RUNTIME_OK(cudaMemcpy(memory_, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice));
    } else if (call == "copy behind") {
      RUNTIME_OK(
          cudaMemcpyAsync(bytes_.data(), memory_, bytes_.size(), cudaMemcpyDeviceToHost, stream));
    } else {
      apps::fail("no call %s", call.c_str());
    }
  }

 private:
  uint8_t* memory_ = nullptr;
  void* pinned_ = nullptr;
  std::vector<uint8_t> bytes_;
  std::vector<uint8_t> registered_ = std::vector<uint8_t>(1 << 20);
  cudaStream_t other_ = nullptr;
};

std::string setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  apps::parse(argc, argv);
  const std::string call = setting("OL_TEST_CALL", "copy");
  const std::string work = setting("OL_TEST_WORK", "function");
  g_after = useconds_t(std::stoul(setting("OL_TEST_AFTER", "300"))) * 1000;
  uint32_t* flag;
  RUNTIME_OK(cudaMallocManaged(&g_managed, kBytes));
  RUNTIME_OK(cudaMallocHost(&flag, 4096));
  std::memset(g_managed, 0, kBytes);
  *flag = 1;
  Calls calls;
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  touch<<<1, kWords, 0, stream>>>(g_managed);
  spin<<<1, 1, 0, stream>>>(flag);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  touch<<<1, kWords, 0, stream>>>(g_managed);
  RUNTIME_OK(cudaGetLastError());

  uint32_t behind = 0;
  std::thread toucher;
  if (work == "function") {
    RUNTIME_OK(cudaLaunchHostFunc(stream, touches, nullptr));
    touch<<<1, kWords, 0, stream>>>(g_managed);
    behind = 1;
  } else if (work == "graph") {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    cudaHostNodeParams function{touches, nullptr};
    RUNTIME_OK(cudaGraphCreate(&graph, 0));
    RUNTIME_OK(cudaGraphAddHostNode(&node, graph, nullptr, 0, &function));
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
    *flag = 0;
    // The graph is launched, and has not begun.
    spin<<<1, 1, 0, stream>>>(flag);
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    toucher = std::thread([flag] {
      usleep(20'000);
      *static_cast<volatile uint32_t*>(flag) = 1;
    });
  } else if (work == "kernel") {
    *flag = 0;
    spin<<<1, 1, 0, stream>>>(flag);
    toucher = std::thread([flag] {
      touchHere();
      *static_cast<volatile uint32_t*>(flag) = 1;
    });
  } else {
    apps::fail("no work %s", work.c_str());
  }
  RUNTIME_OK(cudaGetLastError());
  calls.make(call, stream);
  RUNTIME_OK(cudaDeviceSynchronize());
  if (toucher.joinable()) toucher.join();
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(g_managed[i] == 12 + behind, "word %u is %u", i, g_managed[i]);
  return apps::ok("%s behind a %s", call.c_str(), work.c_str());
}
