// Memory is freed and given out again while the GPU is at work, by one thread and by several;
// copies are in order with what was launched before them, in whichever stream; what is told of free
// memory adds up.
#include <atomic>
#include <thread>

#include "common.h"

// Takes a while.
__global__ void fillSlowly(uint32_t* words, uint32_t count, uint32_t value, uint32_t turns) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    if (i < count) reinterpret_cast<volatile uint32_t*>(words)[i] = value + turn;
  }
}

__global__ void addOne(uint32_t* to, const uint32_t* from, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i] + 1;
}

constexpr uint32_t kTurns = 200, kBlock = 256;

static uint32_t* allocate(size_t words) {
  void* memory = nullptr;
  RUNTIME_OK(cudaMalloc(&memory, words * 4));
  return static_cast<uint32_t*>(memory);
}

static void expect(const uint32_t* memory, const std::vector<uint32_t>& words, uint32_t more,
                   const char* what) {
  std::vector<uint32_t> got(words.size());
  RUNTIME_OK(cudaMemcpy(got.data(), memory, got.size() * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < got.size(); ++i)
    CHECK(got[i] == words[i] + more, "%s: word %zu is %#x, expected %#x", what, i, got[i],
          words[i] + more);
}

// For a stream that knows nothing of it: the driver may have the last bytes still to bring when a
// copy of pageable memory returns.
static void toDevice(uint32_t* memory, const std::vector<uint32_t>& words) {
  RUNTIME_OK(cudaMemcpy(memory, words.data(), words.size() * 4, cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaStreamSynchronize(cudaStreamLegacy));
}

static std::vector<uint32_t> drawn(apps::Random& random, size_t count) {
  std::vector<uint32_t> words(count);
  for (auto& word : words) word = uint32_t(random.next());
  return words;
}

// One thread's own allocations of mixed sizes, each written, changed by a kernel and read, freed in
// any order.
static void churn(uint64_t seed, unsigned turns, size_t most) {
  apps::Random random(seed);
  cudaStream_t stream = nullptr;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  struct Held {
    uint32_t* memory;
    std::vector<uint32_t> words;
  };
  std::vector<Held> held;
  for (unsigned turn = 0; turn < turns; ++turn) {
    const size_t words = 1 + random.below(random.below(4) == 0 ? most : 3000);
    Held one{allocate(words), drawn(random, words)};
    toDevice(one.memory, one.words);
    addOne<<<unsigned((words + kBlock - 1) / kBlock), kBlock, 0, stream>>>(one.memory, one.memory,
                                                                           uint32_t(words));
    held.push_back(std::move(one));
    if (held.size() < 6) continue;
    const size_t at = random.below(held.size());
    RUNTIME_OK(cudaStreamSynchronize(stream));
    expect(held[at].memory, held[at].words, 1, "a thread's own");
    RUNTIME_OK(cudaFree(held[at].memory));
    held.erase(held.begin() + ptrdiff_t(at));
  }
  RUNTIME_OK(cudaStreamSynchronize(stream));
  for (const Held& one : held) {
    expect(one.memory, one.words, 1, "a thread's last");
    RUNTIME_OK(cudaFree(one.memory));
  }
  RUNTIME_OK(cudaStreamDestroy(stream));
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  cudaStream_t stream = nullptr;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  size_t free_before = 0, free_after = 0, total = 0;
  RUNTIME_OK(cudaFree(allocate(64)));
  RUNTIME_OK(cudaMemGetInfo(&free_before, &total));

  // Memory allocated behind a free is not memory that a kernel launched before still writes.
  for (const size_t words : {size_t{1000}, size_t{20000}, size_t{200000}, options.bytes / 32}) {
    for (const bool in_order : {false, true}) {
      uint32_t* const old = allocate(words);
      fillSlowly<<<unsigned((words + kBlock - 1) / kBlock), kBlock, 0, stream>>>(
          old, uint32_t(words), 7, kTurns);
      RUNTIME_OK(in_order ? cudaFreeAsync(old, stream) : cudaFree(old));
      uint32_t* const fresh = allocate(words);
      const auto wanted = drawn(random, words);
      RUNTIME_OK(cudaMemcpy(fresh, wanted.data(), words * 4, cudaMemcpyHostToDevice));
      RUNTIME_OK(cudaDeviceSynchronize());
      expect(fresh, wanted, 0, in_order ? "behind a free in stream order" : "behind a free");
      RUNTIME_OK(cudaFree(fresh));
    }
  }

  // A copy is behind what was launched before it, and once it is over before what is launched next
  // in a stream that knows nothing of it.
  for (const size_t words : {size_t{1024}, size_t{32768}, size_t{262144}}) {
    uint32_t* const there = allocate(words);
    uint32_t* const out = allocate(words);
    const unsigned grid = unsigned((words + kBlock - 1) / kBlock);
    for (int turn = 0; turn < 3; ++turn) {
      const auto wanted = drawn(random, words);
      fillSlowly<<<grid, kBlock>>>(there, uint32_t(words), 9, kTurns);
      auto source = wanted;
      toDevice(there, source);
      std::fill(source.begin(), source.end(), 0u);
      addOne<<<grid, kBlock, 0, stream>>>(out, there, uint32_t(words));
      RUNTIME_OK(cudaStreamSynchronize(stream));
      expect(out, wanted, 1, "a copy");
    }
    RUNTIME_OK(cudaFree(there));
    RUNTIME_OK(cudaFree(out));
  }

  // A copy to memory that was freed is refused, and what comes next is not.
  uint32_t* const gone = allocate(2048);
  RUNTIME_OK(cudaFree(gone));
  const uint32_t word = 1;
  CHECK(cudaMemcpy(gone, &word, 4, cudaMemcpyHostToDevice) != cudaSuccess,
        "a copy to memory that was freed");
  CHECK(cudaFree(gone) != cudaSuccess, "it was freed twice");
  (void)cudaGetLastError();

  RUNTIME_OK(cudaMemGetInfo(&free_after, &total));
  CHECK(free_after == free_before, "%zu bytes are free, before it were %zu", free_after,
        free_before);
  uint32_t* const some = allocate(options.bytes / 16);
  RUNTIME_OK(cudaMemGetInfo(&free_after, &total));
  CHECK(free_after < free_before && free_before - free_after >= options.bytes / 4,
        "%zu bytes were free, and %zu are after %zu were allocated", free_before, free_after,
        options.bytes / 4);
  RUNTIME_OK(cudaFree(some));

  churn(options.seed, 150, options.bytes / 128);
  std::vector<std::thread> threads;
  for (unsigned i = 1; i <= 4; ++i)
    threads.emplace_back([&, i] { churn(options.seed + i, 60, options.bytes / 256); });
  for (auto& thread : threads) thread.join();
  RUNTIME_OK(cudaMemGetInfo(&free_after, &total));
  CHECK(free_after == free_before, "%zu bytes are free in the end, in the beginning were %zu",
        free_after, free_before);
  RUNTIME_OK(cudaStreamDestroy(stream));
  return apps::ok("freed and reused, seed %llu", static_cast<unsigned long long>(options.seed));
}
