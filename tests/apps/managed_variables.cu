// __managed__ variables: with initial values and without, small and large, one beside the other.
// The CPU and kernels take turns at them by the same addresses, which may be kept in memory;
// copies, memsets and graphs use them; modules that the program loads by itself have some of their
// own.
#include <cuda.h>

#include <random>

#include "common.h"

namespace {

constexpr unsigned kCount = 5000, kLarge = 3 << 18;

struct Pair {
  uint32_t* at;
  uint64_t value;
};

__managed__ int table[kCount] = {7, -11, 13};
__managed__ unsigned counter;
__managed__ unsigned char bytes[3] = {1, 2, 3};
__managed__ Pair pair;
__managed__ uint32_t large[kLarge];
__device__ int* kept;  // what a kernel was given

__global__ void addToTable(int value) {
  for (unsigned i = threadIdx.x; i < kCount; i += blockDim.x) table[i] += value;
}
__global__ void count() {
  atomicAdd(&counter, 1);
  if (threadIdx.x == 0 && blockIdx.x == 0)
    bytes[1] = static_cast<unsigned char>(bytes[0] + bytes[2]);
}
// By addresses: of the pair's, of a parameter, of a variable.
__global__ void throughPair() { *pair.at += static_cast<uint32_t>(pair.value); }
__global__ void keep(int* there) { kept = there; }
__global__ void throughKept(int value) { *kept = value; }
__global__ void scale(uint32_t factor) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < kLarge; i += gridDim.x * blockDim.x)
    large[i] = large[i] * factor + 1;
}

void done() {
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaDeviceSynchronize());
}

void takeTurns(uint32_t seed) {
  CHECK(
      table[0] == 7 && table[1] == -11 && table[2] == 13 && table[3] == 0 && table[kCount - 1] == 0,
      "the table begins with %d, %d, %d, %d", table[0], table[1], table[2], table[3]);
  CHECK(counter == 0 && bytes[0] == 1 && bytes[1] == 2 && bytes[2] == 3 && pair.at == nullptr,
        "initial values are %u, %u, %u, %u", counter, bytes[0], bytes[1], bytes[2]);
  std::mt19937 random(seed);
  std::vector<int> expected(table, table + kCount);
  for (int round = 0; round < 5; ++round) {
    const int value = static_cast<int>(random() % 1000);
    addToTable<<<1, 128>>>(value);
    count<<<4, 32>>>();
    for (int& word : expected) word += value;
    done();
    for (unsigned i = 0; i < kCount; ++i)
      CHECK(table[i] == expected[i], "seed %u, round %d: word %u is %d, expected %d", seed, round,
            i, table[i], expected[i]);
    CHECK(counter == 128u * static_cast<unsigned>(round + 1) + static_cast<unsigned>(round),
          "counted %u in round %d", counter, round);
    CHECK(bytes[0] == 1 + round && bytes[1] == 4 + round && bytes[2] == 3, "bytes are %u, %u, %u",
          bytes[0], bytes[1], bytes[2]);
    for (int i = 0; i < 50; ++i) {
      const unsigned at = random() % kCount;
      expected[at] = table[at] = static_cast<int>(random());
    }
    ++counter, ++bytes[0];
  }
}

void followPointers() {
  uint32_t* elsewhere;
  RUNTIME_OK(cudaMallocManaged(&elsewhere, 64));
  *elsewhere = 100;
  pair = {elsewhere, 5};
  throughPair<<<1, 1>>>();
  done();
  CHECK(*elsewhere == 105, "through a pointer in a variable: %u", *elsewhere);
  large[9] = 1000;
  pair.at = &large[9];  // of a variable into another one
  throughPair<<<1, 1>>>();
  keep<<<1, 1>>>(&table[17]);
  throughKept<<<1, 1>>>(4242);
  done();
  CHECK(large[9] == 1005 && table[17] == 4242, "variables by their addresses are %u and %d",
        large[9], table[17]);
  RUNTIME_OK(cudaFree(elsewhere));
}

void copyAndFill() {
  int* there = nullptr;
  size_t size = 0;
  RUNTIME_OK(cudaGetSymbolAddress(reinterpret_cast<void**>(&there), table));
  RUNTIME_OK(cudaGetSymbolSize(&size, table));
  CHECK(there == table && size == sizeof table,
        "the symbol is at %p, %zu bytes; the program has it at %p", static_cast<void*>(there), size,
        static_cast<void*>(table));
  cudaPointerAttributes is{};
  RUNTIME_OK(cudaPointerGetAttributes(&is, &table[3]));
  CHECK(is.type == cudaMemoryTypeManaged && is.devicePointer == &table[3] &&
            is.hostPointer == &table[3],
        "memory of type %d at %p and %p", int(is.type), is.devicePointer, is.hostPointer);
  const int three[] = {21, 22, 23};
  RUNTIME_OK(cudaMemcpyToSymbol(table, three, sizeof three, 40));
  addToTable<<<1, 64>>>(1);
  int got[3] = {};
  RUNTIME_OK(cudaMemcpyFromSymbol(got, table, sizeof got, 40));
  CHECK(got[0] == 22 && got[2] == 24 && table[10] == 22 && table[12] == 24,
        "copied by symbol: %d, %d", got[0], table[12]);
  uint32_t* device;
  RUNTIME_OK(cudaMalloc(&device, kLarge * 4));
  for (unsigned i = 0; i < kLarge; ++i) large[i] = i * 3;
  RUNTIME_OK(cudaMemcpy(device, large, sizeof large, cudaMemcpyDefault));
  RUNTIME_OK(cudaMemset(large, 0, sizeof large));
  RUNTIME_OK(cudaDeviceSynchronize());
  CHECK(large[0] == 0 && large[kLarge - 1] == 0, "filled, the last is %u", large[kLarge - 1]);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  RUNTIME_OK(cudaMemcpyAsync(large, device, sizeof large, cudaMemcpyDefault, stream));
  scale<<<16, 128, 0, stream>>>(2);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  for (unsigned i = 0; i < kLarge; ++i)
    CHECK(large[i] == i * 6 + 1, "word %u of the large one is %u", i, large[i]);
  // In a graph, launched twice, with a change of the CPU's between.
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  scale<<<16, 128, 0, stream>>>(3);
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  RUNTIME_OK(cudaGraphLaunch(exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(large[5] == 31 * 3 + 1, "behind a graph: %u", large[5]);
  large[5] = 50;
  RUNTIME_OK(cudaGraphLaunch(exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(large[5] == 151, "behind a graph after a change: %u", large[5]);
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaStreamDestroy(stream));
  RUNTIME_OK(cudaFree(device));
}

const char kModule[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .b32 own[8] = {1, 2, 3};
.visible .global .align 4 .b32 plain = 9;
.visible .entry raise(.param .u32 by) {
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  mov.u32 %r1, %tid.x;
  ld.param.u32 %r2, [by];
  mov.u64 %rd1, own;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r3, [%rd3];
  add.u32 %r3, %r3, %r2;
  st.global.u32 [%rd3], %r3;
  ret;
}
)";

void raise(CUmodule module, unsigned by) {
  CUfunction function;
  DRIVER_OK(cuModuleGetFunction(&function, module, "raise"));
  void* parameters[] = {&by};
  DRIVER_OK(cuLaunchKernel(function, 1, 1, 1, 8, 1, 1, 0, nullptr, parameters, nullptr));
}

volatile uint32_t* ownOf(CUmodule module) {
  CUdeviceptr address = 0;
  size_t size = 0;
  DRIVER_OK(cuModuleGetGlobal(&address, &size, module, "own"));
  CHECK(size == 32, "a module's variable has %zu bytes", size);
  return reinterpret_cast<volatile uint32_t*>(address);
}

// Modules of the driver's: each has its variable, a kernel runs before the program asks where it
// is.
void tryModules() {
  CUmodule modules[2];
  for (CUmodule& module : modules) DRIVER_OK(cuModuleLoadData(&module, kModule));
  raise(modules[0], 10);
  DRIVER_OK(cuCtxSynchronize());
  volatile uint32_t* const first = ownOf(modules[0]);
  volatile uint32_t* const second = ownOf(modules[1]);
  CHECK(first != second, "two modules have one variable");
  CHECK(first[0] == 11 && first[2] == 13 && first[7] == 10 && second[0] == 1 && second[7] == 0,
        "modules' variables are %u, %u, %u; %u, %u", first[0], first[2], first[7], second[0],
        second[7]);
  CUdeviceptr plain = 0;
  DRIVER_OK(cuModuleGetGlobal(&plain, nullptr, modules[0], "plain"));
  uint32_t nine = 0;
  DRIVER_OK(cuMemcpyDtoH(&nine, plain, 4));
  CHECK(nine == 9, "the other variable is %u", nine);
  second[1] = 500;
  raise(modules[1], 1);
  DRIVER_OK(cuCtxSynchronize());
  CHECK(second[1] == 501 && second[0] == 2 && first[1] == 12, "after turns: %u, %u, %u", second[1],
        second[0], first[1]);
  DRIVER_OK(cuModuleUnload(modules[0]));
  raise(modules[1], 1);
  DRIVER_OK(cuCtxSynchronize());
  CHECK(second[1] == 502, "behind an unloaded module: %u", second[1]);
  CHECK(ownOf(modules[1]) == second, "a module's variable has moved");
  DRIVER_OK(cuModuleUnload(modules[1]));

  CUlibrary library;
  DRIVER_OK(cuLibraryLoadData(&library, kModule, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUdeviceptr address = 0;
  size_t size = 0;
  DRIVER_OK(cuLibraryGetManaged(&address, &size, library, "own"));
  auto* const own = reinterpret_cast<volatile uint32_t*>(address);
  CHECK(size == 32 && own[1] == 2, "a library's variable has %zu bytes and begins with %u, %u",
        size, own[0], own[1]);
  CUmodule module;
  DRIVER_OK(cuLibraryGetModule(&module, library));
  own[1] = 70;
  raise(module, 2);
  DRIVER_OK(cuCtxSynchronize());
  CHECK(own[1] == 72 && own[0] == 3, "a library's variable is %u, %u", own[0], own[1]);
  CHECK(ownOf(module) == own, "a library's module has the variable elsewhere");
  const CUresult missing = cuLibraryGetManaged(&address, &size, library, "plain");
  CHECK(missing == CUDA_ERROR_NOT_FOUND, "a variable that is not managed: %d", int(missing));
  DRIVER_OK(cuLibraryUnload(library));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Pressure pressure(options.bytes);  // device memory that pages meanwhile
  takeTurns(static_cast<uint32_t>(options.seed));
  pressure.apply();
  followPointers();
  copyAndFill();
  pressure.apply();
  tryModules();
  addToTable<<<1, 32>>>(1);
  done();
  pressure.check();
  return apps::ok("managed_variables: %u counted", counter);
}
