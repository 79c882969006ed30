// Looks like a CUDA driver to whoever only loads it. With FAKE_VRAM, the bytes that it has, there
// is a device.
#include <cuda.h>

#include <cstdlib>

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED CUresult CUDAAPI cuInit(unsigned) {
  return std::getenv("FAKE_VRAM") != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
EXPORTED CUresult CUDAAPI cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
EXPORTED CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
EXPORTED CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  const char* const vram = std::getenv("FAKE_VRAM");
  if (vram == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = std::strtoull(vram, nullptr, 10);
  return CUDA_SUCCESS;
}
EXPORTED CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
