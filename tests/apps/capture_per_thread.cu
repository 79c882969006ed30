// Compiled with --default-stream per-thread: one stream captures, in every mode, while a thread's
// kernel runs for long in the default stream of its own and another thread uses more memory than
// there is room for. The kernel keeps its memory, and the capture becomes a graph.
#include <atomic>
#include <thread>

#include "common.h"

static constexpr size_t kPiece = size_t{2} << 20;
static constexpr uint32_t kWords = uint32_t(kPiece / 4);

/// One thread, so that it takes long: adds 1 to a word here, a word there.
__global__ void count(uint32_t* out, uint32_t rounds) {
  for (uint32_t r = 0; r < rounds; ++r) out[(r * 4099u) % kWords] += 1;
}

// A capture in global mode forbids others to synchronise their streams, but those who say that they
// know what they do.
static void relax() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  RUNTIME_OK(cudaThreadExchangeStreamCaptureMode(&mode));
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr uint32_t kRounds = 1000000;
  const size_t n = options.bytes / kPiece > 8 ? options.bytes / kPiece : 8;
  std::vector<void*> others(n);
  std::vector<uint32_t> added(n, 0);
  for (size_t i = 0; i < n; ++i) {
    RUNTIME_OK(cudaMalloc(&others[i], kPiece));
    apps::fill(others[i], kPiece, seed + uint32_t(i));
  }
  uint32_t* counted;
  void* captured;
  RUNTIME_OK(cudaMalloc(&counted, kPiece));
  RUNTIME_OK(cudaMalloc(&captured, kPiece));
  RUNTIME_OK(cudaMemsetAsync(counted, 0, kPiece));
  apps::fill(captured, kPiece, seed);
  apps::add(captured, kPiece, 0);
  count<<<1, 1>>>(counted, 1);
  RUNTIME_OK(cudaDeviceSynchronize());
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint32_t rounds = 0;
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed,
        cudaStreamCaptureModeGlobal}) {
    RUNTIME_OK(cudaStreamBeginCapture(stream, mode));
    apps::add(captured, kPiece, 5, stream);
    std::atomic<bool> begun{false}, over{false};
    std::thread counting([&] {
      relax();
      count<<<1, 1>>>(counted, kRounds);
      RUNTIME_OK(cudaGetLastError());
      begun = true;
      RUNTIME_OK(cudaStreamSynchronize(cudaStreamPerThread));
      over = true;
    });
    std::thread using_others([&] {
      relax();
      while (!begun) std::this_thread::yield();
      for (size_t i = 0; i < n || (!over && i < 20 * n); ++i) {
        apps::add(others[i % n], kPiece, 1);
        ++added[i % n];
        RUNTIME_OK(cudaStreamSynchronize(cudaStreamPerThread));
      }
    });
    counting.join();
    using_others.join();
    cudaGraph_t graph = nullptr;
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
    ++rounds;
    apps::verify(captured, kPiece, seed, 5 * rounds, "what the graph adds to");
  }
  std::vector<uint32_t> words(kWords);
  RUNTIME_OK(cudaMemcpy(words.data(), counted, kPiece, cudaMemcpyDeviceToHost));
  uint64_t sum = 0;
  for (const uint32_t word : words) sum += word;
  CHECK(sum == 1 + uint64_t{rounds} * kRounds, "the kernels beside the captures counted to %llu",
        static_cast<unsigned long long>(sum));
  for (size_t i = 0; i < n; ++i)
    apps::verify(others[i], kPiece, seed + uint32_t(i), added[i], "another buffer");
  return apps::ok("capture_per_thread: %u captures beside %zu buffers", rounds, n);
}
