// One thread begins captures again and again, in modes that forbid other threads nothing. Another
// allocates and frees meanwhile, with work under way in streams that it has, and in streams that it
// has destroyed. No free spoils a capture, also one that is made in the moment in which the capture
// begins, and no kernel writes to memory that was freed under it and allocated again.
#include <atomic>
#include <thread>

#include "common.h"

namespace {

constexpr int kCaptures = 150, kLeastFrees = 20;
constexpr size_t kPiece = size_t{1} << 20;
constexpr uint32_t kWords = uint32_t(kPiece / 4), kStep = 64;

__global__ void add(uint32_t* words, uint32_t value) {
  for (uint32_t i = threadIdx.x; i * kStep < kWords; i += blockDim.x) words[i * kStep] += value;
}

/// Writes the words again and again: it is still running when they are freed.
__global__ void scribble(uint32_t* words, uint32_t rounds) {
  for (uint32_t r = 0; r < rounds; ++r) {
    for (uint32_t i = threadIdx.x; i * kStep < kWords; i += blockDim.x) words[i * kStep] = r + i;
  }
}

uint32_t capture(uint32_t* words, const std::atomic<int>* frees) {
  uint32_t sum = 0;
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int number = 0; number < kCaptures || *frees < kLeastFrees; ++number) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    RUNTIME_OK(cudaStreamBeginCapture(
        stream, number % 2 != 0 ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal));
    add<<<1, 64, 0, stream>>>(words, 1);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
    if (number % 10 == 0) {
      RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
      RUNTIME_OK(cudaGraphLaunch(exec, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
      RUNTIME_OK(cudaGraphExecDestroy(exec));
      ++sum;
    }
    RUNTIME_OK(cudaGraphDestroy(graph));
    std::this_thread::sleep_for(std::chrono::microseconds(200 * (number % 5)));
  }
  return sum;
}

void allocateAndFree(const std::atomic<bool>* over, std::atomic<int>* frees) {
  cudaStream_t own;
  RUNTIME_OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  std::vector<uint32_t> got(kWords);
  for (int round = 0; !*over; ++round, ++*frees) {
    uint32_t *freed, *next;
    RUNTIME_OK(cudaMalloc(&freed, kPiece));
    cudaStream_t stream = own;
    if (round % 2 != 0)
      RUNTIME_OK(cudaStreamCreateWithFlags(
          &stream, round % 4 == 1 ? cudaStreamNonBlocking : cudaStreamDefault));
    scribble<<<1, 64, 0, stream>>>(freed, 20);
    RUNTIME_OK(cudaGetLastError());
    if (stream != own) RUNTIME_OK(cudaStreamDestroy(stream));
    RUNTIME_OK(cudaFree(freed));
    RUNTIME_OK(cudaMalloc(&next, kPiece));
    RUNTIME_OK(cudaMemsetAsync(next, 0x5a, kPiece, own));
    RUNTIME_OK(cudaMemcpyAsync(got.data(), next, kPiece, cudaMemcpyDeviceToHost, own));
    RUNTIME_OK(cudaStreamSynchronize(own));
    for (uint32_t i = 0; i < kWords; i += kStep)
      CHECK(got[i] == 0x5a5a5a5au, "round %d, word %u: %#x", round, i, got[i]);
    RUNTIME_OK(cudaFree(next));
  }
  RUNTIME_OK(cudaStreamDestroy(own));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Pressure pressure(options.bytes);
  uint32_t* words;
  RUNTIME_OK(cudaMalloc(&words, kPiece));
  RUNTIME_OK(cudaMemset(words, 0, kPiece));
  RUNTIME_OK(cudaDeviceSynchronize());
  std::atomic<bool> over{false};
  std::atomic<int> frees{0};
  std::thread other(allocateAndFree, &over, &frees);
  const uint32_t sum = capture(words, &frees);
  over = true;
  other.join();
  std::vector<uint32_t> got(kWords);
  RUNTIME_OK(cudaMemcpy(got.data(), words, kPiece, cudaMemcpyDeviceToHost));
  for (uint32_t i = 0; i < kWords; i += kStep)
    CHECK(got[i] == sum, "word %u of the graphs: %u, not %u", i, got[i], sum);
  pressure.check();
  return apps::ok("free_beside_capture");
}
