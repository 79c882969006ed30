// Graphs with memory of their own, allocated in a capture, are destroyed while another stream
// captures, after they have run and while they do: the other capture becomes a graph, and a launch
// under way keeps its memory. Skipped where the driver has no memory nodes.
#include "common.h"

static constexpr size_t kPiece = size_t{2} << 20;
static constexpr uint32_t kWords = uint32_t(kPiece / 4);

/// One thread, so that it takes long: adds 1 to a word here, a word there.
__global__ void count(uint32_t* out, uint32_t rounds) {
  for (uint32_t r = 0; r < rounds; ++r) out[(r * 4099u) % kWords] += 1;
}

// A graph that counts in memory of its own and copies it out.
static cudaGraph_t counting(cudaStream_t stream, uint32_t* out, uint32_t rounds) {
  cudaGraph_t graph = nullptr;
  uint32_t* inside = nullptr;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  const cudaError_t allocated = cudaMallocAsync(reinterpret_cast<void**>(&inside), kPiece, stream);
  if (allocated != cudaSuccess) {
    cudaStreamEndCapture(stream, &graph);
    (void)cudaGetLastError();
    apps::skip("capture_frees: no allocation in a capture here (%s)",
               cudaGetErrorString(allocated));
  }
  RUNTIME_OK(cudaMemsetAsync(inside, 0, kPiece, stream));
  count<<<1, 1, 0, stream>>>(inside, rounds);
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaMemcpyAsync(out, inside, kPiece, cudaMemcpyDeviceToDevice, stream));
  RUNTIME_OK(cudaFreeAsync(inside, stream));
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  apps::Pressure pressure(options.bytes);
  cudaStream_t stream, beside, other;
  for (cudaStream_t* made : {&stream, &beside, &other})
    RUNTIME_OK(cudaStreamCreateWithFlags(made, cudaStreamNonBlocking));
  uint32_t* out;
  void* captured;
  RUNTIME_OK(cudaMalloc(&out, kPiece));
  RUNTIME_OK(cudaMalloc(&captured, kPiece));
  apps::fill(captured, kPiece, seed);
  RUNTIME_OK(cudaDeviceSynchronize());
  uint32_t added = 0;
  for (const bool running : {false, true, false, true}) {
    const uint32_t rounds = running ? 600000 : 1000;
    const cudaGraph_t graph = counting(stream, out, rounds);
    cudaGraphExec_t exec;
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    if (!running) RUNTIME_OK(cudaStreamSynchronize(stream));
    RUNTIME_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    apps::add(captured, kPiece, 3, other);
    RUNTIME_OK(cudaGraphDestroy(graph));
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    pressure.apply(beside);
    cudaGraph_t rest = nullptr;
    RUNTIME_OK(cudaStreamEndCapture(other, &rest));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    std::vector<uint32_t> words(kWords);
    RUNTIME_OK(cudaMemcpy(words.data(), out, kPiece, cudaMemcpyDeviceToHost));
    uint64_t sum = 0;
    for (const uint32_t word : words) sum += word;
    CHECK(sum == rounds, "a graph that was destroyed while it ran counted to %llu, not to %u",
          static_cast<unsigned long long>(sum), rounds);
    RUNTIME_OK(cudaGraphInstantiate(&exec, rest, 0));
    RUNTIME_OK(cudaGraphLaunch(exec, other));
    RUNTIME_OK(cudaStreamSynchronize(other));
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(rest));
    added += 3;
    apps::verify(captured, kPiece, seed, added, "what the other capture adds to");
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  pressure.check();
  return apps::ok("capture_frees");
}
