// A kernel's fault with a host function behind it, which the driver does not call then, and a
// kernel behind that which reaches managed memory. Waiters for functions hear that this one never
// comes: OL_TEST_CALL says which call is made next ("nothing behind" in OL_TEST_BEHIND: the
// function is the last in its stream). Each returns, with what it returns natively.
#include <unistd.h>

#include <cstring>
#include <string>

#include "common.h"

__global__ void late(unsigned* at, unsigned turns, unsigned* bad) {
  unsigned x = 1;
  for (unsigned i = 0; i < turns; ++i) x = x * 1664525u + 1013904223u;
  *at += x;
  *bad = 3;
}
__global__ void touch(unsigned* words) { words[threadIdx.x] += 1; }
__global__ void other(unsigned* words) { words[threadIdx.x] += 7; }

static void CUDART_CB unreached(void*) { apps::fail("the function behind the fault was called"); }

static std::string setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

int main(int argc, char** argv) {
  apps::parse(argc, argv);
  const std::string call = setting("OL_TEST_CALL", "free");
  constexpr size_t kBytes = 4 << 20;
  unsigned *memory, *more, *managed;
  RUNTIME_OK(cudaMalloc(&memory, kBytes));
  RUNTIME_OK(cudaMalloc(&more, kBytes));
  RUNTIME_OK(cudaMallocManaged(&managed, kBytes));
  std::memset(managed, 0, kBytes);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  touch<<<1, 32, 0, stream>>>(managed);
  late<<<1, 1, 0, stream>>>(memory, 1, memory);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  // The kernel runs until what is behind it is there.
  late<<<1, 1, 0, stream>>>(memory, 30000000, reinterpret_cast<unsigned*>(16));
  RUNTIME_OK(cudaLaunchHostFunc(stream, unreached, nullptr));
  if (setting("OL_TEST_BEHIND", "kernel") == "kernel") touch<<<1, 32, 0, stream>>>(managed);
  if (call != "free now")
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress, "%s", "there was no fault");
  cudaError_t result = cudaErrorIllegalAddress;
  if (call == "free" || call == "free now") {
    result = cudaFree(more);
  } else if (call == "free managed") {
    result = cudaFree(managed);
  } else if (call == "destroy stream") {
    (void)cudaStreamDestroy(stream);
  } else if (call == "first launch") {
    other<<<1, 32>>>(more);
    result = cudaGetLastError();
  } else if (call == "reset") {
    RUNTIME_OK(cudaDeviceReset());
  } else {
    apps::fail("no call is named %s", call.c_str());
  }
  CHECK(result == cudaErrorIllegalAddress, "%s: %d", call.c_str(), int(result));
  const int status = apps::ok("%s behind a fault", call.c_str());
  std::fflush(stdout);
  _exit(status);
}
