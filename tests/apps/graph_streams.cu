// A capture that forks to a second stream and joins again; one whose other streams are destroyed
// before it ends; and memory allocated inside a capture: it lives as long as the graph. Skipped
// where the driver has no memory nodes.
#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t n = options.bytes / kPiece > 4 ? options.bytes / kPiece : 4;
  std::vector<char*> buffers(n);
  for (char*& p : buffers) RUNTIME_OK(cudaMalloc(&p, kPiece));
  cudaStream_t a, b;
  RUNTIME_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  cudaEvent_t fork, join;
  RUNTIME_OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  RUNTIME_OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  for (size_t i = 0; i + 1 < n; i += 2) {
    apps::fill(buffers[i], kPiece, seed + uint32_t(i), a);
    RUNTIME_OK(cudaEventRecord(fork, a));
    RUNTIME_OK(cudaStreamWaitEvent(b, fork, 0));
    apps::add(buffers[i], kPiece, 3, b);
    RUNTIME_OK(cudaMemcpyAsync(buffers[i + 1], buffers[i], kPiece, cudaMemcpyDeviceToDevice, b));
    RUNTIME_OK(cudaEventRecord(join, b));
    RUNTIME_OK(cudaStreamWaitEvent(a, join, 0));
    apps::add(buffers[i + 1], kPiece, 1, a);
  }
  RUNTIME_OK(cudaStreamEndCapture(a, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 2; ++launch) {
    for (char* p : buffers) RUNTIME_OK(cudaMemsetAsync(p, 0, kPiece, a));
    RUNTIME_OK(cudaGraphLaunch(exec, a));
    RUNTIME_OK(cudaStreamSynchronize(a));
    for (size_t i = 0; i + 1 < n; i += 2) {
      apps::verify(buffers[i], kPiece, seed + uint32_t(i), 3, "forked buffer");
      apps::verify(buffers[i + 1], kPiece, seed + uint32_t(i), 4, "joined buffer");
    }
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  // Nodes captured by streams that are destroyed before the capture ends stay in the graph.
  constexpr int kStreams = 3;
  RUNTIME_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  apps::fill(buffers[0], kPiece, seed + 9, a);
  for (int i = 0; i < kStreams; ++i) {
    cudaStream_t passing;
    RUNTIME_OK(cudaStreamCreateWithFlags(&passing, cudaStreamNonBlocking));
    RUNTIME_OK(cudaEventRecord(fork, a));
    RUNTIME_OK(cudaStreamWaitEvent(passing, fork, 0));
    apps::add(buffers[0], kPiece, 1, passing);
    RUNTIME_OK(cudaEventRecord(join, passing));
    RUNTIME_OK(cudaStreamWaitEvent(a, join, 0));
    RUNTIME_OK(cudaStreamDestroy(passing));
  }
  apps::add(buffers[0], kPiece, 1, a);
  RUNTIME_OK(cudaStreamEndCapture(a, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 2; ++launch) {
    RUNTIME_OK(cudaMemsetAsync(buffers[0], 0, kPiece, a));
    RUNTIME_OK(cudaGraphLaunch(exec, a));
    RUNTIME_OK(cudaStreamSynchronize(a));
    apps::verify(buffers[0], kPiece, seed + 9, kStreams + 1, "buffer of streams that are gone");
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  // Allocated, used and freed inside a capture.
  RUNTIME_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  char* inside = nullptr;
  const cudaError_t allocated = cudaMallocAsync(reinterpret_cast<void**>(&inside), kPiece, a);
  if (allocated != cudaSuccess) {
    cudaStreamEndCapture(a, &graph);
    (void)cudaGetLastError();
    apps::skip("graph_streams: no allocation in a capture here (%s); the rest passed",
               cudaGetErrorString(allocated));
  }
  apps::fill(inside, kPiece, seed + 5, a);
  RUNTIME_OK(cudaMemcpyAsync(buffers[0], inside, kPiece, cudaMemcpyDeviceToDevice, a));
  RUNTIME_OK(cudaFreeAsync(inside, a));
  RUNTIME_OK(cudaStreamEndCapture(a, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 2; ++launch) {
    RUNTIME_OK(cudaMemsetAsync(buffers[0], 0, kPiece, a));
    for (size_t i = 1; i < n; ++i) apps::fill(buffers[i], kPiece, seed, a);
    RUNTIME_OK(cudaGraphLaunch(exec, a));
    RUNTIME_OK(cudaStreamSynchronize(a));
    apps::verify(buffers[0], kPiece, seed + 5, 0, "copied from memory of the graph");
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  return apps::ok("graph_streams over %zu buffers", n);
}
