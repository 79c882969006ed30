// The CPU touches managed memory that a kernel has used which is known to be over, while a kernel
// runs behind it that waits for the CPU. The program knows the end of the first in several ways.
#include <cstring>

#include "common.h"

__global__ void touch(unsigned* words) { words[threadIdx.x] += 1; }
__global__ void tell(volatile unsigned* flag) { *flag = 1; }
__global__ void spin(volatile unsigned* flag) {
  while (*flag == 0) {
  }
}

int main(int argc, char** argv) {
  apps::parse(argc, argv);
  enum { kStream, kQuery, kEvent, kDevice, kFlag, kOtherStream, kWays };
  constexpr size_t kBytes = 4 << 20;
  unsigned *managed, *pinned;
  RUNTIME_OK(cudaMallocManaged(&managed, kBytes));
  RUNTIME_OK(cudaMallocHost(&pinned, 4096));
  std::memset(managed, 0, kBytes);
  volatile unsigned* const go = pinned;
  volatile unsigned* const told = pinned + 64;
  cudaStream_t stream, other;
  cudaEvent_t event;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  RUNTIME_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  // Code is loaded by then.
  *go = 1;
  touch<<<1, 32, 0, stream>>>(managed);
  tell<<<1, 1, 0, stream>>>(pinned + 64);
  spin<<<1, 1, 0, stream>>>(pinned);
  RUNTIME_OK(cudaDeviceSynchronize());
  unsigned rounds = 0;
  for (unsigned again = 0; again < 4; ++again) {
    for (unsigned way = 0; way < kWays; ++way, ++rounds) {
      *go = *told = 0;
      touch<<<1, 32, 0, stream>>>(managed);
      if (way == kFlag) tell<<<1, 1, 0, stream>>>(pinned + 64);
      if (way == kEvent) RUNTIME_OK(cudaEventRecord(event, stream));
      if (way == kStream || way == kOtherStream) RUNTIME_OK(cudaStreamSynchronize(stream));
      while (way == kQuery && cudaStreamQuery(stream) == cudaErrorNotReady) {
      }
      if (way == kEvent) RUNTIME_OK(cudaEventSynchronize(event));
      if (way == kDevice) RUNTIME_OK(cudaDeviceSynchronize());
      while (way == kFlag && *told == 0) {
      }
      spin<<<1, 1, 0, way == kOtherStream ? other : stream>>>(pinned);
      RUNTIME_OK(cudaGetLastError());
      for (unsigned i = 0; i < 32; ++i) managed[i] += 10;
      *go = 1;
      RUNTIME_OK(cudaDeviceSynchronize());
    }
  }
  for (unsigned i = 0; i < 32; ++i)
    CHECK(managed[i] == 1 + 11 * rounds, "word %u is %u", i, managed[i]);
  return apps::ok("%u touches beside a kernel that waits", rounds);
}
