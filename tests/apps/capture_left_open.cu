// The program ends while streams capture, with kernels, memory and a free in the captures, as one
// does that an exception ends there. Streams that it destroys while they capture take what they
// allocated with them, and memory is allocated and freed beside all that. Nothing waits for the end
// of a capture that nobody ends.
#include <unistd.h>

#include <chrono>

#include "common.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kMost = std::chrono::seconds(8);  // less than a second where nothing else runs
constexpr size_t kBytes = size_t{1} << 20;
constexpr int kAllocations = 8;

// Made before the runtime registers its end, so gone after it.
struct Watch {
  Clock::time_point began{};
  ~Watch() {
    if (began == Clock::time_point{} || Clock::now() - began < kMost) return;
    std::printf("FAILED the end of the program took too long\n");
    std::fflush(stdout);
    _exit(1);
  }
} watch;

// All that a capture may have been in the midst of.
void* beginCapture(cudaStream_t stream, void* kept) {
  void* last = nullptr;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  apps::add(kept, kBytes, 1, stream);
  for (int i = 0; i < kAllocations; ++i) {
    void* memory = nullptr;
    RUNTIME_OK(cudaMallocAsync(&memory, kBytes, stream));
    apps::fill(memory, kBytes, uint32_t(i), stream);
    if (i % 2 == 0) RUNTIME_OK(cudaFreeAsync(memory, stream));
    last = memory;
  }
  return last;
}

void expectSoon(Clock::time_point since, const char* what) {
  const double took = std::chrono::duration<double>(Clock::now() - since).count();
  CHECK(took < std::chrono::duration<double>(kMost).count(), "%s took %.1f s", what, took);
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  void *ballast = nullptr, *kept = nullptr, *freed = nullptr;
  RUNTIME_OK(cudaMalloc(&ballast, options.bytes));
  apps::fill(ballast, options.bytes, uint32_t(options.seed));
  RUNTIME_OK(cudaMalloc(&kept, kBytes));
  RUNTIME_OK(cudaMalloc(&freed, kBytes));
  apps::fill(kept, kBytes, 1);
  RUNTIME_OK(cudaDeviceSynchronize());

  cudaStream_t destroyed, open;
  RUNTIME_OK(cudaStreamCreate(&destroyed));
  RUNTIME_OK(cudaStreamCreate(&open));
  const auto before = Clock::now();
  (void)beginCapture(destroyed, kept);
  RUNTIME_OK(cudaStreamDestroy(destroyed));
  expectSoon(before, "the end of a stream that captures");
  apps::add(ballast, options.bytes, 1);
  RUNTIME_OK(cudaDeviceSynchronize());

  (void)beginCapture(open, kept);
  RUNTIME_OK(cudaFree(freed));
  watch.began = Clock::now();
  return apps::ok("a capture that is left open");
}
