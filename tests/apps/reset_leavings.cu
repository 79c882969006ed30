// Leavings that a context takes away with it, since nobody has ended them by hand: memory of a
// graph, a capture, memory that is to stay where it is, arrays. A later object at the same address
// or handle is something else.
#include <algorithm>

#include "common.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPiece = 2 * kMiB;

__global__ void set(uint32_t* to, uint32_t value) { *to = value; }

cudaMemoryType typeOf(const void* address) {
  cudaPointerAttributes attributes{};
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, address));
  return attributes.type;
}

/// Memory of a graph that is launched and never destroyed.
void* ownedByGraph() {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  uint32_t* inside = nullptr;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  RUNTIME_OK(cudaMallocAsync(reinterpret_cast<void**>(&inside), kPiece, stream));
  set<<<1, 1, 0, stream>>>(inside, 1);
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&executable, graph, 0));
  RUNTIME_OK(cudaGraphLaunch(executable, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  return inside;
}

/// A capture that nothing ends.
void beginsCapture() {
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
}

void keepInPlace(void* address) {
  int on = 1;
  DRIVER_OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                  reinterpret_cast<CUdeviceptr>(address)));
}

std::vector<void*> allocate(size_t count) {
  std::vector<void*> pieces(count);
  for (void*& piece : pieces) {
    RUNTIME_OK(cudaMalloc(&piece, kPiece));
    apps::fill(piece, kPiece, 1);
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  return pieces;
}

/// In the current context: 4 MiB each.
void makeArrays(int count) {
  CUDA_ARRAY_DESCRIPTOR flat{};
  flat.Width = flat.Height = 1024;
  flat.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  flat.NumChannels = 1;
  for (int i = 0; i < count; ++i) {
    CUarray array = nullptr;
    DRIVER_OK(cuArrayCreate(&array, &flat));
  }
}

size_t freeBytes() {
  size_t free_bytes = 0, total = 0;
  RUNTIME_OK(cudaMemGetInfo(&free_bytes, &total));
  return free_bytes;
}

}  // namespace

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  // Memory of a graph.
  for (int life = 0; life < 3; ++life) {
    void* const inside = ownedByGraph();
    beginsCapture();
    RUNTIME_OK(cudaDeviceReset());
    CHECK(typeOf(inside) == cudaMemoryTypeUnregistered,
          "life %d: memory of a graph outlived the reset", life);
    const std::vector<void*> pieces = allocate(4);
    for (void* piece : pieces) {
      RUNTIME_OK(cudaFree(piece));
      CHECK(typeOf(piece) == cudaMemoryTypeUnregistered, "life %d: what was freed is still there%s",
            life, piece == inside ? ", where a graph had memory" : "");
    }
    RUNTIME_OK(cudaDeviceReset());
  }
  // The run's --expect says that as much is pinned at the end as was asked for.
  keepInPlace(allocate(1)[0]);
  RUNTIME_OK(cudaDeviceReset());
  for (void* piece : allocate(3)) keepInPlace(piece);
  RUNTIME_OK(cudaDeviceReset());
  // Arrays of a second context, which there is room for when buffers leave: that they are gone with
  // it, --expect says as well.
  (void)allocate(std::min(freeBytes(), 96 * kMiB) * 3 / 4 / kPiece);
  CUcontext first = nullptr, second = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&first));
  DRIVER_OK(cuCtxCreate(&second, nullptr, 0, 0));
  makeArrays(4);
  DRIVER_OK(cuCtxDestroy(second));
  DRIVER_OK(cuCtxSetCurrent(first));
  (void)allocate(1);
  return apps::ok("resets");
}
