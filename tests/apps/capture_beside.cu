// One thread captures, for a while, in a mode that forbids other threads nothing. These launch,
// allocate and free in the order of their streams, and wait for their streams meanwhile. Captured
// work does not run, and runs beside them afterwards.
#include <atomic>
#include <chrono>
#include <thread>

#include "common.h"

namespace {

constexpr int kThreads = 2, kEach = 4, kCaptures = 4, kLaunches = 3;
constexpr size_t kPiece = size_t{1} << 20;

uint32_t* g_buffers[(kThreads + 1) * kEach];
size_t g_bytes = 0;  // of each

__global__ void add(uint32_t* words, uint32_t count, uint32_t value) {
  for (uint32_t i = threadIdx.x; i * 1024 < count; i += blockDim.x) words[i * 1024] += value;
}

uint32_t addToAll(uint32_t** buffers, uint32_t value, cudaStream_t stream) {
  for (int i = 0; i < kEach; ++i) {
    add<<<1, 128, 0, stream>>>(buffers[i], uint32_t(g_bytes / 4), value);
    RUNTIME_OK(cudaGetLastError());
  }
  return value;
}

uint32_t capture(std::atomic<int>* rounds) {
  cudaStream_t stream;
  uint32_t sum = 0;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int number = 0; number < kCaptures; ++number) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    RUNTIME_OK(cudaStreamBeginCapture(
        stream, number % 2 != 0 ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal));
    const uint32_t value = addToAll(g_buffers, uint32_t(number) + 1, stream);
    // Until the others have done some rounds.
    for (const int until = *rounds + 2 * kThreads; *rounds < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < kLaunches; ++i, sum += value) RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
  }
  return sum;
}

uint32_t beside(int number, const std::atomic<bool>* over, std::atomic<int>* rounds) {
  cudaStream_t stream;
  uint32_t sum = 0;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (uint32_t round = 0; !*over; ++round, ++*rounds) {
    sum += addToAll(g_buffers + (number + 1) * kEach, round, stream);
    uint32_t *ordered, got = 0;
    RUNTIME_OK(cudaMallocAsync(&ordered, kPiece, stream));
    RUNTIME_OK(cudaMemsetAsync(ordered, 1, kPiece, stream));
    add<<<1, 64, 0, stream>>>(ordered, uint32_t(kPiece / 4), uint32_t(number));
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaMemcpyAsync(&got, ordered, 4, cudaMemcpyDeviceToHost, stream));
    RUNTIME_OK(cudaFreeAsync(ordered, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    CHECK(got == 0x01010101u + uint32_t(number), "thread %d, round %u: %#x", number, round, got);
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  g_bytes = options.bytes / ((kThreads + 1) * kEach) / 4096 * 4096;
  for (uint32_t*& buffer : g_buffers) {
    RUNTIME_OK(cudaMalloc(&buffer, g_bytes));
    RUNTIME_OK(cudaMemset(buffer, 0, g_bytes));
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  std::atomic<bool> over{false};
  std::atomic<int> rounds{0};
  uint32_t want[kThreads + 1] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] { want[i + 1] = beside(i, &over, &rounds); });
  want[0] = capture(&rounds);
  over = true;
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < (kThreads + 1) * kEach; ++i) {
    uint32_t got = 0;
    RUNTIME_OK(cudaMemcpy(&got, g_buffers[i], 4, cudaMemcpyDeviceToHost));
    CHECK(got == want[i / kEach], "buffer %d has %u, not %u", i, got, want[i / kEach]);
  }
  return apps::ok("capture_beside: %d captures", kCaptures);
}
