// cudaFree of memory that a running kernel uses, allocation of the same size right after, and
// stream-ordered reuse across streams: the late kernel must not write into the new owner's memory.
#include "common.h"

/// Writes the buffer again and again: it is still running when it is freed.
__global__ void scribble(uint32_t* out, uint32_t count, uint32_t rounds) {
  for (uint32_t r = 0; r < rounds; ++r) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) out[size_t(i) * 64] = r + i;
  }
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr size_t kPiece = size_t{2} << 20;
  const uint32_t samples = uint32_t(kPiece / 256);
  cudaStream_t a, b;
  RUNTIME_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  apps::Pressure pressure(options.bytes);
  for (int round = 0; round < 4; ++round) {
    uint32_t *x, *y;
    RUNTIME_OK(cudaMalloc(&x, kPiece));
    scribble<<<1, 256, 0, a>>>(x, samples, 20);
    pressure.apply(b);
    RUNTIME_OK(cudaFree(x));  // waits for the kernel, as it always did
    RUNTIME_OK(cudaMalloc(&y, kPiece));
    apps::fill(y, kPiece, seed, b);
    RUNTIME_OK(cudaStreamSynchronize(b));
    RUNTIME_OK(cudaStreamSynchronize(a));
    apps::verify(y, kPiece, seed, 0, "memory allocated after a free under a running kernel");
    RUNTIME_OK(cudaFree(y));
  }
  // The same where nobody can name the stream of the kernel any more.
  for (int round = 0; round < 4; ++round) {
    uint32_t *x, *y;
    cudaStream_t gone;
    RUNTIME_OK(cudaStreamCreateWithFlags(
        &gone, round % 2 == 0 ? cudaStreamNonBlocking : cudaStreamDefault));
    RUNTIME_OK(cudaMalloc(&x, kPiece));
    scribble<<<1, 256, 0, gone>>>(x, samples, 40);
    RUNTIME_OK(cudaStreamDestroy(gone));
    RUNTIME_OK(cudaFree(x));
    RUNTIME_OK(cudaMalloc(&y, kPiece));
    apps::fill(y, kPiece, seed, b);
    RUNTIME_OK(cudaStreamSynchronize(b));
    RUNTIME_OK(cudaDeviceSynchronize());
    apps::verify(y, kPiece, seed, 0, "memory freed under a kernel of a stream that is gone");
    RUNTIME_OK(cudaFree(y));
  }
  for (int round = 0; round < 4; ++round) {
    uint32_t *x, *y;
    RUNTIME_OK(cudaMallocAsync(&x, kPiece, a));
    scribble<<<1, 256, 0, a>>>(x, samples, 20);
    RUNTIME_OK(cudaFreeAsync(x, a));
    RUNTIME_OK(
        cudaMallocAsync(&y, kPiece, b));  // not ordered with a: may not be x while the kernel runs
    apps::fill(y, kPiece, seed + 1, b);
    std::vector<uint32_t> got(kPiece / 4);
    RUNTIME_OK(cudaMemcpyAsync(got.data(), y, kPiece, cudaMemcpyDeviceToHost, b));
    RUNTIME_OK(cudaStreamSynchronize(b));
    RUNTIME_OK(cudaStreamSynchronize(a));
    apps::verifyHost(got.data(), kPiece, seed + 1, 0, "stream-ordered memory of another stream");
    apps::verify(y, kPiece, seed + 1, 0, "the same after the kernel ended");
    RUNTIME_OK(cudaFreeAsync(y, b));
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  pressure.check();
  return apps::ok("free_running");
}
