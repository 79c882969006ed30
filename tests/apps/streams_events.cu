// Two streams joined by events, a kernel that reads one buffer for long while another stream uses
// and leaves it, the legacy default stream's order, and a stream that is destroyed with work
// pending.
#include "common.h"

__global__ void mixFrom(uint4* out, const uint4* in, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint4 v = in[i];
  v.x += value, v.y += value, v.z += value, v.w += value;
  out[i] = v;
}

/// Reads the buffer `rounds` times; the sum must not change while it runs.
__global__ void readLong(const uint32_t* in, uint32_t count, uint32_t rounds,
                         unsigned long long* sums) {
  for (uint32_t r = 0; r < rounds; ++r) {
    unsigned long long sum = 0;
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
      sum += reinterpret_cast<const volatile uint32_t*>(in)[size_t(i) * 256];
    atomicAdd(&sums[r], sum);
  }
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t pairs = options.bytes / (2 * kPiece) > 1 ? options.bytes / (2 * kPiece) : 2;
  const uint32_t seed = uint32_t(options.seed);
  cudaStream_t a, b;
  RUNTIME_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  std::vector<uint4*> x(pairs), y(pairs);
  for (size_t p = 0; p < pairs; ++p) {
    RUNTIME_OK(cudaMalloc(&x[p], kPiece));
    RUNTIME_OK(cudaMalloc(&y[p], kPiece));
  }
  // a writes x, b waits and writes y from it, a waits and writes x anew: any broken order shows in
  // y.
  std::vector<cudaEvent_t> written(pairs), used(pairs);
  cudaEvent_t begin, end;
  RUNTIME_OK(cudaEventCreate(&begin));
  RUNTIME_OK(cudaEventCreate(&end));
  RUNTIME_OK(cudaEventRecord(begin, a));
  for (size_t p = 0; p < pairs; ++p) {
    RUNTIME_OK(cudaEventCreateWithFlags(&written[p], cudaEventDisableTiming));
    RUNTIME_OK(cudaEventCreateWithFlags(&used[p], cudaEventDisableTiming));
    apps::fill(x[p], kPiece, seed + uint32_t(p), a);
    RUNTIME_OK(cudaEventRecord(written[p], a));
    RUNTIME_OK(cudaStreamWaitEvent(b, written[p], 0));
    mixFrom<<<apps::blocks(kPiece / 16), 256, 0, b>>>(y[p], x[p], uint32_t(kPiece / 16), 7);
    RUNTIME_OK(cudaEventRecord(used[p], b));
    RUNTIME_OK(cudaStreamWaitEvent(a, used[p], 0));
    RUNTIME_OK(cudaMemsetAsync(x[p], 0x5a, kPiece, a));
  }
  RUNTIME_OK(cudaEventRecord(end, a));
  RUNTIME_OK(cudaEventSynchronize(end));
  float milliseconds = -1;
  RUNTIME_OK(cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(milliseconds >= 0, "elapsed time is %g", double(milliseconds));
  RUNTIME_OK(cudaEventQuery(end));
  RUNTIME_OK(cudaStreamSynchronize(b));
  RUNTIME_OK(cudaStreamQuery(b));
  for (size_t p = 0; p < pairs; ++p) apps::verify(y[p], kPiece, seed + uint32_t(p), 7, "y");
  // A long reader of y[0] on a; b uses y[0] shortly and then everything else.
  unsigned long long* sums;
  constexpr uint32_t kRounds = 40;
  RUNTIME_OK(cudaMalloc(&sums, kRounds * sizeof *sums));
  RUNTIME_OK(cudaMemset(sums, 0, kRounds * sizeof *sums));
  RUNTIME_OK(cudaDeviceSynchronize());
  const uint32_t samples = uint32_t(kPiece / 4 / 256);
  readLong<<<1, 64, 0, a>>>(reinterpret_cast<uint32_t*>(y[0]), samples, kRounds, sums);
  mixFrom<<<1, 256, 0, b>>>(x[0], y[0], 256, 0);
  for (int round = 0; round < 2; ++round) {
    for (size_t p = 1; p < pairs; ++p) {
      apps::add(x[p], kPiece / 16, 1, b);
      apps::add(y[p], kPiece / 16, 1, b);
    }
  }
  RUNTIME_OK(cudaStreamSynchronize(b));
  RUNTIME_OK(cudaStreamSynchronize(a));
  unsigned long long expected = 0, got[kRounds];
  for (uint32_t i = 0; i < samples; ++i) expected += uint32_t(apps::word(i * 64, seed) + 7);
  RUNTIME_OK(cudaMemcpy(got, sums, sizeof got, cudaMemcpyDeviceToHost));
  for (uint32_t r = 0; r < kRounds; ++r)
    CHECK(got[r] == expected, "round %u read %llu, expected %llu", r, got[r], expected);
  // Legacy default stream: ordered with blocking streams without any event.
  cudaStream_t blocking;
  RUNTIME_OK(cudaStreamCreate(&blocking));
  apps::fill(x[0], kPiece, seed, blocking);
  apps::add(x[0], kPiece, 3);
  apps::add(x[0], kPiece, 4, blocking);
  // Destroyed with work pending: the work still completes.
  RUNTIME_OK(cudaStreamDestroy(blocking));
  RUNTIME_OK(cudaDeviceSynchronize());
  apps::verify(x[0], kPiece, seed, 7, "x after the default stream");
  RUNTIME_OK(cudaStreamDestroy(a));
  RUNTIME_OK(cudaStreamDestroy(b));
  return apps::ok("streams_events with %zu pairs of buffers", pairs);
}
