// Eight threads, each with a stream and buffers of its own, allocating, working, copying, freeing
// in a random order.
#include <atomic>
#include <thread>

#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr unsigned kThreads = 8, kSteps = 60;
  constexpr size_t kSlots = 6;
  const size_t largest = options.bytes / kThreads / kSlots;
  std::atomic<size_t> launches{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      struct Slot {
        char* memory = nullptr;
        size_t bytes = 0;
        uint32_t seed = 0, added = 0;
      } slots[kSlots];
      apps::Random random(options.seed * 100 + t);
      cudaStream_t stream;
      RUNTIME_OK(cudaSetDevice(0));
      RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      const auto finishSlot = [&](Slot& slot) {
        std::vector<uint32_t> host(slot.bytes / 4);
        RUNTIME_OK(
            cudaMemcpyAsync(host.data(), slot.memory, slot.bytes, cudaMemcpyDeviceToHost, stream));
        RUNTIME_OK(cudaStreamSynchronize(stream));
        apps::verifyHost(host.data(), slot.bytes, slot.seed, slot.added, "a thread's buffer");
        RUNTIME_OK(cudaFree(slot.memory));
        slot.memory = nullptr;
      };
      for (unsigned step = 0; step < kSteps; ++step) {
        Slot& slot = slots[random.below(kSlots)];
        if (slot.memory == nullptr) {
          slot.bytes = (4096 + random.below(largest)) & ~size_t{15};
          slot.seed = uint32_t(random.next());
          slot.added = 0;
          RUNTIME_OK(cudaMalloc(&slot.memory, slot.bytes));
          apps::fill(slot.memory, slot.bytes, slot.seed, stream);
        } else if (random.below(4) == 0) {
          finishSlot(slot);
        } else {
          const uint32_t value = uint32_t(random.below(1000));
          apps::add(slot.memory, slot.bytes, value, stream);
          slot.added += value;
        }
        ++launches;
      }
      for (Slot& slot : slots) {
        if (slot.memory != nullptr) finishSlot(slot);
      }
      RUNTIME_OK(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return apps::ok("threads8: %zu steps", launches.load());
}
