// Managed memory where the driver's interface takes memory of the host: sides of copies to and from
// arrays, of nodes of graphs, answers of calls; memory that is attached to the host and used by a
// graph; what is registered already. As on a device without concurrent managed access.
#include "common.h"

static void fillHost(uint32_t* to, size_t words, uint32_t seed) {
  for (size_t i = 0; i < words; ++i) to[i] = apps::word(uint32_t(i), seed);
}
static void check(const uint32_t* at, size_t words, uint32_t seed, const char* what) {
  for (size_t i = 0; i < words; ++i)
    CHECK(at[i] == apps::word(uint32_t(i), seed), "%s: word %zu is %#x, not %#x", what, i, at[i],
          apps::word(uint32_t(i), seed));
}

// Few bytes, which travel in the call, and many.
static void arrays(uint32_t* managed, uint32_t seed) {
  for (const size_t words : {size_t{1000}, size_t{100000}}) {
    CUDA_ARRAY_DESCRIPTOR descriptor{};
    descriptor.Width = words;
    descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
    descriptor.NumChannels = 1;
    CUarray array;
    DRIVER_OK(cuArrayCreate(&array, &descriptor));
    fillHost(managed, words, seed);
    DRIVER_OK(cuMemcpyHtoA(array, 0, managed, words * 4));
    RUNTIME_OK(cudaMemset(managed, 0, words * 4));
    CHECK(managed[words / 2] == 0, "a memset before a copy from an array");
    DRIVER_OK(cuMemcpyAtoH(managed, array, 0, words * 4));
    check(managed, words, seed, "through an array");
    DRIVER_OK(cuArrayDestroy(array));
  }
}

static void graphs(uint32_t* managed, uint32_t* device, size_t words, uint32_t seed) {
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  // Nodes that call it memory of the host.
  cudaGraph_t graph;
  cudaGraphNode_t in, out;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, device, managed, words * 4,
                                      cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&out, graph, &in, 1, managed + words, device, words * 4,
                                      cudaMemcpyDeviceToHost));
  cudaGraphExec_t made;
  RUNTIME_OK(cudaGraphInstantiate(&made, graph, nullptr, nullptr, 0));
  for (uint32_t round = 0; round < 3; ++round) {
    fillHost(managed, words, seed + round);
    RUNTIME_OK(cudaGraphLaunch(made, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    check(managed + words, words, seed + round, "through nodes of a graph");
  }
  RUNTIME_OK(cudaGraphExecDestroy(made));
  RUNTIME_OK(cudaGraphDestroy(graph));
  // A capture of what is attached to the host between launches.
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  RUNTIME_OK(cudaMemcpyAsync(device, managed, words * 4, cudaMemcpyDefault, stream));
  apps::add(device, words * 4, 1, stream);
  RUNTIME_OK(cudaMemcpyAsync(managed + words, device, words * 4, cudaMemcpyDefault, stream));
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&made, graph, nullptr, nullptr, 0));
  RUNTIME_OK(cudaStreamAttachMemAsync(stream, managed, 0, cudaMemAttachHost));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  for (uint32_t round = 0; round < 3; ++round) {
    fillHost(managed, words, seed + 10 + round);
    RUNTIME_OK(cudaGraphLaunch(made, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < words; i += 61)
      CHECK(managed[words + i] == apps::word(uint32_t(i), seed + 10 + round) + 1,
            "captured, attached to the host: word %zu", i);
  }
  RUNTIME_OK(cudaStreamAttachMemAsync(stream, managed, 0, cudaMemAttachGlobal));
  RUNTIME_OK(cudaGraphExecDestroy(made));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaStreamDestroy(stream));
}

// A copy that is not asynchronous has ended when it returns, whatever it calls the memory.
static void copies(uint32_t* device, size_t words, uint32_t seed) {
  uint32_t* attached;
  RUNTIME_OK(cudaMallocManaged(&attached, words * 4, cudaMemAttachHost));
  for (uint32_t round = 0; round < 20; ++round) {
    apps::fill(device, words * 4, seed + round);
    const size_t row = 4096, rows = words * 4 / row;
    switch (round % 3) {
      case 0:
        RUNTIME_OK(cudaMemcpy(attached, device, words * 4, cudaMemcpyDeviceToHost));
        break;
      case 1:
        RUNTIME_OK(cudaMemcpy(attached, device, words * 4, cudaMemcpyDefault));
        break;
      default:
        RUNTIME_OK(cudaMemcpy2D(attached, row, device, row, row, rows, cudaMemcpyDeviceToHost));
    }
    apps::verifyHost(attached, words * 4 / row * row, seed + round, 0, "a copy that has returned");
  }
  RUNTIME_OK(cudaFree(attached));
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t words = options.bytes / 16 & ~size_t{1023};
  uint32_t *managed, *device;
  RUNTIME_OK(cudaMallocManaged(&managed, words * 8));
  RUNTIME_OK(cudaMalloc(&device, words * 4));
  graphs(managed, device, words, seed);
  copies(device, words, seed);
  // Answers of calls, into memory that the GPU has.
  struct Answers {
    CUdevice device;
    void* there;
    size_t free_bytes, total_bytes;
  };
  auto* const answers = reinterpret_cast<Answers*>(managed);
  std::vector<char> own(1 << 16);
  RUNTIME_OK(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault));
  const auto toGpu = [&] {
    RUNTIME_OK(cudaMemset(managed, 0x5a, words * 4));
    RUNTIME_OK(cudaDeviceSynchronize());
  };
  toGpu();
  DRIVER_OK(cuCtxGetDevice(&answers->device));
  CHECK(answers->device == 0, "the device of the context is %d", answers->device);
  toGpu();
  RUNTIME_OK(cudaHostGetDevicePointer(&answers->there, own.data(), 0));
  CHECK(answers->there != nullptr, "no device pointer of registered memory");
  toGpu();
  RUNTIME_OK(cudaMemGetInfo(&answers->free_bytes, &answers->total_bytes));
  CHECK(answers->free_bytes <= answers->total_bytes, "%zu bytes free of %zu", answers->free_bytes,
        answers->total_bytes);
  RUNTIME_OK(cudaHostUnregister(own.data()));
  CHECK(cudaHostRegister(managed, words * 4, cudaHostRegisterDefault) != cudaSuccess,
        "managed memory is registered");
  (void)cudaGetLastError();
  arrays(managed, seed);
  RUNTIME_OK(cudaFree(managed));
  RUNTIME_OK(cudaFree(device));
  return apps::ok("managed memory as memory of the host, %zu KiB", words * 8 >> 10);
}
