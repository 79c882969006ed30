// Kernels that need a newer target: clusters, warp reductions, asynchronous copies, vector atomics,
// barriers in shared memory.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda_pipeline.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
// Barriers are made by init(), not by their constructors.
#pragma nv_diag_suppress static_var_with_dynamic_init

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

// Copies that a barrier in shared memory is told of: by a block, of a size known to be aligned or
// not, and by a thread.
extern "C" __global__ void barrier_copies(const int* in, int* out, int words) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ alignas(16) int box[3][256];
  const auto block = cg::this_thread_block();
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  block.sync();
  const int i = threadIdx.x;
  for (int round = 0; round < 3; ++round) {
    const int* const from = in + round * 256;
    cuda::memcpy_async(block, box[0], from, words * sizeof(int), barrier);
    cuda::memcpy_async(block, box[1], from, cuda::aligned_size_t<16>(sizeof box[1]), barrier);
    cuda::memcpy_async(&box[2][i], from + i, cuda::aligned_size_t<4>(sizeof(int)), barrier);
    barrier.arrive_and_wait();
    if (i < words) out[(round * 3) * 256 + i] = box[0][words - 1 - i];
    out[(round * 3 + 1) * 256 + i] = box[1][255 - i];
    out[(round * 3 + 2) * 256 + i] = box[2][255 - i];
    barrier.arrive_and_wait();
  }
}

// Two stages of a pipeline, copies by cooperative groups, and thread copies without the count of
// them.
extern "C" __global__ void pipelines(const int* in, int* out, int rounds) {
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  __shared__ alignas(16) int stage[2][256];
  const auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  for (int round = 0, fetched = 0; round < rounds; ++round) {
    for (; fetched < rounds && fetched < round + 2; ++fetched) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, stage[fetched % 2], in + fetched * 256, sizeof stage[0], pipeline);
      pipeline.producer_commit();
    }
    pipeline.consumer_wait();
    out[round * 256 + threadIdx.x] = stage[round % 2][255 - threadIdx.x];
    pipeline.consumer_release();
  }
  block.sync();
  cg::memcpy_async(block, stage[0], in, sizeof stage[0]);
  cg::wait(block);
  out[rounds * 256 + threadIdx.x] = stage[0][(threadIdx.x + 7) % 256];
}

// By hand. r: the arrivals missing at the first one; whether the phase ended before its bytes had
// come, after, and the next.
extern "C" __global__ void bulk_copies(const int* in, int* out, int* r) {
  __shared__ alignas(16) int box[64];
  __shared__ uint64_t barrier;
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(box));
  const auto ended = [&](unsigned parity) {
    unsigned done;
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p;}"
        : "=r"(done)
        : "r"(at), "r"(parity)
        : "memory");
    return done;
  };
  if (threadIdx.x == 0) {
    uint64_t token;
    unsigned pending;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" ::"r"(at) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(at) : "memory");
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(token));
    r[0] = pending;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(at) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
    r[1] = ended(0);
    for (int i = 0; i < 2; ++i) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(to + i * 128),
          "l"(in + i * 32), "r"(128), "r"(at)
          : "memory");
    }
    r[2] = ended(0);
    r[3] = ended(1);
  }
  while (ended(0) == 0) {
  }
  __syncthreads();
  out[threadIdx.x] = box[63 - threadIdx.x];
  box[63 - threadIdx.x] += 1;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + 64),
                 "r"(to), "r"(256)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
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
        "{.reg .b128 c, n, o; mov.b128 c, {%3, %4}; mov.b128 n, {%5, %6}; atom.global.cas.b128 o, "
        "[%2], c, n; mov.b128 "
        "{%0, %1}, o;}"
        : "=l"(old.a), "=l"(old.b)
        : "l"(pair), "l"(seen.a), "l"(seen.b), "l"(next.a), "l"(next.b)
        : "memory");
    if (old.a == seen.a && old.b == seen.b) break;
    seen = old;
  }
}

// d = a b + c by one warp: a is 8 x 4, b 4 x 8, both by rows.
extern "C" __global__ void mma_doubles(const double* a, const double* b, const double* c,
                                       double* d) {
#if __CUDA_ARCH__ >= 800
  const unsigned lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;
  double d0, d1;
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};"
               : "=d"(d0), "=d"(d1)
               : "d"(a[row * 4 + lane % 4]), "d"(b[lane % 4 * 8 + row]), "d"(c[row * 8 + column]),
                 "d"(c[row * 8 + column + 1]));
  d[row * 8 + column] = d0;
  d[row * 8 + column + 1] = d1;
#endif
}
