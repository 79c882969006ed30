// Kernels that wait for other kernels: A spins on a flag that B sets, while B uses more buffers
// than there is memory left; a host function in front of a kernel; a stream that waits for a value
// which the host writes later; a kernel loaded on its first use while others run.
#include <chrono>
#include <thread>

#include "common.h"

__global__ void waitFor(const volatile uint32_t* flag, uint32_t value, uint32_t limit, uint4* held,
                        uint32_t count, uint32_t* outcome) {
  uint32_t tries = 0;
  while (*flag != value && ++tries < limit) {
  }
  *outcome = *flag == value ? 1 : 2;
  for (uint32_t i = 0; i < count; ++i) ++held[size_t(i) * 256].x;
}

__global__ void setFlag(volatile uint32_t* flag, uint32_t value) {
  *flag = value;
  __threadfence();
}

/// First used while others run: lazy loading brings it in then.
__global__ void lateComer(uint32_t* out) { *out += 5; }

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kPiece = size_t{2} << 20;
  constexpr uint32_t kLimit = 300'000'000;
  const size_t n = options.bytes / kPiece;
  std::vector<uint4*> buffers(n);
  for (size_t b = 0; b < n; ++b) {
    RUNTIME_OK(cudaMalloc(&buffers[b], kPiece));
    apps::fill(buffers[b], kPiece, uint32_t(options.seed + b));
  }
  uint32_t *flag, *outcome;
  RUNTIME_OK(cudaMalloc(&flag, 4));
  RUNTIME_OK(cudaMalloc(&outcome, 4));
  RUNTIME_OK(cudaMemset(flag, 0, 4));
  cudaStream_t a, b;
  RUNTIME_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  // Loaded before somebody waits for what they do: a first use may wait for all that runs.
  setFlag<<<1, 1, 0, b>>>(flag, 0);
  apps::add(buffers[0], 16, 0, b);
  RUNTIME_OK(cudaDeviceSynchronize());
  std::vector<uint32_t> added(n, 0);
  for (uint32_t round = 1; round <= 2; ++round) {
    RUNTIME_OK(cudaMemset(outcome, 0, 4));
    RUNTIME_OK(cudaDeviceSynchronize());
    waitFor<<<1, 1, 0, a>>>(flag, round, kLimit, buffers[0], 64, outcome);
    for (size_t k = 1; k < n; ++k) {  // everything else, on the other stream, while A holds its own
      apps::add(buffers[k], kPiece / 16, 1, b);
      ++added[k];
    }
    setFlag<<<1, 1, 0, b>>>(flag, round);
    RUNTIME_OK(cudaStreamSynchronize(b));
    RUNTIME_OK(cudaStreamSynchronize(a));
    uint32_t how = 0;
    RUNTIME_OK(cudaMemcpy(&how, outcome, 4, cudaMemcpyDeviceToHost));
    CHECK(how == 1, "round %u: the waiting kernel %s", round, how == 2 ? "gave up" : "did not run");
  }
  // A host function in front of a kernel, on each stream; the host function takes its time.
  for (size_t k = 1; k < n; k += 3) {
    RUNTIME_OK(cudaLaunchHostFunc(
        a, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }, nullptr));
    apps::add(buffers[k], kPiece / 16, 1, a);
    ++added[k];
  }
  RUNTIME_OK(cudaStreamSynchronize(a));
  // A wait for a value that the host writes only after more work was given.
  uint32_t* mailbox;
  RUNTIME_OK(cudaHostAlloc(&mailbox, 4096, cudaHostAllocMapped));
  *mailbox = 0;
  const CUresult waits = cuStreamWaitValue32(a, CUdeviceptr(mailbox), 1, CU_STREAM_WAIT_VALUE_GEQ);
  if (waits == CUDA_SUCCESS) {
    for (size_t k = 1; k < n; ++k) {
      apps::add(buffers[k], kPiece / 16, 1, a);
      ++added[k];
    }
    __atomic_store_n(mailbox, 1, __ATOMIC_SEQ_CST);
    RUNTIME_OK(cudaStreamSynchronize(a));
  } else {
    CHECK(waits == CUDA_ERROR_NOT_SUPPORTED, "cuStreamWaitValue32: CUresult %d", int(waits));
  }
  // First use of a kernel behind work that is still running.
  RUNTIME_OK(cudaMemset(outcome, 0, 4));
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t k = 1; k < n; ++k) {
    apps::add(buffers[k], kPiece / 16, 1, a);
    ++added[k];
  }
  lateComer<<<1, 1, 0, b>>>(outcome);
  RUNTIME_OK(cudaDeviceSynchronize());
  uint32_t late = 0;
  RUNTIME_OK(cudaMemcpy(&late, outcome, 4, cudaMemcpyDeviceToHost));
  CHECK(late == 5, "the late kernel left %u", late);
  for (size_t k = 1; k < n; ++k)
    apps::verify(buffers[k], kPiece / 16, uint32_t(options.seed + k), added[k],
                 "buffer used on the side");
  std::vector<uint32_t> held(kPiece / 4);
  RUNTIME_OK(cudaMemcpy(held.data(), buffers[0], kPiece, cudaMemcpyDeviceToHost));
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t expected = apps::word(i * 256, uint32_t(options.seed)) + 2;
    CHECK(held[size_t(i) * 1024] == expected, "held word %u is %#x, expected %#x", i,
          held[size_t(i) * 1024], expected);
  }
  return apps::ok("spin_flag with %zu buffers%s", n,
                  waits == CUDA_SUCCESS ? "" : " (no stream memory operations here)");
}
