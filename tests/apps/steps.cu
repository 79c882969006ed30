// Does what its standard input says, a line at a time, and answers each line: for tests of what
// happens to sessions.
//   step N   N launches that each add 1 to every word, none waited for; then all words are compared
//            with the count
//   copy N   N copies to the GPU and back, compared
//   bulk N   N times 12 MiB to the GPU, one added to each word, and back: asynchronously with
//            pinned memory, in two streams, and with pageable memory; compared
//   bad      a kernel that writes where nothing is
//   lost     a launch that can't be made, by a thread that ends, and a synchronisation
//   threads N    N threads one after the other, each of which adds 1 to every word in its own
//                default stream and ends
//   functions N  N host functions in a stream, counted
//   frees N      N allocations that are freed again
//   slow N       launches that take N seconds, and a free behind them
//   behind N     likewise, and 100000 launches behind that
//   dirty N      N MiB that are kept, full of a word; scan N: N MiB as they come, of which none may
//                have that word
// "ok COUNT", or "error NAME" when a CUDA call failed, or "WRONG ..." and status 1. Ends with its
// input.
#include "common.h"

#include <chrono>
#include <string>
#include <thread>

__global__ void addOne(uint32_t* words, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] += 1;
}

__global__ void spoil(uint32_t* nowhere) { *nowhere = 1; }

__global__ void turn(uint32_t* word, uint32_t turns) {
  uint32_t x = *word;
  for (uint32_t i = 0; i < turns; ++i) x = x * 1664525u + 1013904223u;
  *word = x;
}

static cudaError_t g_error = cudaSuccess;
static bool good(cudaError_t result) {
  if (result != cudaSuccess) g_error = result;
  return result == cudaSuccess;
}

// Two streams at a time, which nothing waits for until both have all their work.
struct Lane {
  cudaStream_t stream = nullptr;
  uint32_t *near = nullptr, *back = nullptr, *far = nullptr;
};
static bool bulk(int count) {
  constexpr uint32_t kWords = 3 << 20;
  Lane lanes[2];
  bool fine = true;
  for (Lane& lane : lanes) {
    fine = fine && good(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking)) &&
           good(cudaMallocHost(&lane.near, kWords * 4)) &&
           good(cudaMallocHost(&lane.back, kWords * 4)) && good(cudaMalloc(&lane.far, kWords * 4));
  }
  std::vector<uint32_t> pageable(kWords), returned(kWords);
  for (int i = 0; fine && i < count; ++i) {
    const auto word = [&](uint32_t lane, uint32_t k) {
      return k * 2654435761u + uint32_t(i) * 3 + lane;
    };
    for (uint32_t l = 0; fine && l < 2; ++l) {
      Lane& lane = lanes[l];
      for (uint32_t k = 0; k < kWords; ++k) lane.near[k] = word(l, k);
      std::memset(lane.back, 0, kWords * 4);
      fine = good(
          cudaMemcpyAsync(lane.far, lane.near, kWords * 4, cudaMemcpyHostToDevice, lane.stream));
      if (fine) addOne<<<kWords / 256, 256, 0, lane.stream>>>(lane.far, kWords);
      fine = fine && good(cudaMemcpyAsync(lane.back, lane.far, kWords * 4, cudaMemcpyDeviceToHost,
                                          lane.stream));
    }
    for (uint32_t l = 0; fine && l < 2; ++l) {
      fine = good(cudaStreamSynchronize(lanes[l].stream));
      for (uint32_t k = 0; fine && k < kWords; ++k) {
        CHECK(lanes[l].back[k] == word(l, k) + 1, "bulk %d, stream %u: word %u is %u, expected %u",
              i, l, k, lanes[l].back[k], word(l, k) + 1);
      }
    }
    for (uint32_t k = 0; fine && k < kWords; ++k) pageable[k] = word(7, k);
    fine = fine &&
           good(cudaMemcpy(lanes[0].far, pageable.data(), kWords * 4, cudaMemcpyHostToDevice)) &&
           good(cudaMemcpy(returned.data(), lanes[0].far, kWords * 4, cudaMemcpyDeviceToHost));
    if (fine) CHECK(pageable == returned, "bulk %d came back otherwise", i);
  }
  for (Lane& lane : lanes) {
    fine = fine && good(cudaFreeHost(lane.near)) && good(cudaFreeHost(lane.back)) &&
           good(cudaFree(lane.far)) && good(cudaStreamDestroy(lane.stream));
  }
  return fine;
}

// In the default stream that each thread has of its own.
static bool threads(uint32_t* words, uint32_t words_count, int count) {
  bool fine = true;
  for (int i = 0; fine && i < count; ++i) {
    std::thread([&] {
      addOne<<<words_count / 256, 256, 0, cudaStreamPerThread>>>(words, words_count);
      fine = good(cudaGetLastError()) && good(cudaStreamSynchronize(cudaStreamPerThread));
    }).join();
  }
  return fine;
}

static bool functions(int count) {
  cudaStream_t stream = nullptr;
  uint32_t called = 0;
  bool fine = good(cudaStreamCreate(&stream));
  for (int i = 0; fine && i < count; ++i)
    fine = good(cudaLaunchHostFunc(
        stream, [](void* seen) { ++*static_cast<uint32_t*>(seen); }, &called));
  fine = fine && good(cudaStreamSynchronize(stream)) && good(cudaStreamDestroy(stream));
  if (fine) CHECK(called == uint32_t(count), "%u host functions ran of %d", called, count);
  return fine;
}

constexpr uint32_t kDirt = 0xd1127d1e;
static bool dirty(int mib) {
  const size_t words = size_t(mib) << 18;
  std::vector<uint32_t> dirt(words, kDirt);
  void* kept = nullptr;
  return good(cudaMalloc(&kept, words * 4)) &&
         good(cudaMemcpy(kept, dirt.data(), words * 4, cudaMemcpyHostToDevice));
}
static bool scan(int mib) {
  const size_t words = size_t(mib) << 18;
  std::vector<uint32_t> found(words);
  void* fresh = nullptr;
  const bool fine = good(cudaMalloc(&fresh, words * 4)) &&
                    good(cudaMemcpy(found.data(), fresh, words * 4, cudaMemcpyDeviceToHost)) &&
                    good(cudaFree(fresh));
  size_t dirt = 0;
  for (const uint32_t word : found) dirt += word == kDirt ? 1 : 0;
  CHECK(dirt == 0, "%zu words of another program are in memory that is new", dirt);
  return fine;
}

static bool frees(int count) {
  bool fine = true;
  for (int i = 0; fine && i < count; ++i) {
    void* memory = nullptr;
    fine = good(cudaMalloc(&memory, 4096)) && good(cudaFree(memory));
  }
  return fine;
}

static bool slow(int seconds, int behind) {
  uint32_t* words = nullptr;
  void* freed = nullptr;
  bool fine = good(cudaMalloc(&words, 4096)) && good(cudaMalloc(&freed, 4096)) &&
              good(cudaMemset(words, 0, 4096)) && good(cudaDeviceSynchronize());
  const auto launch = [&](uint32_t turns) {
    turn<<<1, 1>>>(words, turns);
    return good(cudaGetLastError());
  };
  uint32_t turns = 1 << 16;
  double took = 0;
  while (fine && took < 0.05) {
    turns *= 2;
    const auto begun = std::chrono::steady_clock::now();
    fine = launch(turns) && good(cudaDeviceSynchronize());
    took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  }
  for (double left = seconds; fine && left > 0; left -= took) fine = launch(turns);
  std::printf("queued\n");
  std::fflush(stdout);
  fine = fine && good(cudaFree(freed));
  for (int i = 0; fine && i < behind; ++i) fine = launch(1);
  return fine && good(cudaDeviceSynchronize()) && good(cudaFree(words));
}

int main(int argc, char** argv) {
  (void)argc, (void)argv;
  constexpr uint32_t kCount = 16384;
  uint32_t* words = nullptr;
  uint32_t done = 0;
  std::vector<uint32_t> host(kCount);
  if (good(cudaMalloc(&words, kCount * 4)) && good(cudaMemset(words, 0, kCount * 4)))
    good(cudaDeviceSynchronize());
  char line[256];
  std::printf(g_error == cudaSuccess ? "ready\n" : "error %s\n", cudaGetErrorName(g_error));
  std::fflush(stdout);
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const std::string said(line);
    const int count = std::atoi(said.c_str() + said.find(' ') + 1);
    g_error = cudaSuccess;
    bool fine = true;
    if (said.rfind("step", 0) == 0) {
      for (int i = 0; fine && i < count; ++i) {
        addOne<<<kCount / 256, 256>>>(words, kCount);
        fine = good(cudaGetLastError());
      }
      done += uint32_t(count);
      fine = fine && good(cudaMemcpy(host.data(), words, kCount * 4, cudaMemcpyDeviceToHost));
      for (uint32_t i = 0; fine && i < kCount; ++i) {
        CHECK(host[i] == done, "word %u is %u, expected %u", i, host[i], done);
      }
    } else if (said.rfind("copy", 0) == 0) {
      std::vector<uint32_t> big(1 << 20), back(1 << 20);
      uint32_t* room = nullptr;
      fine = good(cudaMalloc(&room, big.size() * 4));
      for (int i = 0; fine && i < count; ++i) {
        for (size_t k = 0; k < big.size(); ++k) big[k] = uint32_t(k * 2654435761u + uint32_t(i));
        fine = good(cudaMemcpy(room, big.data(), big.size() * 4, cudaMemcpyHostToDevice)) &&
               good(cudaMemcpy(back.data(), room, big.size() * 4, cudaMemcpyDeviceToHost));
        if (fine) CHECK(big == back, "copy %d came back otherwise", i);
      }
      if (fine) fine = good(cudaFree(room));
    } else if (said.rfind("bulk", 0) == 0) {
      fine = bulk(count);
    } else if (said.rfind("lost", 0) == 0) {
      // A launch that can't be made, in a thread that asks for nothing after it: who waits for the
      // context hears of it, if not the launch itself.
      cudaStream_t gone;
      fine = good(cudaStreamCreate(&gone)) && good(cudaStreamDestroy(gone));
      cudaError_t launched = cudaSuccess;
      std::thread([&] {
        addOne<<<kCount / 256, 256, 0, gone>>>(words, kCount);
        launched = cudaPeekAtLastError();
      }).join();
      fine = fine && good(launched) && good(cudaDeviceSynchronize());
      (void)cudaGetLastError();  // told
    } else if (said.rfind("threads", 0) == 0) {
      fine = threads(words, kCount, count);
      done += uint32_t(count);
    } else if (said.rfind("functions", 0) == 0) {
      fine = functions(count);
    } else if (said.rfind("dirty", 0) == 0) {
      fine = dirty(count);
    } else if (said.rfind("scan", 0) == 0) {
      fine = scan(count);
    } else if (said.rfind("slow", 0) == 0) {
      fine = slow(count, 0);
    } else if (said.rfind("behind", 0) == 0) {
      fine = slow(count, 100000);
    } else if (said.rfind("frees", 0) == 0) {
      fine = frees(count);
    } else if (said.rfind("bad", 0) == 0) {
      spoil<<<1, 1>>>(reinterpret_cast<uint32_t*>(0x4000));
      fine = good(cudaDeviceSynchronize());
    }
    if (fine) {
      std::printf("ok %u\n", done);
    } else {
      std::printf("error %s\n", cudaGetErrorName(g_error));
    }
    std::fflush(stdout);
  }
  return apps::ok("steps: %u", done);
}
