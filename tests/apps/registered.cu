// Memory that the program has registered: kernels reach it by the device pointer that they are told
// to use, launched and in graphs; both sides see what the other changed; what is told of its
// addresses; registered again in another shape, and by many threads at once.
#include <thread>

#include "common.h"

__global__ void addTo(uint32_t* at, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) at[i] += value;
}

__global__ void countOthers(const uint32_t* at, uint32_t apart, uint32_t value, uint32_t* others) {
  if (at[(blockIdx.x * blockDim.x + threadIdx.x) * apart] != value) atomicAdd(others, 1);
}

namespace {

constexpr uint32_t kWords = 40'000;
constexpr uint32_t kMany = 8 << 20, kApart = 1024;

void add(uint32_t* there, uint32_t value, cudaStream_t stream) {
  addTo<<<apps::blocks(kWords), 256, 0, stream>>>(there, kWords, value);
  RUNTIME_OK(cudaGetLastError());
}

void check(const uint32_t* here, uint32_t value, const char* what) {
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(here[i] == i + value, "%s: word %u is %u, not %u", what, i, here[i], i + value);
}

/// Registered memory and its device pointer.
struct Registered {
  explicit Registered(size_t skip = 0) : memory(kWords + skip), here(memory.data() + skip) {
    for (uint32_t i = 0; i < kWords; ++i) here[i] = i;
    RUNTIME_OK(cudaHostRegister(here, kWords * 4, cudaHostRegisterMapped));
  }
  ~Registered() { RUNTIME_OK(cudaHostUnregister(here)); }
  uint32_t* there() const {
    uint32_t* pointer = nullptr;
    RUNTIME_OK(cudaHostGetDevicePointer(&pointer, here, 0));
    return pointer;
  }
  std::vector<uint32_t> memory;
  uint32_t* const here;
};

void checkTold(const Registered& block) {
  cudaPointerAttributes told{};
  RUNTIME_OK(cudaPointerGetAttributes(&told, block.here + 3));
  CHECK(told.type == cudaMemoryTypeHost && told.hostPointer == block.here + 3,
        "type %d at %p, not %p", int(told.type), told.hostPointer,
        static_cast<void*>(block.here + 3));
  uint32_t* const there = block.there();
  uint32_t* inside = nullptr;
  RUNTIME_OK(cudaHostGetDevicePointer(&inside, block.here + 100, 0));
  CHECK(inside == there + 100, "inside is %p, not %p", static_cast<void*>(inside),
        static_cast<void*>(there + 100));
  RUNTIME_OK(cudaPointerGetAttributes(&told, block.here + 3));
  CHECK(told.type == cudaMemoryTypeHost && told.hostPointer == block.here + 3 &&
            told.devicePointer == there + 3,
        "then type %d at %p and %p", int(told.type), told.hostPointer, told.devicePointer);
  RUNTIME_OK(cudaPointerGetAttributes(&told, there + 3));
  CHECK(told.type == cudaMemoryTypeHost && told.hostPointer == block.here + 3,
        "by its device pointer: type %d at %p", int(told.type), told.hostPointer);
  CHECK(cudaHostRegister(block.here + 10, 16, 0) != cudaSuccess, "memory was registered twice");
  (void)cudaGetLastError();
}

void inGraph(cudaStream_t stream) {
  Registered block;
  uint32_t* const there = block.there();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  add(there, 3, stream);
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (uint32_t round = 1; round <= 3; ++round) {
    RUNTIME_OK(cudaGraphLaunch(executable, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    check(block.here, 4 * round - 1, "a graph's kernel");
    for (uint32_t i = 0; i < kWords; ++i) ++block.here[i];
  }
  RUNTIME_OK(cudaGraphExecDestroy(executable));
  RUNTIME_OK(cudaGraphDestroy(graph));
}

/// All that a host function changed, however much it is, is there before what is behind it in the
/// stream.
void muchByFunction(cudaStream_t stream) {
  std::vector<uint32_t> many(kMany);
  RUNTIME_OK(cudaHostRegister(many.data(), kMany * 4, cudaHostRegisterMapped));
  uint32_t *there = nullptr, *wrong;
  RUNTIME_OK(cudaHostGetDevicePointer(&there, many.data(), 0));
  RUNTIME_OK(cudaMalloc(&wrong, 4));
  RUNTIME_OK(cudaMemset(wrong, 0, 4));
  for (uint32_t round = 1; round <= 3; ++round) {
    RUNTIME_OK(cudaLaunchHostFunc(
        stream,
        [](void* p) {
          for (uint32_t& word : *static_cast<std::vector<uint32_t>*>(p)) ++word;
        },
        &many));
    countOthers<<<kMany / kApart / 256, 256, 0, stream>>>(there, kApart, round, wrong);
    RUNTIME_OK(cudaGetLastError());
    uint32_t found = 0;
    RUNTIME_OK(cudaMemcpyAsync(&found, wrong, 4, cudaMemcpyDefault, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    CHECK(found == 0,
          "round %u: a kernel behind a host function found %u words as they were before it", round,
          found);
  }
  RUNTIME_OK(cudaFree(wrong));
  RUNTIME_OK(cudaHostUnregister(many.data()));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Pressure pressure(options.bytes);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const size_t skip : {0, 1, 777}) {
    Registered block(skip);
    checkTold(block);
    uint32_t* const there = block.there();
    add(there, 5, stream);
    pressure.apply(stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    check(block.here, 5, "a kernel");
    for (uint32_t i = 0; i < kWords; ++i) block.here[i] += 2;
    add(there, 10, stream);
    RUNTIME_OK(cudaLaunchHostFunc(
        stream,
        [](void* p) {
          for (uint32_t i = 0; i < kWords; ++i) static_cast<uint32_t*>(p)[i] += 100;
        },
        block.here));
    add(there, 1, stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    check(block.here, 118, "kernels around a host function");
    uint32_t* device;
    RUNTIME_OK(cudaMalloc(&device, kWords * 4));
    RUNTIME_OK(cudaMemcpyAsync(device, there, kWords * 4, cudaMemcpyDefault, stream));
    RUNTIME_OK(cudaMemsetAsync(there, 0, kWords * 4, stream));
    add(device, 2, stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    for (uint32_t i = 0; i < kWords; ++i)
      CHECK(block.here[i] == 0, "set: word %u is %u", i, block.here[i]);
    RUNTIME_OK(cudaMemcpyAsync(block.here, device, kWords * 4, cudaMemcpyDefault, stream));
    add(there, 1, stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    check(block.here, 121, "copied back, then a kernel");
    RUNTIME_OK(cudaFree(device));
  }
  inGraph(stream);
  muchByFunction(stream);
  // Each thread with memory of its own.
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      cudaStream_t own;
      RUNTIME_OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
      for (int round = 0; round < 3; ++round) {
        Registered block(t);
        add(block.there(), 7 + t, own);
        RUNTIME_OK(cudaStreamSynchronize(own));
        check(block.here, 7 + t, "a thread's kernel");
      }
      RUNTIME_OK(cudaStreamDestroy(own));
    });
  }
  for (std::thread& thread : threads) thread.join();
  pressure.check();
  return apps::ok("registered memory of %u KiB", kWords * 4 >> 10);
}
