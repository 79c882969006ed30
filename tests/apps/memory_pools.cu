// Pools of the program's own: one that is destroyed while memory of it is in use, one that was its
// device's current pool, one that has a largest size.
#include "common.h"

namespace {

constexpr size_t kPiece = size_t{2} << 20;

cudaMemPool_t makePool(size_t largest = 0) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.maxSize = largest;
  cudaMemPool_t pool = nullptr;
  RUNTIME_OK(cudaMemPoolCreate(&pool, &properties));
  return pool;
}

void* allocate(cudaMemPool_t pool, cudaStream_t stream) {
  void* made = nullptr;
  RUNTIME_OK(cudaMallocFromPoolAsync(&made, kPiece, pool, stream));
  return made;
}

// The pool's memory is there until the stream has come to its free, also where work before that is
// still to be done.
void destroyed(cudaStream_t stream) {
  const cudaMemPool_t pool = makePool();
  void* const first = allocate(pool, stream);
  void* const second = allocate(pool, stream);
  void* copy = nullptr;
  RUNTIME_OK(cudaMalloc(&copy, kPiece));
  apps::fill(first, kPiece, 5, stream);
  RUNTIME_OK(cudaMemPoolDestroy(pool));
  apps::fill(second, kPiece, 6, stream);
  apps::add(first, kPiece, 3, stream);
  RUNTIME_OK(cudaMemcpyAsync(copy, first, kPiece, cudaMemcpyDeviceToDevice, stream));
  RUNTIME_OK(cudaFreeAsync(first, stream));
  apps::add(second, kPiece, 4, stream);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  apps::verify(copy, kPiece, 5, 3, "a copy of a destroyed pool's memory");
  apps::verify(second, kPiece, 6, 4, "a destroyed pool's memory");
  RUNTIME_OK(cudaMemcpyAsync(copy, second, kPiece, cudaMemcpyDeviceToDevice, stream));
  RUNTIME_OK(cudaFreeAsync(second, stream));  // the last of it
  RUNTIME_OK(cudaStreamSynchronize(stream));
  apps::verify(copy, kPiece, 6, 4, "a copy of the last of a destroyed pool's memory");
  RUNTIME_OK(cudaFree(copy));
}

// The default pool takes the place of the device's current one.
void currentDestroyed(cudaStream_t stream) {
  cudaMemPool_t standard = nullptr, current = nullptr;
  RUNTIME_OK(cudaDeviceGetDefaultMemPool(&standard, 0));
  const cudaMemPool_t pool = makePool();
  RUNTIME_OK(cudaDeviceSetMemPool(0, pool));
  RUNTIME_OK(cudaDeviceGetMemPool(&current, 0));
  CHECK(current == pool, "the device's current pool is not the one that was set");
  void *before = nullptr, *after = nullptr;
  RUNTIME_OK(cudaMallocAsync(&before, kPiece, stream));
  apps::fill(before, kPiece, 7, stream);
  RUNTIME_OK(cudaMemPoolDestroy(pool));
  RUNTIME_OK(cudaDeviceGetMemPool(&current, 0));
  CHECK(current == standard, "the default pool has not taken the place of one that was destroyed");
  RUNTIME_OK(cudaMallocAsync(&after, kPiece, stream));
  RUNTIME_OK(cudaMemcpyAsync(after, before, kPiece, cudaMemcpyDeviceToDevice, stream));
  RUNTIME_OK(cudaFreeAsync(before, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  apps::verify(after, kPiece, 7, 0, "a copy of memory of the pool that was current");
  RUNTIME_OK(cudaFreeAsync(after, stream));
}

void largest(cudaStream_t stream) {
  constexpr size_t kMost = 3;
  const cudaMemPool_t pool = makePool(kMost * kPiece);
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> pieces;
    cudaError_t end = cudaSuccess;
    while (pieces.size() <= 40) {
      void* made = nullptr;
      end = cudaMallocFromPoolAsync(&made, kPiece, pool, stream);
      if (end != cudaSuccess) break;
      pieces.push_back(made);
    }
    // Hardware rounds the largest size up.
    CHECK(pieces.size() >= kMost && pieces.size() < 40,
          "a pool of %zu MiB gives %zu pieces of %zu MiB", kMost * kPiece >> 20, pieces.size(),
          kPiece >> 20);
    CHECK(end == cudaErrorMemoryAllocation, "a pool that is full says %d", int(end));
    (void)cudaGetLastError();
    for (size_t i = 0; i < pieces.size(); ++i) apps::fill(pieces[i], kPiece, uint32_t(i), stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < pieces.size(); ++i)
      apps::verify(pieces[i], kPiece, uint32_t(i), 0, "a full pool's memory");
    for (void* piece : pieces)
      RUNTIME_OK(round == 1 ? cudaFree(piece) : cudaFreeAsync(piece, stream));
    if (round == 0) RUNTIME_OK(cudaStreamSynchronize(stream));
  }
  RUNTIME_OK(cudaMemPoolDestroy(pool));
  // A later pool is none of its memory's, also if it has the same handle.
  const cudaMemPool_t next = makePool(kMost * kPiece);
  for (size_t i = 0; i < kMost; ++i) (void)allocate(next, stream);
  RUNTIME_OK(cudaMemPoolDestroy(next));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  int pools = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, 0));
  if (pools == 0) apps::skip("no memory pools here");
  cudaStream_t stream = nullptr;
  RUNTIME_OK(cudaStreamCreate(&stream));
  apps::Pressure pressure(options.bytes);
  destroyed(stream);
  pressure.apply();
  currentDestroyed(stream);
  pressure.apply();
  largest(stream);
  RUNTIME_OK(cudaDeviceSynchronize());
  pressure.check();
  return apps::ok("memory pools");
}
