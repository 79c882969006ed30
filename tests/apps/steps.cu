// Does what its standard input says, a line at a time, and answers each line: for tests of what happens to sessions.
//   step N   N launches that each add 1 to every word, none waited for; then all words are compared with the count
//   copy N   N copies to the GPU and back, compared
//   bad      a kernel that writes where nothing is
// "ok COUNT", or "error NAME" when a CUDA call failed, or "WRONG ..." and status 1. Ends with its input.
#include "common.h"

#include <string>

__global__ void addOne(uint32_t* words, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] += 1;
}

__global__ void spoil(uint32_t* nowhere) { *nowhere = 1; }

static cudaError_t g_error = cudaSuccess;
static bool good(cudaError_t result) {
  if (result != cudaSuccess) g_error = result;
  return result == cudaSuccess;
}

int main(int argc, char** argv) {
  (void)argc, (void)argv;
  constexpr uint32_t kCount = 16384;
  uint32_t* words = nullptr;
  uint32_t done = 0;
  std::vector<uint32_t> host(kCount);
  if (good(cudaMalloc(&words, kCount * 4)) && good(cudaMemset(words, 0, kCount * 4))) good(cudaDeviceSynchronize());
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
