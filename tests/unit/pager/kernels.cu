// Kernels of the pager's tests. Values lie `step` words apart, so that an interpreter touches few
// words of each page.
typedef unsigned long long u64;

__device__ u64 mix(u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ u64* g_pointer;
__device__ u64* g_table[4];

extern "C" {

__global__ void fill(u64* to, u64 count, u64 step, u64 seed) {
  for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    to[i * step] = mix(seed + i);
}

__global__ void addTo(u64* to, u64 count, u64 step, u64 value) {
  for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    to[i * step] += value;
}

__global__ void copyTo(u64* to, const u64* from, u64 count, u64 step) {
  for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    to[i * step] = from[i * step];
}

/// out[0] = sum of two buffers' values.
__global__ void sumTwo(u64* out, const u64* a, const u64* b, u64 count, u64 step) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  u64 sum = 0;
  for (u64 i = 0; i < count; ++i) sum += a[i * step] + b[i * step];
  *out = sum;
}

/// table[i] = base + i * stride bytes.
__global__ void buildTable(u64** table, char* base, u64 count, u64 stride) {
  const u64 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) table[i] = reinterpret_cast<u64*>(base + i * stride);
}

/// table[at] = pointer.
__global__ void setEntry(u64** table, u64 at, u64* pointer) { table[at] = pointer; }

/// out[i] = what entry i of the table points to.
__global__ void gather(u64* out, u64** table, u64 count) {
  const u64 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = *table[i];
}

/// Spends about `rounds` iterations, then does as gather.
__global__ void gatherLate(u64* out, u64** table, u64 count, u64 rounds) {
  u64 x = rounds + 1;
  for (u64 i = 0; i < rounds; ++i) x = x * 6364136223846793005ull + 1442695040888963407ull;
  if (x == 0) return;
  for (u64 i = 0; i < count; ++i) out[i] = *table[i];
}

/// Follows `depth` pointers from `first`, adds 1 to what it finds there.
__global__ void chase(u64* first, u64 depth) {
  u64* at = first;
  for (u64 i = 0; i < depth; ++i) at = reinterpret_cast<u64*>(*at);
  *at += 1;
}

/// Reads one word again and again.
__global__ void readLong(u64* out, const volatile u64* from, u64 rounds) {
  u64 sum = 0;
  for (u64 i = 0; i < rounds; ++i) sum += *from;
  *out = sum;
}

__global__ void setGlobal(u64* pointer) { g_pointer = pointer; }
__global__ void readGlobal(u64* out) { *out = *g_pointer; }
/// Spends about `rounds` iterations, then adds 1 to what the variable leads to.
__global__ void addToGlobalLate(u64 rounds) {
  u64 x = rounds + 1;
  for (u64 i = 0; i < rounds; ++i) x = x * 6364136223846793005ull + 1442695040888963407ull;
  if (x != 0 && threadIdx.x == 0) *g_pointer += 1;
}
/// Reads what the pointer at `place` leads to.
__global__ void readThrough(u64* out, u64** place) { *out = **place; }
__global__ void readGlobalTable(u64* out, u64 at) { *out = *g_table[at]; }
}
