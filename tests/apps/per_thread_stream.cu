// Compiled with --default-stream per-thread: four threads, each with the default stream of its own,
// over buffers that they hand on to each other by events. After a reset of the device all of it
// again: the default streams are new ones.
#include <thread>

#include "common.h"

static constexpr unsigned kThreads = 4;
static constexpr size_t kPiece = size_t{2} << 20;

static size_t life(const apps::Options& options) {
  // This thread's own as well: it is there before and after the reset.
  uint32_t* first = nullptr;
  uint32_t got_first = 0;
  RUNTIME_OK(cudaMalloc(&first, kPiece));
  apps::fill(first, kPiece, uint32_t(options.seed));
  RUNTIME_OK(cudaMemcpyAsync(&got_first, first, 4, cudaMemcpyDeviceToHost, cudaStreamPerThread));
  RUNTIME_OK(cudaStreamSynchronize(cudaStreamPerThread));
  CHECK(got_first == apps::word(0, uint32_t(options.seed)), "the first word is %#x", got_first);
  RUNTIME_OK(cudaFree(first));
  const size_t pieces =
      options.bytes / kPiece / kThreads > 0 ? options.bytes / kPiece / kThreads : 1;
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
        apps::verifyHost(got.data(), kPiece, seedOf(other, p), 3 * (other + 1) + 100,
                         "neighbour's buffer");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& row : buffers) {
    for (void* p : row) RUNTIME_OK(cudaFree(p));
  }
  return pieces;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  size_t pieces = 0;
  for (int lives = 0; lives < 3; ++lives) {
    pieces = life(options);
    RUNTIME_OK(cudaDeviceReset());
  }
  return apps::ok("per_thread_stream: %u threads with %zu buffers each", kThreads, pieces);
}
