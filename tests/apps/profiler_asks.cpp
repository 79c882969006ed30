// A program that asks the driver for the table by which profilers (CUPTI) see kernels, and goes on
// without it where it is not there: what it computes does not depend on it.
#include <cuda.h>

#include "common.h"

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  // CUPTI asks for this one first.
  const CUuuid uuid{{'\x2c', '\x8e', '\x0a', '\xd8', '\x07', '\x10', '\xab', '\x4e', '\x90', '\xdd',
                     '\x54', '\x71', '\x9f', '\xe5', '\xf7', '\x4b'}};
  CHECK(cuInit(0) == CUDA_SUCCESS, "no driver");
  const void* table = nullptr;
  for (int i = 0; i < 2; ++i) {
    const CUresult result = cuGetExportTable(&table, &uuid);
    CHECK((result == CUDA_SUCCESS) == (table != nullptr), "result %d, table %p", int(result),
          table);
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  uint32_t word = 0;
  CHECK(cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
            cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
            cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(&memory, 4) == CUDA_SUCCESS &&
            cuMemsetD32(memory, 7, 1) == CUDA_SUCCESS &&
            cuMemcpyDtoH(&word, memory, 4) == CUDA_SUCCESS && word == 7,
        "a word is %u, expected 7", word);
  return apps::ok("profiler_asks");
}
