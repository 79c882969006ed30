// Relocatable code of two files, linked by nvcc: the program holds machine code alone, which is
// refused by name.
#include <cstdio>

__device__ int twice(int x);
__global__ void kernel(int* value) { *value = twice(*value); }

int main() {
  int* value;
  if (cudaMalloc(&value, 4) != cudaSuccess) return 1;
  kernel<<<1, 1>>>(value);
  const cudaError_t error = cudaGetLastError();
  std::printf("%s\n", cudaGetErrorName(error));
  return error == cudaErrorNoKernelImageForDevice ? 0 : 1;
}
