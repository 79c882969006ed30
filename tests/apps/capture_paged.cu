// Copies between buffers that have no room in VRAM together are captured, one after the other, on a
// stream that the legacy stream waits for. All that used the buffers before is over: each copy's
// can be brought for the moment that the driver looks at them, in little time. Then each copy is a
// graph of its own, captured behind kernels that nobody has waited for and which use more than
// there is room for.
#include <chrono>

#include "common.h"

namespace {

constexpr size_t kPiece = size_t{2} << 20;

void behindKernels(cudaStream_t stream, const std::vector<void*>& buffers, uint32_t seed) {
  for (size_t i = 0; i < buffers.size(); ++i) apps::fill(buffers[i], kPiece, seed + uint32_t(i));
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t i = 0; i + 1 < buffers.size(); i += 2) {
    for (void* buffer : buffers) apps::add(buffer, kPiece, 1, stream);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    RUNTIME_OK(cudaStreamBeginCapture(
        stream, i % 4 == 0 ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal));
    RUNTIME_OK(
        cudaMemcpyAsync(buffers[i], buffers[i + 1], kPiece, cudaMemcpyDeviceToDevice, stream));
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
    for (void* buffer : buffers) apps::add(buffer, kPiece, 1, stream);
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
  }
  RUNTIME_OK(cudaStreamSynchronize(stream));
  const uint32_t added = uint32_t(buffers.size() / 2) * 2;
  for (size_t i = 0; i + 1 < buffers.size(); i += 2) {
    apps::verify(buffers[i], kPiece, seed + uint32_t(i + 1), added, "a graph's copy");
    apps::verify(buffers[i + 1], kPiece, seed + uint32_t(i + 1), added, "a graph's source");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t n = options.bytes / kPiece > 4 ? options.bytes / kPiece / 2 * 2 : 4;
  std::vector<void*> buffers(n);
  for (size_t i = 0; i < n; ++i) {
    RUNTIME_OK(cudaMalloc(&buffers[i], kPiece));
    apps::fill(buffers[i], kPiece, seed + uint32_t(i));
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeGlobal}) {
    // On the legacy stream: beside the capture nobody may ask it anything.
    for (size_t i = 0; i < n; i += 2) RUNTIME_OK(cudaMemsetAsync(buffers[i], 0, kPiece));
    RUNTIME_OK(cudaDeviceSynchronize());
    RUNTIME_OK(cudaStreamBeginCapture(stream, mode));
    const auto from = std::chrono::steady_clock::now();
    for (size_t i = 0; i + 1 < n; i += 2)
      RUNTIME_OK(
          cudaMemcpyAsync(buffers[i], buffers[i + 1], kPiece, cudaMemcpyDeviceToDevice, stream));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
    cudaGraph_t graph = nullptr;
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
    CHECK(took.count() < 20, "%zu copies were captured in %.1f s", n / 2, took.count());
    cudaGraphExec_t exec;
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
    for (size_t i = 0; i + 1 < n; i += 2) {
      RUNTIME_OK(
          cudaMemcpyAsync(buffers[i], buffers[i + 1], kPiece, cudaMemcpyDeviceToDevice, stream));
      apps::add(buffers[i], kPiece, 2, stream);
    }
    RUNTIME_OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i + 1 < n; i += 2) {
      apps::verify(buffers[i], kPiece, seed + uint32_t(i + 1), 2, "a copy");
      apps::verify(buffers[i + 1], kPiece, seed + uint32_t(i + 1), 0, "a source");
    }
  }
  behindKernels(stream, buffers, seed + 100);
  return apps::ok("capture_paged over %zu buffers", n);
}
