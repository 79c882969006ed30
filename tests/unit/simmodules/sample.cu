// Kernels and variables of every kind that the module tests look at.
#include <cooperative_groups.h>

struct Mixed {
  int a;
  double b;
  char c[20];
};
struct Large {
  char bytes[5000];
};

extern "C" {
__device__ int counter = 7;
__device__ float zeros[1000];
__constant__ float table[16] = {1, 2, 3};
__managed__ int managed[5] = {10, 20, 30};

__global__ void vectorAdd(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

__global__ void mixed(int* out, Mixed m, float f) {
  *out = m.a + static_cast<int>(m.b) + m.c[19] + static_cast<int>(f);
}

__global__ void large(Large l, int* out) { *out = l.bytes[4999]; }

__global__ void bump(int* out) {
  out[0] = atomicAdd(&counter, 1);
  out[1] = static_cast<int>(table[1] + zeros[3]);
}

__global__ void managedSum(int* out) { *out = managed[0] + managed[1] + managed[2]; }

__global__ void __launch_bounds__(128) reverse(int* data) {
  extern __shared__ int dynamic[];
  __shared__ int fixed[128];
  dynamic[threadIdx.x] = data[threadIdx.x];
  fixed[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] =
      (fixed[blockDim.x - 1 - threadIdx.x] + dynamic[blockDim.x - 1 - threadIdx.x]) / 2;
}

// Every block adds, all wait for each other, every block reads the total.
__global__ void gridTotal(int* total, int* out) {
  if (threadIdx.x == 0) atomicAdd(total, 1 + static_cast<int>(blockIdx.x));
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) out[blockIdx.x] = *total;
}

__global__ void storeTo(int* where) { *where = 1; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void increment(int* value, int by) { atomicAdd(value, by); }
}
