// The CPU touches managed memory that a GPU has used, while another thread loads code, or launches
// a kernel for the first time. A kernel that does not reach that memory runs meanwhile, until the
// touch is done. A driver that loads code may wait for that kernel, and may answer no call until it
// ends.
#include <cuda.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "common.h"

__global__ void add(uint32_t* words, uint32_t count) {
  for (uint32_t i = threadIdx.x; i < count; i += 65536) words[i] += 1;
}
__global__ void wait(volatile uint32_t* go) {
  while (*go == 0) {
  }
}
/// Each kKernel is a kernel of its own, which a driver may load by itself.
template <int kKernel>
__global__ void first(uint32_t* words) {
  words[threadIdx.x] += kKernel;
}

constexpr char kCode[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n";
constexpr uint32_t kWords = (8u << 20) / 4;

struct World {
  uint32_t* memory = nullptr;
  uint32_t* other = nullptr;  // reached by what is launched for the first time
  volatile uint32_t* go = nullptr;
  uint32_t* go_there = nullptr;
  cudaStream_t stream = nullptr, beside = nullptr, third = nullptr;
  CUcontext context = nullptr;
  uint32_t rounds = 0;
};

// `code` is loaded in a thread of its own; the touch comes once that has begun.
template <typename Code>
void beside(World& world, const char* what, Code code) {
  add<<<1, 32, 0, world.stream>>>(world.memory, kWords);
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaStreamSynchronize(world.stream));
  ++world.rounds;
  *world.go = 0;
  wait<<<1, 1, 0, world.beside>>>(world.go_there);
  RUNTIME_OK(cudaGetLastError());
  std::thread loads([&] {
    DRIVER_OK(cuCtxSetCurrent(world.context));
    code();
  });
  usleep(200'000);
  const volatile uint32_t* const touched = world.memory;
  for (uint32_t i = 0; i < kWords; i += 65536)
    CHECK(touched[i] == world.rounds, "beside %s a word is %u, not %u", what, touched[i],
          world.rounds);
  *world.go = 1;
  loads.join();
  RUNTIME_OK(cudaDeviceSynchronize());
}

int main(int argc, char** argv) {
  apps::parse(argc, argv);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("the CPU may not touch managed memory while a kernel runs");
  World world;
  RUNTIME_OK(cudaMallocManaged(&world.memory, size_t{kWords} * 4));
  RUNTIME_OK(cudaMallocManaged(&world.other, size_t{kWords} * 4));
  std::memset(world.memory, 0, size_t{kWords} * 4);
  std::memset(world.other, 0, size_t{kWords} * 4);
  void* flag = nullptr;
  RUNTIME_OK(cudaHostAlloc(&flag, 4096, cudaHostAllocMapped));
  world.go = static_cast<uint32_t*>(flag);
  RUNTIME_OK(cudaHostGetDevicePointer(&world.go_there, flag, 0));
  for (cudaStream_t* stream : {&world.stream, &world.beside, &world.third})
    RUNTIME_OK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  DRIVER_OK(cuCtxGetCurrent(&world.context));
  *world.go = 1;
  wait<<<1, 1, 0, world.beside>>>(world.go_there);  // its code is there
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaDeviceSynchronize());

  CUmodule module = nullptr;
  beside(world, "a module's load", [&] { DRIVER_OK(cuModuleLoadData(&module, kCode)); });
  beside(world, "a module's end", [&] { DRIVER_OK(cuModuleUnload(module)); });
  const auto launch = [&](auto kernel) {
    kernel<<<1, 32, 0, world.third>>>(world.other);
    RUNTIME_OK(cudaGetLastError());
  };
  beside(world, "a first launch", [&] { launch(first<1>); });
  beside(world, "another first launch", [&] { launch(first<2>); });
  CHECK(world.other[31] == 3, "what was launched first has made %u, not 3", world.other[31]);
  return apps::ok("touches beside code that is loaded");
}
