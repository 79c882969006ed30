// Managed memory that host functions touch, with launches behind them: in the function's stream, in
// one that waits for an event behind it, in the legacy stream. The CPU's access beside a kernel
// that does not reach the memory. Copies and memsets without a stream, which are done when they
// return.
#include <chrono>

#include "common.h"

namespace {

// Words are far apart: few of them lie in several pages.
constexpr uint32_t kCount = 2048, kStride = 640;
constexpr size_t kBytes = size_t{kCount} * kStride * 4;

__global__ void addTo(uint32_t* words, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) words[size_t{i} * kStride] += value;
}

// Until the host says so, or for a bounded time.
__global__ void waitFor(const volatile uint32_t* flag, uint32_t* outcome) {
  for (uint32_t tries = 0; tries < 30'000'000; ++tries) {
    if (*flag == 0) continue;
    *outcome = 1;
    return;
  }
  *outcome = 2;
}

struct Doubled {
  uint32_t* words;
  uint32_t expected;
  uint32_t wrong = 0;
};

// Looks at one word in each 7, and doubles those.
void doubleOnCpu(void* data) {
  auto* const what = static_cast<Doubled*>(data);
  for (uint32_t i = 0; i < kCount; i += 7) {
    uint32_t& word = what->words[size_t{i} * kStride];
    if (word != what->expected) ++what->wrong;
    word *= 2;
  }
}

void addOnGpu(uint32_t* words, uint32_t value, cudaStream_t stream) {
  addTo<<<apps::blocks(kCount), 256, 0, stream>>>(words, value);
  RUNTIME_OK(cudaGetLastError());
}

void check(const uint32_t* words, uint32_t touched, uint32_t others, const char* where) {
  for (uint32_t i = 0; i < kCount; ++i) {
    const uint32_t expected = i % 7 == 0 ? touched : others, got = words[size_t{i} * kStride];
    CHECK(got == expected, "%s: word %u is %u, expected %u", where, i, got, expected);
  }
}

// A launch, a function, and launches behind the function in `behind`.
void round(cudaStream_t first, cudaStream_t behind, uint32_t* managed, uint32_t* device,
           const char* where) {
  cudaEvent_t event;
  RUNTIME_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  RUNTIME_OK(cudaMemset(managed, 0, kBytes));
  addOnGpu(managed, 7, first);
  Doubled what{managed, 7};
  RUNTIME_OK(cudaLaunchHostFunc(first, doubleOnCpu, &what));
  if (behind != first) {
    RUNTIME_OK(cudaEventRecord(event, first));
    RUNTIME_OK(cudaStreamWaitEvent(behind, event, 0));
  }
  addOnGpu(device, 1, behind);  // reaches nothing that the function touches
  addOnGpu(managed, 3, behind);
  addOnGpu(device, 1, first);
  RUNTIME_OK(cudaDeviceSynchronize());
  CHECK(what.wrong == 0, "%s: the function found %u words wrong", where, what.wrong);
  check(managed, 17, 10, where);
  RUNTIME_OK(cudaEventDestroy(event));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("the CPU may not touch managed memory while a kernel runs");
  apps::Pressure pressure(options.bytes / 2);  // device memory that pages meanwhile
  uint32_t *managed, *device, *flag, *outcome;
  RUNTIME_OK(cudaMallocManaged(&managed, kBytes));
  RUNTIME_OK(cudaMalloc(&device, kBytes));
  RUNTIME_OK(cudaMemset(device, 0, kBytes));
  RUNTIME_OK(cudaHostAlloc(&flag, 4, cudaHostAllocMapped));
  RUNTIME_OK(cudaMalloc(&outcome, 4));
  cudaStream_t one, other, blocking;
  RUNTIME_OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreate(&blocking));
  // Loaded before somebody waits for what they do.
  addOnGpu(device, 0, one);
  *flag = 1;
  waitFor<<<1, 1, 0, one>>>(flag, outcome);
  RUNTIME_OK(cudaDeviceSynchronize());

  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    round(one, one, managed, device, "one stream");
    round(one, other, managed, device, "behind an event");
    round(blocking, cudaStreamLegacy, managed, device, "the legacy stream behind another");
    round(cudaStreamLegacy, blocking, managed, device, "behind the legacy stream");
    if (i == 1) pressure.apply();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;

  // The kernel reaches the flag and the outcome. The CPU's accesses pass it by.
  *flag = 0;
  RUNTIME_OK(cudaMemset(managed, 0, kBytes));
  addOnGpu(managed, 5, other);
  RUNTIME_OK(cudaStreamSynchronize(other));
  waitFor<<<1, 1, 0, one>>>(flag, outcome);
  RUNTIME_OK(cudaGetLastError());
  addOnGpu(managed, 1, other);
  RUNTIME_OK(cudaStreamSynchronize(other));
  check(managed, 6, 6, "beside a kernel");
  *static_cast<volatile uint32_t*>(flag) = 1;
  RUNTIME_OK(cudaStreamSynchronize(one));
  uint32_t how = 0;
  RUNTIME_OK(cudaMemcpy(&how, outcome, 4, cudaMemcpyDeviceToHost));
  CHECK(how == 1, "the CPU waited for a kernel that does not reach what it reads");

  // `one` does not wait for the legacy stream, but the calls have returned.
  for (uint32_t value = 1; value <= 4; ++value) {
    for (uint32_t i = 0; i < kCount; ++i) managed[size_t{i} * kStride] = value;
    RUNTIME_OK(cudaMemcpy(device, managed, kBytes, cudaMemcpyDefault));
    addOnGpu(device, 100, one);
    RUNTIME_OK(cudaMemcpyAsync(managed, device, kBytes, cudaMemcpyDefault, one));
    RUNTIME_OK(cudaStreamSynchronize(one));
    check(managed, value + 100, value + 100, "behind a copy without a stream");
    RUNTIME_OK(cudaMemset(managed, 0, kBytes));
    addOnGpu(managed, value, one);
    RUNTIME_OK(cudaStreamSynchronize(one));
    check(managed, value, value, "behind a memset without a stream");
  }
  pressure.check();
  RUNTIME_OK(cudaFreeHost(flag));
  RUNTIME_OK(cudaFree(managed));
  return apps::ok("host functions, launches and the CPU in order, %.1f s for %d rounds",
                  took.count(), 12);
}
