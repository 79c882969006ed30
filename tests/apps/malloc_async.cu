// Stream-ordered allocation: reuse in stream order, frees behind running kernels, hand-over between
// streams by events, a pool of the program's own, trimming.
#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t live = options.bytes / kPiece > 4 ? options.bytes / kPiece : 4;
  cudaStream_t a, b;
  RUNTIME_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  std::vector<uint32_t> host(kPiece / 4);
  // A ring: each new block is filled, used later, verified, freed in stream order.
  std::vector<char*> ring(live, nullptr);
  std::vector<uint32_t> seeds(live);
  for (size_t step = 0; step < 3 * live; ++step) {
    const size_t slot = step % live;
    if (ring[slot] != nullptr) {
      RUNTIME_OK(cudaMemcpyAsync(host.data(), ring[slot], kPiece, cudaMemcpyDeviceToHost, a));
      RUNTIME_OK(cudaFreeAsync(ring[slot], a));
      RUNTIME_OK(cudaStreamSynchronize(a));
      apps::verifyHost(host.data(), kPiece, seeds[slot], 1, "block of the ring");
    }
    seeds[slot] = seed + uint32_t(step);
    RUNTIME_OK(cudaMallocAsync(&ring[slot], kPiece, a));
    apps::fill(ring[slot], kPiece, seeds[slot], a);
    apps::add(ring[slot], kPiece, 1, a);
  }
  // Freed while its kernel still runs, allocated again at once: stream order keeps the two apart.
  char *x, *y, *result;
  RUNTIME_OK(cudaMalloc(&result, 2 * kPiece));
  for (int round = 0; round < 4; ++round) {
    RUNTIME_OK(cudaMallocAsync(&x, kPiece, a));
    apps::fill(x, kPiece, seed + 77, a);
    RUNTIME_OK(cudaMemcpyAsync(result, x, kPiece, cudaMemcpyDeviceToDevice, a));
    RUNTIME_OK(cudaFreeAsync(x, a));
    RUNTIME_OK(cudaMallocAsync(&y, kPiece, a));
    apps::fill(y, kPiece, seed + 78, a);
    RUNTIME_OK(cudaMemcpyAsync(result + kPiece, y, kPiece, cudaMemcpyDeviceToDevice, a));
    RUNTIME_OK(cudaFreeAsync(y, a));
    RUNTIME_OK(cudaStreamSynchronize(a));
    apps::verify(result, kPiece, seed + 77, 0, "first user of a block");
    apps::verify(result + kPiece, kPiece, seed + 78, 0, "second user of a block");
  }
  // Made on a, used and freed on b behind an event.
  cudaEvent_t made;
  RUNTIME_OK(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  for (int round = 0; round < 4; ++round) {
    RUNTIME_OK(cudaMallocAsync(&x, kPiece, a));
    apps::fill(x, kPiece, seed + uint32_t(round), a);
    RUNTIME_OK(cudaEventRecord(made, a));
    RUNTIME_OK(cudaStreamWaitEvent(b, made, 0));
    apps::add(x, kPiece, 9, b);
    RUNTIME_OK(cudaMemcpyAsync(host.data(), x, kPiece, cudaMemcpyDeviceToHost, b));
    RUNTIME_OK(cudaFreeAsync(x, b));
    RUNTIME_OK(cudaStreamSynchronize(b));
    apps::verifyHost(host.data(), kPiece, seed + uint32_t(round), 9,
                     "block handed to the other stream");
  }
  for (char* p : ring) RUNTIME_OK(cudaFreeAsync(p, a));
  RUNTIME_OK(cudaStreamSynchronize(a));
  cudaMemPool_t pool, mine;
  RUNTIME_OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t threshold = kPiece * 4;
  RUNTIME_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  RUNTIME_OK(cudaMemPoolTrimTo(pool, 0));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  RUNTIME_OK(cudaMemPoolCreate(&mine, &properties));
  RUNTIME_OK(cudaMallocFromPoolAsync(&x, kPiece, mine, a));
  apps::fill(x, kPiece, seed, a);
  RUNTIME_OK(cudaStreamSynchronize(a));
  apps::verify(x, kPiece, seed, 0, "block of a pool of our own");
  RUNTIME_OK(cudaFree(x));  // the synchronous free takes it too
  RUNTIME_OK(cudaMemPoolDestroy(mine));
  return apps::ok("malloc_async with %zu live blocks", live);
}
