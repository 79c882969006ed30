// A host function waits for the thread that has put it in its stream. A kernel behind it reaches
// managed memory, and gets it when the function is over. Meanwhile that thread destroys the stream
// and launches another kernel for the first time: natively both return.
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "common.h"

__global__ void touch(unsigned* words) { words[threadIdx.x] += 1; }
__global__ void first(unsigned* words) { words[threadIdx.x] += 7; }

static std::atomic<bool> go{false};
static void CUDART_CB waits(void*) {
  while (!go) usleep(100);
}

int main(int argc, char** argv) {
  apps::parse(argc, argv);
  constexpr size_t kBytes = 4 << 20;
  unsigned *managed, *memory;
  RUNTIME_OK(cudaMallocManaged(&managed, kBytes));
  RUNTIME_OK(cudaMalloc(&memory, kBytes));
  std::memset(managed, 0, kBytes);
  for (unsigned round = 0; round < 3; ++round) {
    cudaStream_t stream, beside;
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUNTIME_OK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    touch<<<1, 32, 0, stream>>>(managed);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    go = false;
    RUNTIME_OK(cudaLaunchHostFunc(stream, waits, nullptr));
    touch<<<1, 32, 0, stream>>>(managed);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaStreamDestroy(stream));
    if (round == 2) {
      first<<<1, 32, 0, beside>>>(memory);
      RUNTIME_OK(cudaGetLastError());
    }
    go = true;
    RUNTIME_OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < 32; ++i)
      CHECK(managed[i] == 2 * round + 2, "word %u of round %u is %u", i, round, managed[i]);
    RUNTIME_OK(cudaStreamDestroy(beside));
  }
  return apps::ok("a function that waits for its launcher");
}
