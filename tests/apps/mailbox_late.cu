// A kernel that runs waits for a word of pinned memory that the CPU writes after the launch. Over a
// network the word comes with the next launch alone: a thread makes one where the kernel has not
// ended for some time.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common.h"

__global__ void await(volatile uint32_t* word, uint32_t* out) {
  while (*word == 0) {
  }
  *out = *word;
}

__global__ void look(const uint32_t* word, uint32_t* out) { *out = *word; }

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  constexpr auto kLate = std::chrono::seconds(7);
  uint32_t *word = nullptr, *out = nullptr;
  RUNTIME_OK(cudaHostAlloc(&word, 4096, cudaHostAllocMapped));
  RUNTIME_OK(cudaMalloc(&out, 2 * sizeof *out));
  *word = 0;
  cudaStream_t waits, other;
  RUNTIME_OK(cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  look<<<1, 1, 0, other>>>(word, out + 1);  // its code is loaded while nothing runs
  RUNTIME_OK(cudaStreamSynchronize(other));
  await<<<1, 1, 0, waits>>>(word, out);
  RUNTIME_OK(cudaGetLastError());
  *static_cast<volatile uint32_t*>(word) = 7;
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  std::thread brings([&] {
    std::unique_lock lock(mutex);
    if (ended.wait_for(lock, kLate, [&] { return over; })) return;
    look<<<1, 1, 0, other>>>(word, out + 1);
  });
  RUNTIME_OK(cudaStreamSynchronize(waits));
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  ended.notify_one();
  brings.join();
  RUNTIME_OK(cudaStreamSynchronize(other));
  uint32_t got = 0;
  RUNTIME_OK(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
  CHECK(got == 7, "the kernel has seen %u, not 7", got);
  return apps::ok("mailbox_late");
}
