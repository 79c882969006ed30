// A graph that reaches all of the program's memory, of which one buffer is freed after it was made
// executable: a copy in the midst of it finds nothing there. The launch, or the next wait, fails,
// and so does everything after that: no program comes to think that nothing of the graph has run.
#include <vector>

#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t count = std::max<size_t>(options.bytes / kPiece, 8);
  std::vector<void*> buffers(count);
  for (void*& buffer : buffers) {
    RUNTIME_OK(cudaMalloc(&buffer, kPiece));
    apps::fill(buffer, kPiece, uint32_t(options.seed));
  }
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaDeviceSynchronize());
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (size_t b = 0; b < count; ++b) {
    apps::add(buffers[b], 4096, 1, stream);
    if (b == count / 2)
      RUNTIME_OK(cudaMemcpyAsync(buffers[0], buffers[count - 1], kPiece, cudaMemcpyDeviceToDevice,
                                 stream));
  }
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  RUNTIME_OK(cudaGraphLaunch(exec, stream));
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaFree(buffers[count - 1]));
  const cudaError_t launched = cudaGraphLaunch(exec, stream);
  const cudaError_t waited = cudaStreamSynchronize(stream);
  if (launched == cudaSuccess && waited == cudaSuccess)
    apps::skip("memory that is freed is there all the same");
  CHECK(waited != cudaSuccess, "the launch failed with %d, and the wait behind it did not",
        int(launched));
  apps::addKernel<<<1, 1, 0, stream>>>(static_cast<uint4*>(buffers[0]), 1, 1);
  const cudaError_t next = cudaGetLastError();
  CHECK(next != cudaSuccess || cudaStreamSynchronize(stream) != cudaSuccess,
        "a launch after the failure succeeded");
  CHECK(cudaDeviceSynchronize() != cudaSuccess, "the context is as if nothing had failed");
  void* more = nullptr;
  CHECK(cudaMalloc(&more, kPiece) != cudaSuccess, "an allocation after the failure succeeded");
  return apps::ok("launch %d, wait %d", int(launched), int(waited));
}
