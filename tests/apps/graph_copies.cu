// Captured copies of rectangles and boxes between the device and host memory, pinned and
// registered, and between pinned memory; memory that nodes of a graph allocate and free. The
// program's writes to the host memory between two launches are what the next one copies; bytes
// beside the rectangles stay as they are.
#include "common.h"

namespace {

constexpr size_t kWidth = 240, kPitch = 320, kRows = 24,
                 kLayers = 3;  // bytes, rows, layers of a box
constexpr size_t kBox = kPitch * kRows * kLayers;
constexpr uint8_t kBeside = 0xa5;

// Byte `x` of row `y` of layer `z`.
uint8_t byteOf(size_t x, size_t y, size_t z, uint32_t seed) {
  return uint8_t(apps::word(uint32_t((z * kRows + y) * kWidth + x), seed));
}

void write(uint8_t* box, uint32_t seed, size_t layers) {
  std::memset(box, kBeside, kPitch * kRows * layers);
  for (size_t z = 0; z < layers; ++z) {
    for (size_t y = 0; y < kRows; ++y) {
      for (size_t x = 0; x < kWidth; ++x) box[(z * kRows + y) * kPitch + x] = byteOf(x, y, z, seed);
    }
  }
}

void check(const uint8_t* box, uint32_t seed, uint8_t added, size_t layers, const char* what) {
  for (size_t z = 0; z < layers; ++z) {
    for (size_t y = 0; y < kRows; ++y) {
      for (size_t x = 0; x < kPitch; ++x) {
        const uint8_t got = box[(z * kRows + y) * kPitch + x];
        const uint8_t expected = x < kWidth ? uint8_t(byteOf(x, y, z, seed) + added) : kBeside;
        CHECK(got == expected, "%s: byte %zu of row %zu of layer %zu is %u, expected %u", what, x,
              y, z, got, expected);
      }
    }
  }
}

__global__ void addBytes(uint8_t* at, uint32_t count, uint8_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) at[i] = uint8_t(at[i] + value);
}

void add(uint8_t* at, size_t count, uint8_t value, cudaStream_t stream) {
  addBytes<<<apps::blocks(count), 256, 0, stream>>>(at, uint32_t(count), value);
  RUNTIME_OK(cudaGetLastError());
}

cudaGraphExec_t captured(cudaStream_t stream, cudaGraph_t* graph) {
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaStreamEndCapture(stream, graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, *graph, 0));
  return exec;
}

cudaMemcpy3DParms box3d(void* to, const void* from, cudaMemcpyKind kind, size_t device_pitch) {
  cudaMemcpy3DParms box{};
  const bool up = kind == cudaMemcpyHostToDevice;
  box.srcPtr =
      make_cudaPitchedPtr(const_cast<void*>(from), up ? kPitch : device_pitch, kWidth, kRows);
  box.dstPtr = make_cudaPitchedPtr(to, up ? device_pitch : kPitch, kWidth, kRows);
  box.extent = make_cudaExtent(kWidth, kRows, kLayers);
  box.kind = kind;
  return box;
}

/// Host memory of one kind: `up` is copied to the device, `down` from it.
void throughHost(cudaStream_t stream, uint8_t* up, uint8_t* down, uint32_t seed,
                 apps::Pressure& pressure, const char* what) {
  uint8_t *flat, *deep;
  constexpr size_t kDevicePitch = 256;
  RUNTIME_OK(cudaMalloc(&flat, kDevicePitch * kRows));
  RUNTIME_OK(cudaMalloc(&deep, kDevicePitch * kRows * kLayers));
  for (const bool box : {false, true}) {
    const size_t layers = box ? kLayers : 1;
    uint8_t* const there = box ? deep : flat;
    cudaGraph_t graph;
    RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    if (box) {
      const auto parameters = box3d(there, up, cudaMemcpyHostToDevice, kDevicePitch);
      RUNTIME_OK(cudaMemcpy3DAsync(&parameters, stream));
    } else {
      RUNTIME_OK(cudaMemcpy2DAsync(there, kDevicePitch, up, kPitch, kWidth, kRows,
                                   cudaMemcpyHostToDevice, stream));
    }
    add(there, kDevicePitch * kRows * layers, 3, stream);
    if (box) {
      const auto parameters = box3d(down, there, cudaMemcpyDeviceToHost, kDevicePitch);
      RUNTIME_OK(cudaMemcpy3DAsync(&parameters, stream));
    } else {
      RUNTIME_OK(cudaMemcpy2DAsync(down, kPitch, there, kDevicePitch, kWidth, kRows,
                                   cudaMemcpyDeviceToHost, stream));
    }
    const cudaGraphExec_t exec = captured(stream, &graph);
    for (uint32_t round = 0; round < 3; ++round) {
      write(up, seed + round, layers);
      std::memset(down, kBeside, kBox);
      pressure.apply(stream);
      RUNTIME_OK(cudaGraphLaunch(exec, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
      check(down, seed + round, 3, layers, what);
      check(up, seed + round, 0, layers, what);
    }
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
  }
  // In one dimension.
  cudaGraph_t graph;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  RUNTIME_OK(cudaMemcpyAsync(flat, up, 4096, cudaMemcpyHostToDevice, stream));
  add(flat, 4096, 9, stream);
  RUNTIME_OK(cudaMemcpyAsync(down, flat, 4096, cudaMemcpyDeviceToHost, stream));
  const cudaGraphExec_t exec = captured(stream, &graph);
  for (uint32_t round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 4096; ++i) up[i] = uint8_t(apps::word(uint32_t(i), seed + round));
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < 4096; ++i)
      CHECK(down[i] == uint8_t(apps::word(uint32_t(i), seed + round) + 9), "%s: byte %zu is %u",
            what, i, down[i]);
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaFree(flat));
  RUNTIME_OK(cudaFree(deep));
}

// Launches a graph of captured copies twice, with other bytes at its beginning, and looks at what
// came to its end.
void runTwice(cudaStream_t stream, cudaGraph_t graph, cudaGraphExec_t exec, uint8_t* from,
              uint8_t* to, uint32_t seed, const char* what) {
  for (uint32_t round = 0; round < 2; ++round) {
    write(from, seed + round, 1);
    std::memset(to, kBeside, kBox);
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    check(to, seed + round, 0, 1, what);
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
}

void betweenHost(cudaStream_t stream, uint8_t* from, uint8_t* to, uint32_t seed) {
  cudaGraph_t graph;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  RUNTIME_OK(
      cudaMemcpy2DAsync(to, kPitch, from, kPitch, kWidth, kRows, cudaMemcpyHostToHost, stream));
  const cudaGraphExec_t exec = captured(stream, &graph);
  runTwice(stream, graph, exec, from, to, seed, "between pinned memory");
}

void throughArray(cudaStream_t stream, uint8_t* up, uint8_t* down, uint32_t seed) {
  const cudaChannelFormatDesc bytes = cudaCreateChannelDesc<unsigned char>();
  cudaArray_t array;
  RUNTIME_OK(cudaMallocArray(&array, &bytes, kWidth, kRows));
  cudaGraph_t graph;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  RUNTIME_OK(cudaMemcpy2DToArrayAsync(array, 0, 0, up, kPitch, kWidth, kRows,
                                      cudaMemcpyHostToDevice, stream));
  RUNTIME_OK(cudaMemcpy2DFromArrayAsync(down, kPitch, array, 0, 0, kWidth, kRows,
                                        cudaMemcpyDeviceToHost, stream));
  const cudaGraphExec_t exec = captured(stream, &graph);
  runTwice(stream, graph, exec, up, down, seed, "through an array");
  RUNTIME_OK(cudaFreeArray(array));
}

// A copy from memory that is not pinned is made at each launch, or is refused and leaves the
// capture as it was.
void fromPageable(cudaStream_t stream, uint8_t* pinned, uint32_t seed) {
  std::vector<uint8_t> pageable(kBox);
  uint8_t* there;
  RUNTIME_OK(cudaMalloc(&there, kBox));
  cudaGraph_t graph;
  write(pageable.data(), seed, 1);
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  RUNTIME_OK(cudaMemsetAsync(there, 0, kBox, stream));
  const cudaError_t result = cudaMemcpy2DAsync(there, kPitch, pageable.data(), kPitch, kWidth,
                                               kRows, cudaMemcpyHostToDevice, stream);
  if (result != cudaSuccess) (void)cudaGetLastError();
  RUNTIME_OK(cudaMemcpyAsync(pinned, there, kBox, cudaMemcpyDeviceToHost, stream));
  const cudaGraphExec_t exec = captured(stream, &graph);
  std::memset(pinned, kBeside, kBox);
  RUNTIME_OK(cudaGraphLaunch(exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(result == cudaSuccess || result == cudaErrorNotSupported,
        "a captured copy from pageable memory: %d", int(result));
  for (size_t y = 0; y < kRows; ++y) {
    for (size_t x = 0; x < kWidth; ++x) {
      const uint8_t expected = result == cudaSuccess ? byteOf(x, y, 0, seed) : 0;
      CHECK(pinned[y * kPitch + x] == expected,
            "from pageable memory: byte %zu of row %zu is %u, expected %u", x, y,
            pinned[y * kPitch + x], expected);
    }
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaFree(there));
}

// Memory of a graph's own: allocated, written and freed by its nodes, added one by one or as nodes
// of any kind.
void ownMemory(cudaStream_t stream, uint8_t* down, bool any) {
  constexpr size_t kBytes = size_t{1} << 20;
  CUgraph graph;
  CUgraphNode alloc, set, copy, release;
  CUcontext context;
  CUdevice device;
  DRIVER_OK(cuCtxGetCurrent(&context));
  DRIVER_OK(cuCtxGetDevice(&device));
  DRIVER_OK(cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
  wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.bytesize = kBytes;
  CUdeviceptr memory = 0;
  if (any) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    params.alloc.poolProps = wanted.poolProps;
    params.alloc.bytesize = kBytes;
    DRIVER_OK(cuGraphAddNode(&alloc, graph, nullptr, nullptr, 0, &params));
    memory = params.alloc.dptr;
  } else {
    DRIVER_OK(cuGraphAddMemAllocNode(&alloc, graph, nullptr, 0, &wanted));
    memory = wanted.dptr;
  }
  CHECK(memory != 0, "an allocation node without an address");
  CUDA_MEM_ALLOC_NODE_PARAMS told{};
  DRIVER_OK(cuGraphMemAllocNodeGetParams(alloc, &told));
  CHECK(told.dptr == memory && told.bytesize == kBytes && told.poolProps.location.id == device,
        "told %#llx of %zu bytes on %d", static_cast<unsigned long long>(told.dptr), told.bytesize,
        told.poolProps.location.id);
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = memory, fill.elementSize = 4, fill.width = kBytes / 4, fill.height = 1,
  fill.value = 0x5eed1234;
  DRIVER_OK(cuGraphAddMemsetNode(&set, graph, &alloc, 1, &fill, context));
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE, box.srcDevice = memory + kBytes - kBox;
  box.dstMemoryType = CU_MEMORYTYPE_HOST, box.dstHost = down;
  box.WidthInBytes = kBox, box.Height = 1, box.Depth = 1;
  DRIVER_OK(cuGraphAddMemcpyNode(&copy, graph, &set, 1, &box, context));
  if (any) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
    params.free.dptr = memory;
    DRIVER_OK(cuGraphAddNode(&release, graph, &copy, nullptr, 1, &params));
  } else {
    DRIVER_OK(cuGraphAddMemFreeNode(&release, graph, &copy, 1, memory));
  }
  CUdeviceptr freed = 0;
  DRIVER_OK(cuGraphMemFreeNodeGetParams(release, &freed));
  CHECK(freed == memory, "it frees %#llx", static_cast<unsigned long long>(freed));
  CUgraphExec exec;
  DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 3; ++round) {
    std::memset(down, 0, kBox);
    DRIVER_OK(cuGraphLaunch(exec, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    for (size_t i = 0; i < kBox / 4; ++i) {
      uint32_t word;
      std::memcpy(&word, down + i * 4, 4);
      CHECK(word == 0x5eed1234, "memory of a graph: word %zu is %#x", i, word);
    }
  }
  DRIVER_OK(cuGraphExecDestroy(exec));
  DRIVER_OK(cuGraphDestroy(graph));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  apps::Pressure pressure(options.bytes);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint8_t *up, *down;
  RUNTIME_OK(cudaMallocHost(&up, kBox));
  RUNTIME_OK(cudaMallocHost(&down, kBox));
  throughHost(stream, up, down, seed, pressure, "pinned memory");
  betweenHost(stream, up, down, seed + 10);
  throughArray(stream, up, down, seed + 20);
  fromPageable(stream, down, seed + 30);
  ownMemory(stream, down, false);
  ownMemory(stream, down, true);
  std::vector<uint8_t> own(2 * kBox + 3);
  uint8_t* const mine = own.data() + 3;  // where a program's memory happens to be
  RUNTIME_OK(cudaHostRegister(mine, 2 * kBox, cudaHostRegisterDefault));
  throughHost(stream, mine, mine + kBox, seed + 40, pressure, "registered memory");
  betweenHost(stream, mine, down, seed + 50);
  RUNTIME_OK(cudaHostUnregister(mine));
  pressure.check();
  RUNTIME_OK(cudaFreeHost(up));
  RUNTIME_OK(cudaFreeHost(down));
  RUNTIME_OK(cudaStreamDestroy(stream));
  return apps::ok("graph_copies");
}
