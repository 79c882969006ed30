// Memory that is freed in the order of a stream: the call returns while the stream, or another one,
// waits for what the program does only afterwards. Then more is allocated and freed than there is
// memory, and nothing waits for the streams.
#include <atomic>
#include <chrono>
#include <thread>

#include "common.h"

namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr auto kPatience = std::chrono::seconds(30);

struct Gate {
  std::atomic<bool> open{false}, given_up{false};
};
// Ends by itself where nobody opens it, so that the test does.
void CUDART_CB waitAt(void* data) {
  auto& gate = *static_cast<Gate*>(data);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!gate.open) {
    if (std::chrono::steady_clock::now() > until) {
      gate.given_up = true;
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// `waits`: what the host function is in; the memory is freed in `frees`.
void freeBeside(cudaStream_t waits, cudaStream_t frees, uint32_t seed, const char* what) {
  Gate gate;
  uint32_t *freed, *kept;
  RUNTIME_OK(cudaMallocAsync(&freed, kPiece, frees));
  RUNTIME_OK(cudaMalloc(&kept, kPiece));
  apps::fill(freed, kPiece, seed, frees);
  RUNTIME_OK(cudaStreamSynchronize(frees));
  RUNTIME_OK(cudaLaunchHostFunc(waits, waitAt, &gate));
  apps::add(freed, kPiece, 1, frees);
  RUNTIME_OK(cudaMemcpyAsync(kept, freed, kPiece, cudaMemcpyDeviceToDevice, frees));
  RUNTIME_OK(cudaFreeAsync(freed, frees));
  // As large, in the same stream: behind the free.
  RUNTIME_OK(cudaMallocAsync(&freed, kPiece, frees));
  apps::fill(freed, kPiece, seed + 1, frees);
  CHECK(!gate.given_up, "%s: the calls waited for the stream", what);
  gate.open = true;
  RUNTIME_OK(cudaStreamSynchronize(frees));
  RUNTIME_OK(cudaStreamSynchronize(waits));
  CHECK(!gate.given_up, "%s: the calls waited for the stream", what);
  apps::verify(kept, kPiece, seed, 1, what);
  apps::verify(freed, kPiece, seed + 1, 0, what);
  RUNTIME_OK(cudaFreeAsync(freed, frees));
  RUNTIME_OK(cudaFree(kept));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  cudaStream_t streams[3];
  for (cudaStream_t& stream : streams)
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  freeBeside(streams[0], streams[0], seed, "the stream itself waits");
  freeBeside(streams[0], streams[1], seed, "another stream waits");

  // Sizes differ, so that freed memory is seldom just what is asked for next.
  uint32_t* sums;
  RUNTIME_OK(cudaMalloc(&sums, sizeof streams / sizeof *streams * kPiece));
  const uint32_t rounds = uint32_t(4 * options.bytes / (4 * kPiece));
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t at = round % 3;
    uint32_t* piece;
    RUNTIME_OK(cudaMallocAsync(&piece, (1 + round % 7) * kPiece, streams[at]));
    apps::fill(piece, kPiece, seed + round, streams[at]);
    RUNTIME_OK(cudaMemcpyAsync(sums + at * (kPiece / 4), piece, kPiece, cudaMemcpyDeviceToDevice,
                               streams[at]));
    RUNTIME_OK(cudaFreeAsync(piece, streams[at]));
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  for (uint32_t round = rounds < 3 ? 0 : rounds - 3; round < rounds; ++round)
    apps::verify(sums + round % 3 * (kPiece / 4), kPiece, seed + round, 0, "the last of a stream");
  RUNTIME_OK(cudaFree(sums));
  return apps::ok("free_in_order: %u rounds", rounds);
}
