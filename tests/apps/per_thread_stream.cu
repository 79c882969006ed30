// Compiled with --default-stream per-thread: four threads, each with the default stream of its own, over buffers that
// they hand on to each other by events.
#include <thread>

#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr unsigned kThreads = 4;
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t pieces = options.bytes / kPiece / kThreads > 0 ? options.bytes / kPiece / kThreads : 1;
  std::vector<std::vector<void*>> buffers(kThreads, std::vector<void*>(pieces));
  std::vector<cudaEvent_t> filled(kThreads);
  for (unsigned t = 0; t < kThreads; ++t) {
    RUNTIME_OK(cudaEventCreateWithFlags(&filled[t], cudaEventDisableTiming));
    for (void*& p : buffers[t]) RUNTIME_OK(cudaMalloc(&p, kPiece));
  }
  const auto seedOf = [&](unsigned t, size_t p) { return uint32_t(options.seed + t * 1000 + p); };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t p = 0; p < pieces; ++p) apps::fill(buffers[t][p], kPiece, seedOf(t, p));
      for (unsigned round = 0; round < 3; ++round) {
        for (size_t p = 0; p < pieces; ++p) apps::add(buffers[t][p], kPiece, t + 1);
      }
      RUNTIME_OK(cudaEventRecord(filled[t], cudaStreamPerThread));
      RUNTIME_OK(cudaStreamSynchronize(nullptr));  // this thread's own
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  // Each goes on with what its neighbour wrote, ordered by the neighbour's event only.
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const unsigned other = (t + 1) % kThreads;
      RUNTIME_OK(cudaStreamWaitEvent(nullptr, filled[other], 0));
      for (size_t p = 0; p < pieces; ++p) apps::add(buffers[other][p], kPiece, 100);
      std::vector<uint32_t> got(kPiece / 4);
      for (size_t p = 0; p < pieces; ++p) {
        RUNTIME_OK(cudaMemcpyAsync(got.data(), buffers[other][p], kPiece, cudaMemcpyDeviceToHost));
        RUNTIME_OK(cudaStreamSynchronize(cudaStreamPerThread));
        apps::verifyHost(got.data(), kPiece, seedOf(other, p), 3 * (other + 1) + 100, "neighbour's buffer");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& row : buffers) {
    for (void* p : row) RUNTIME_OK(cudaFree(p));
  }
  return apps::ok("per_thread_stream: %u threads with %zu buffers each", kThreads, pieces);
}
