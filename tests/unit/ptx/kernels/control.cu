// Divergence, loops, calls, barriers, warp operations.
#include <cooperative_groups.h>
#include <cassert>
#include <cstdint>
#include <cstdio>
namespace cg = cooperative_groups;

extern "C" __global__ void collatz(const unsigned* in, unsigned* out, unsigned* active, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned x = in[i];
  unsigned steps = 0;
  while (x != 1) {
    if (x & 1) {
      if (steps % 3 == 0)
        x = 3 * x + 1;
      else
        x = x * 3 + 1;
    } else {
      x >>= 1;
    }
    ++steps;
    if (steps > 1000) break;
  }
  active[i] = __activemask();  // all lanes are together again
  out[i] = steps;
}

extern "C" __global__ void switches(const int* in, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int r = 0;
  switch (in[i]) {
    case 0:
      r = i * 3;
      break;
    case 1:
      r = i ^ 0x55;
      break;
    case 2:
      r = i + 100;
      [[fallthrough]];
    case 3:
      r += 7;
      break;
    case 4:
      for (int k = 0; k < i % 9; ++k) r += k * k;
      break;
    case 5:
      r = -i;
      break;
    case 6:
      return;
    default:
      r = 42;
  }
  out[i] = r;
}

__device__ __noinline__ unsigned fibonacci(unsigned n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__device__ __noinline__ int ackermann(int m, int n) {
  if (m == 0) return n + 1;
  if (n == 0) return ackermann(m - 1, 1);
  return ackermann(m - 1, ackermann(m, n - 1));
}
extern "C" __global__ void recursion(unsigned* out) {
  out[threadIdx.x] =
      fibonacci(threadIdx.x % 13) + 1000 * ackermann(threadIdx.x % 3, threadIdx.x % 4);
}
__device__ __noinline__ int endless(int n) { return n < 0 ? 0 : endless(n + 1) + threadIdx.x + n; }
extern "C" __global__ void overflow(int* out) { out[threadIdx.x] = endless(1); }

struct Shape {
  __device__ virtual int area() const = 0;
};
struct Square : Shape {
  int a;
  __device__ __noinline__ int area() const override { return a * a; }
};
struct Rectangle : Shape {
  int a, b;
  __device__ __noinline__ int area() const override { return a * b; }
};
typedef int (*Function)(int);
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ __noinline__ int negate(int x) { return -x; }
__device__ Function table[3] = {twice, square, negate};
extern "C" __global__ void pointers(int* out) {
  const int i = threadIdx.x;
  Square s;
  s.a = i;
  Rectangle r;
  r.a = i;
  r.b = 3;
  const Shape* shape = i % 2 ? (const Shape*)&s : (const Shape*)&r;
  out[i] = table[i % 3](i) * 1000 + shape->area();
}

extern "C" __global__ void transpose_sum(const int* in, int* out) {
  __shared__ int tile[32][33];
  extern __shared__ int rows[];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  tile[y][x] = in[y * 32 + x];
  if (x == 0) rows[y] = 0;
  __syncthreads();
  atomicAdd(&rows[x], tile[y][x]);
  __syncthreads();
  out[y * 32 + x] = tile[x][y] + rows[y];
}

extern "C" __global__ void barrier_votes(const int* in, int* out) {
  const int i = threadIdx.x;
  const int count = __syncthreads_count(in[i] > 0);
  const int all = __syncthreads_and(in[i] > -100);
  const int any = __syncthreads_or(in[i] == 77);
  out[i] = count * 4 + all * 2 + any;
}

extern "C" __global__ void early_exit(int* out, int n) {
  if (threadIdx.x % 3 == 1) return;
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, (int)threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = sum;
}

// Half of the warps produce, half consume, through named barriers.
extern "C" __global__ void named_barriers(int* out) {
  __shared__ int box[64];
  const int i = threadIdx.x;
  for (int round = 0; round < 5; ++round) {
    if (i < 64) {
      asm volatile("bar.sync 2, 128;");
      box[i] = i * round;
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    } else {
      asm volatile("bar.arrive 2, 128;");
      asm volatile("bar.sync 1, 128;" ::: "memory");
      out[round * 64 + i - 64] = box[127 - i];
    }
  }
}

extern "C" __global__ void divergent_barrier(int* out) {
  __shared__ int x;
  if (threadIdx.x < 16) {
    if (threadIdx.x == 0) x = 5;
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = x;
}

extern "C" __global__ void warp_ops(const int* in, int* out) {
  const int i = threadIdx.x;
  const int lane = i & 31;
  int* const r = out + i * 16;
  const int x = in[i];
  r[0] = __shfl_sync(~0u, x, (lane * 7) & 31);
  r[1] = __shfl_up_sync(~0u, x, 3);
  r[2] = __shfl_down_sync(~0u, x, 5);
  r[3] = __shfl_xor_sync(~0u, x, 9);
  r[4] = __shfl_sync(~0u, x, lane + 2, 8);
  r[5] = __shfl_down_sync(~0u, x, 3, 16);
  r[6] = __ballot_sync(~0u, x > 0);
  r[7] = __any_sync(~0u, x == 3) + 2 * __all_sync(~0u, x > -1000);
  r[8] = __match_any_sync(~0u, x & 3);
  int pred;
  r[9] = __match_all_sync(~0u, x >> 30 << 30, &pred) + pred;
  const double d = __shfl_xor_sync(~0u, x * 0.5, 1);
  r[10] = (int)(d * 4);
  if (lane % 2)
    r[11] = __shfl_sync(0xAAAAAAAAu, x, 5);
  else
    r[11] = __shfl_sync(0x55555555u, x, 6);
  __syncwarp();
  cg::coalesced_group g = cg::coalesced_threads();
  r[12] = g.size();
  if (x > 0) {
    cg::coalesced_group h = cg::coalesced_threads();
    r[13] = h.size() * 100 + h.thread_rank();
  } else {
    r[13] = -1;
  }
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int sum = x;
  for (int k = 4; k; k /= 2) sum += tile.shfl_xor(sum, k);
  r[14] = sum;
  r[15] = __activemask();
}

// Each lane takes the same lock in turn: needs independent progress of a warp's lanes.
extern "C" __global__ void spin_lock(int* lock, int* counter) {
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  const int value = *(volatile int*)counter;
  *(volatile int*)counter = value + 1;
  __threadfence();
  atomicExch(lock, 0);
}

// One block waits for what a later one writes.
extern "C" __global__ void wait_for_other(volatile int* flag, int* out) {
  if (blockIdx.x == 0) {
    while (*flag != (int)gridDim.x - 1) {
    }
    out[0] = 1;
  } else {
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd((int*)flag, 1);
    }
  }
}

extern "C" __global__ void grid_sync(int* data, int* out) {
  cg::grid_group grid = cg::this_grid();
  const int i = grid.thread_rank();
  const int n = grid.size();
  for (int round = 0; round < 3; ++round) {
    data[i] = i + round;
    grid.sync();
    out[i] += data[(i + n / 2) % n];
    grid.sync();
  }
}

extern "C" __global__ void prints(int n) {
  if ((int)threadIdx.x < n) {
    printf("thread %d of %u: %5.2f %s %c %lld %x %%\n", threadIdx.x, blockDim.x, threadIdx.x * 0.5,
           "text", 'c', 1234567890123LL, 255u);
  }
}
extern "C" __global__ void asserts(const int* in) { assert(in[threadIdx.x] >= 0); }
extern "C" __global__ void traps(const int* in) {
  if (in[threadIdx.x] < 0) __trap();
}
extern "C" __global__ void deadlock() {
  if (threadIdx.x < 32) asm volatile("bar.sync 3, 64;");
}
extern "C" __global__ void endless_loop(volatile int* p) {
  while (*p == 0) {
  }
}

__constant__ int constants[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ int counters[4] = {1, 2, 3, 4};
__device__ int* pointer_to_counter = &counters[2];
extern "C" __global__ void globals(int* out) {
  out[threadIdx.x] = constants[threadIdx.x % 8] + *pointer_to_counter;
  if (threadIdx.x == 0) counters[1] = 100;
}

struct Big {
  int a[20];
  double d;
  char c;
};
__device__ __noinline__ Big change(Big b, int k) {
  b.a[k % 20] += k;
  b.d *= 2;
  return b;
}
extern "C" __global__ void by_value(const __grid_constant__ Big in, Big* out) {
  out[threadIdx.x] = change(in, threadIdx.x);
  out[threadIdx.x].c = *(&in.c);
}

// Memory from the stack: a different amount for each thread, in a function beside the caller's own,
// in a loop, and given back.
__device__ __noinline__ int sumOfDoubles(const int* values, int n) {
  int* const copy = (int*)alloca(n * sizeof(int));
  for (int i = 0; i < n; ++i) copy[i] = values[i] * 2;
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += copy[n - 1 - i];
  return sum;
}
__device__ __noinline__ int nested(int depth, int n) {
  int* const mine = (int*)alloca(n * sizeof(int));
  for (int i = 0; i < n; ++i) mine[i] = depth + i;
  const int below = depth == 0 ? 0 : nested(depth - 1, n + 1);
  int sum = below;
  for (int i = 0; i < n; ++i) sum += mine[i];
  return sum;
}
extern "C" __global__ void from_stack(int* out, int n) {
  int own[4] = {n, n + 1, n + 2, n + 3};
  const int count = threadIdx.x % 13 + n;
  int* const values = (int*)alloca(count * sizeof(int));
  for (int i = 0; i < count; ++i) values[i] = i * threadIdx.x;
  int sum = 0;
  for (int k = 0; k < 50; ++k) sum += sumOfDoubles(values, count) + own[k % 4];
  for (int k = 1; k < 5; ++k) {
    char* const more = (char*)alloca(k);
    for (int i = 0; i < k; ++i) more[i] = (char)(i * k);
    for (int i = 0; i < k; ++i) sum += more[i];
  }
  if (threadIdx.x % 3 == 0) sum += nested(5, threadIdx.x % 4 + 1);
  for (int i = 0; i < count; ++i) sum += values[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
extern "C" __global__ void saved_stack(unsigned long long* out) {
  unsigned long long before, after, first, second;
  asm volatile("stacksave.u64 %0;" : "=l"(before));
  asm volatile("alloca.u64 %0, %1;" : "=l"(first) : "l"(threadIdx.x * 16ull + 8));
  asm volatile("stackrestore.u64 %0;" ::"l"(before));
  asm volatile("alloca.u64 %0, %1, 64;" : "=l"(second) : "l"(8ull));
  asm volatile("stackrestore.u64 %0;\n\tstacksave.u64 %1;" : "+l"(before), "=l"(after));
  out[threadIdx.x * 2] = (first - before) | second % 64 << 8;
  out[threadIdx.x * 2 + 1] = after - before;
}

// Parts of a warp that each name their own members in one instruction, in one piece or come apart.
extern "C" __global__ void teams(const int* in, unsigned* out, int apart) {
  const unsigned lane = threadIdx.x % 32;
  const int x = in[threadIdx.x];
  const unsigned mask = (lane < 8 ? 0xFFu : lane < 20 ? 0xFFF00u : 0xFFF00000u);
  if (apart) {
    for (unsigned i = 0; i < lane * 5 % 7; ++i) __nanosleep(10);
  }
  unsigned* const r = out + threadIdx.x * 6;
  int same = 0;
  r[0] = __ballot_sync(mask, x > 0);
  r[1] = __any_sync(mask, x == 3) | __all_sync(mask, x > -9) << 1;
  r[2] = __match_any_sync(mask, x & 3);
  r[3] = __match_all_sync(mask, (long long)(x >> 4), &same);
  r[3] |= same << 31;
  __syncwarp(mask);
  r[4] = __shfl_sync(mask, x, __ffs(mask) - 1);
#if __CUDA_ARCH__ >= 800
  r[5] = __reduce_add_sync(mask, x);
#else
  r[5] = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) r[5] += __shfl_sync(mask, x, i);
  }
#endif
}
