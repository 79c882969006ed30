// Host functions that wait for what the program does after it has launched kernels behind them, and
// then touch managed memory that these kernels reach: also memory that the kernels come to by a
// pointer which the function writes.
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "common.h"

constexpr uint32_t kWords = (4u << 20) / 4, kUsed = 32;

__global__ void change(uint32_t* words, uint32_t factor) {
  words[threadIdx.x] = words[threadIdx.x] * factor + 1;
}
__global__ void changeThrough(uint32_t** at, uint32_t factor) {
  (*at)[threadIdx.x] = (*at)[threadIdx.x] * factor + 2;
}

struct Call {
  uint32_t* words;
  uint32_t** at;
  uint32_t* leads_to;
  std::atomic<bool> go{false};
  std::atomic<bool> done{false};
};

// Behind a kernel that is behind the other function: it touches what that kernel reaches.
void addFive(void* data) {
  auto* const words = static_cast<uint32_t*>(data);
  for (uint32_t i = 0; i < kUsed; ++i) words[i] += 5;
}

void onHost(void* data) {
  auto& call = *static_cast<Call*>(data);
  while (!call.go) usleep(100);
  for (uint32_t i = 0; i < kUsed; ++i) call.words[i] += 100;
  *call.at = call.leads_to;
  call.done = true;
}

int main(int argc, char** argv) {
  apps::parse(argc, argv);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("the CPU may not touch managed memory while a kernel is queued");
  uint32_t *words, *others[2], **at;
  RUNTIME_OK(cudaMallocManaged(&words, size_t{kWords} * 4));
  for (uint32_t*& other : others) {
    RUNTIME_OK(cudaMallocManaged(&other, size_t{kWords} * 4));
    std::memset(other, 0, size_t{kWords} * 4);
  }
  RUNTIME_OK(cudaMallocManaged(&at, size_t{kWords} * 4));
  std::memset(words, 0, size_t{kWords} * 4);
  *at = others[0];
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  change<<<1, kUsed, 0, stream>>>(words, 3);  // the code of both is there
  changeThrough<<<1, kUsed, 0, stream>>>(at, 3);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  uint32_t expected = 1, through[2] = {2, 0};
  for (uint32_t round = 0; round < 2; ++round) {
    Call call{words, at, others[(round + 1) % 2]};
    change<<<1, kUsed, 0, stream>>>(words, 3);
    RUNTIME_OK(cudaLaunchHostFunc(stream, onHost, &call));
    change<<<1, kUsed, 0, stream>>>(words, 5);
    RUNTIME_OK(cudaLaunchHostFunc(stream, addFive, words));
    changeThrough<<<1, kUsed, 0, stream>>>(at, 7);
    RUNTIME_OK(cudaGetLastError());
    CHECK(!call.done, "a launch has waited for a function that waits for it");
    call.go = true;
    RUNTIME_OK(cudaStreamSynchronize(stream));
    expected = (expected * 3 + 1 + 100) * 5 + 1 + 5;
    uint32_t& led = through[(round + 1) % 2];
    led = led * 7 + 2;
    CHECK(words[kUsed - 1] == expected, "round %u has made %u, not %u", round, words[kUsed - 1],
          expected);
    for (uint32_t i = 0; i < 2; ++i)
      CHECK(others[i][kUsed - 1] == through[i], "round %u has made %u of buffer %u, not %u", round,
            others[i][kUsed - 1], i, through[i]);
  }
  // Freed while a kernel behind the function reaches it.
  Call call{words, at, others[0]};
  RUNTIME_OK(cudaLaunchHostFunc(stream, onHost, &call));
  change<<<1, kUsed, 0, stream>>>(words, 5);
  call.go = true;
  RUNTIME_OK(cudaFree(words));
  RUNTIME_OK(cudaStreamDestroy(stream));
  RUNTIME_OK(cudaDeviceSynchronize());
  return apps::ok("host functions that wait for their launcher");
}
