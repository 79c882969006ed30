// Looks like a CUDA driver to whoever only loads it.
#include <cuda.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED CUresult CUDAAPI cuInit(unsigned) { return CUDA_ERROR_NO_DEVICE; }
EXPORTED CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
