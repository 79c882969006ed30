// What needs a newer target: clusters, warp reductions, asynchronous copies, vector atomics, barriers in shared memory.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_pipeline.h>
#include <cuda/atomic>
#include <cuda/barrier>
namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) clusters(int* out) {
  __shared__ int mine;
  auto cluster = cg::this_cluster();
  if (threadIdx.x == 0) mine = (blockIdx.x + 1) * 10;
  cluster.sync();
  const int* const other = cluster.map_shared_rank(&mine, 1 - cluster.block_rank());
  out[blockIdx.x * blockDim.x + threadIdx.x] = *other + threadIdx.x * 1000;
  cluster.sync();
}

extern "C" __global__ void warp_reduce(int* values, unsigned* maxima, unsigned* elected) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  values[threadIdx.x] = cg::reduce(tile, values[threadIdx.x], cg::plus<int>());
  maxima[threadIdx.x] = __reduce_max_sync(~0u, maxima[threadIdx.x]);
  auto active = cg::coalesced_threads();
  elected[threadIdx.x] = cg::invoke_one_broadcast(active, [] { return threadIdx.x; });
}

extern "C" __global__ void async_copy(const int4* in, int4* out) {
  extern __shared__ int4 staged[];
  __pipeline_memcpy_async(&staged[threadIdx.x], &in[threadIdx.x], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  out[threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void vector_atomics(float4* sums, float* maxima, int n) {
  atomicAdd(sums, make_float4(1, 2, 3, 4));
  const int i = threadIdx.x;
  if (i + 2 < n) maxima[i] = fmaxf(fmaxf(maxima[i], maxima[i + 1]), maxima[i + 2]);
}

extern "C" __global__ void shared_barrier(int* out) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ int box[128];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  for (int round = 0; round < 4; ++round) {
    box[threadIdx.x] = threadIdx.x * round;
    barrier.arrive_and_wait();
    out[threadIdx.x] += box[(threadIdx.x + 1) % blockDim.x];
    barrier.arrive_and_wait();
  }
}

struct alignas(16) Pair {
  long long a, b;
};
extern "C" __global__ void wide_cas(Pair* pair, int* counter) {
  cuda::atomic_ref<int, cuda::thread_scope_device> count(*counter);
  count.fetch_add(1, cuda::memory_order_acq_rel);
  Pair seen = *pair;
  while (true) {
    Pair next{seen.a + 1, seen.b - 1};
    Pair old;
    asm volatile(
        "{.reg .b128 c, n, o; mov.b128 c, {%3, %4}; mov.b128 n, {%5, %6}; atom.global.cas.b128 o, [%2], c, n; mov.b128 "
        "{%0, %1}, o;}"
        : "=l"(old.a), "=l"(old.b)
        : "l"(pair), "l"(seen.a), "l"(seen.b), "l"(next.a), "l"(next.b)
        : "memory");
    if (old.a == seen.a && old.b == seen.b) break;
    seen = old;
  }
}

// d = a b + c by one warp: a is 8 x 4, b 4 x 8, both by rows.
extern "C" __global__ void mma_doubles(const double* a, const double* b, const double* c, double* d) {
#if __CUDA_ARCH__ >= 800
  const unsigned lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;
  double d0, d1;
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};"
               : "=d"(d0), "=d"(d1)
               : "d"(a[row * 4 + lane % 4]), "d"(b[lane % 4 * 8 + row]), "d"(c[row * 8 + column]), "d"(c[row * 8 + column + 1]));
  d[row * 8 + column] = d0;
  d[row * 8 + column + 1] = d1;
#endif
}
