// A kernel that writes where nothing is: the error comes at the next synchronisation and stays.
#include <cstdio>

__global__ void store(int* where) { *where = 1; }

int main() {
  store<<<1, 1>>>(reinterpret_cast<int*>(0x4000));
  const cudaError_t first = cudaDeviceSynchronize();
  const cudaError_t second = cudaDeviceSynchronize();
  std::printf("%s %s\n", cudaGetErrorName(first), cudaGetErrorName(second));
  return first == cudaErrorIllegalAddress && second == cudaErrorIllegalAddress ? 0 : 1;
}
