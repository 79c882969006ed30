// A kernel's writes to pinned memory are there by whichever way the program learns that the kernel
// is done: a stream's, an event's, a context's end, a question for them, another stream that
// waited, a host function, a copy behind it, or the memory itself.
#include <chrono>
#include <thread>

#include "common.h"

struct Box {
  volatile uint32_t value, copy;
};

__global__ void put(Box* box, uint32_t value) {
  box->value = value;
  box->copy = ~value;
}
__global__ void touch(uint32_t* out, uint32_t value) { out[threadIdx.x] = value; }

struct Seen {
  Box* box;
  uint32_t value, copy;
};

void check(const Box* box, uint32_t value, const char* way) {
  const uint32_t got = box->value, copy = box->copy;
  CHECK(got == value && copy == ~value, "%s: %#x and %#x instead of %#x and %#x", way, got, copy,
        value, ~value);
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  Box* box;
  uint32_t* device;
  RUNTIME_OK(cudaHostAlloc(&box, sizeof *box, cudaHostAllocMapped));
  RUNTIME_OK(cudaMalloc(&device, 4096));
  cudaStream_t first, second;
  RUNTIME_OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  cudaEvent_t event;
  RUNTIME_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  uint32_t value = uint32_t(options.seed) << 16;
  const int kWays = 9, kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    for (int way = 0; way < kWays; ++way) {
      const cudaStream_t stream = way == 8 ? nullptr : first;
      for (int i = 0; i < round % 3; ++i) touch<<<1, 32, 0, second>>>(device, i);
      put<<<1, 1, 0, stream>>>(box, ++value);
      for (int i = 0; i < round % 4; ++i) touch<<<1, 32, 0, stream>>>(device + 64, i);
      switch (way) {
        case 0:
          RUNTIME_OK(cudaStreamSynchronize(first));
          check(box, value, "a stream's end");
          break;
        case 1:
          RUNTIME_OK(cudaEventRecord(event, first));
          RUNTIME_OK(cudaEventSynchronize(event));
          check(box, value, "an event's end");
          break;
        case 2:
          RUNTIME_OK(cudaEventRecord(event, first));
          while (cudaEventQuery(event) == cudaErrorNotReady) {
          }
          check(box, value, "asking an event");
          break;
        case 3:
          while (cudaStreamQuery(first) == cudaErrorNotReady) {
          }
          check(box, value, "asking a stream");
          break;
        case 4:
          RUNTIME_OK(cudaEventRecord(event, first));
          RUNTIME_OK(cudaStreamWaitEvent(second, event, 0));
          touch<<<1, 32, 0, second>>>(device + 128, value);
          RUNTIME_OK(cudaStreamSynchronize(second));
          check(box, value, "a stream that waited");
          break;
        case 5: {
          static Seen seen;
          seen = {box, 0, 0};
          RUNTIME_OK(cudaLaunchHostFunc(
              first,
              [](void* p) {
                auto* const all = static_cast<Seen*>(p);
                all->value = all->box->value;
                all->copy = all->box->copy;
              },
              &seen));
          RUNTIME_OK(cudaStreamSynchronize(first));
          CHECK(seen.value == value && seen.copy == ~value,
                "a host function saw %#x instead of %#x", seen.value, value);
          break;
        }
        case 6: {
          // Nothing is called: the memory is looked at.
          const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
          while (box->copy != ~value && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
          while (box->value != value && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
          check(box, value, "the memory itself");
          break;
        }
        case 7: {
          uint32_t there[2] = {};
          RUNTIME_OK(cudaMemcpyAsync(there, const_cast<uint32_t*>(&box->value), sizeof there,
                                     cudaMemcpyDefault, first));
          RUNTIME_OK(cudaStreamSynchronize(first));
          CHECK(there[0] == value && there[1] == ~value, "a copy of it has %#x instead of %#x",
                there[0], value);
          break;
        }
        default:
          RUNTIME_OK(cudaDeviceSynchronize());
          check(box, value, "the device's end");
      }
      RUNTIME_OK(cudaStreamSynchronize(second));
    }
  }
  return apps::ok("pinned_seen: %d times", kWays * kRounds);
}
