// A device's multiprocessors split in two, a green context for each half, and what is done with
// one: streams of its own, its context made current, kernels and copies in it, events between it
// and the primary context, memory that outlives it: the program's first is allocated in one.
#include <chrono>
#include <thread>

#include "driver_program.h"

namespace {

constexpr size_t kSmall = 4096;  // bytes

CUdevResource multiprocessorsOf(CUdevice device) {
  CUdevResource all{};
  const CUresult result = cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
  if (result == CUDA_ERROR_NOT_SUPPORTED) apps::skip("no device resources here");
  CHECK(result == CUDA_SUCCESS, "cuDeviceGetDevResource: CUresult %d", int(result));
  int count = 0;
  DRIVER_OK(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM && all.sm.smCount == unsigned(count),
        "%u of %d multiprocessors", all.sm.smCount, count);
  return all;
}

// One half of the device and what runs in it.
struct Half {
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0, small = 0;

  Half(CUdevice device,
       CUdevResource resource) {  // a copy: what counts is its bytes, not where they are
    CUdevResourceDesc description = nullptr;
    DRIVER_OK(cuDevResourceGenerateDesc(&description, &resource, 1));
    DRIVER_OK(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    DRIVER_OK(cuCtxFromGreenCtx(&context, green));
    CUcontext again = nullptr;
    DRIVER_OK(cuCtxFromGreenCtx(&again, green));
    CHECK(again == context, "one green context has two contexts");
    CUdevResource has{};
    DRIVER_OK(cuGreenCtxGetDevResource(green, &has, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(has.sm.smCount == resource.sm.smCount, "%u multiprocessors of %u", has.sm.smCount,
          resource.sm.smCount);
    DRIVER_OK(cuCtxGetDevResource(context, &has, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(has.sm.smCount == resource.sm.smCount, "its context has %u of %u", has.sm.smCount,
          resource.sm.smCount);
    DRIVER_OK(cuCtxSetCurrent(context));
    DRIVER_OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    CUgreenCtx of_stream = nullptr;
    DRIVER_OK(cuStreamGetGreenCtx(stream, &of_stream));
    CHECK(of_stream == green, "the stream is another green context's");
  }
};

void check(CUdeviceptr address, size_t words, uint32_t expected, const char* what) {
  std::vector<uint32_t> got(words);
  DRIVER_OK(cuMemcpyDtoH(got.data(), address, words * 4));
  for (size_t i = 0; i < words; ++i)
    CHECK(got[i] == expected, "%s: word %zu is %#x, not %#x", what, i, got[i], expected);
}

// Memory of many pieces, each of which is used now and then: under a small budget each use takes
// the place of what others have.
class Pieces {
 public:
  explicit Pieces(size_t bytes) {
    for (size_t done = 0; done < bytes; done += kWords * 4) {
      DRIVER_OK(cuMemAlloc(&all_.emplace_back(), kWords * 4));
      DRIVER_OK(cuMemsetD32(all_.back(), 0, kWords));
    }
  }
  // In the context that is current.
  void use() {
    const apps::Bump bump(4);
    for (const CUdeviceptr piece : all_) bump(piece, kWords, 1);
    DRIVER_OK(cuCtxSynchronize());
    ++used_;
  }
  void check() {
    for (const CUdeviceptr piece : all_) {
      ::check(piece, kWords, used_, "a piece");
      DRIVER_OK(cuMemFree(piece));
    }
  }

 private:
  static constexpr unsigned kWords = 512 * 1024;
  std::vector<CUdeviceptr> all_;
  uint32_t used_ = 0;
};

// The primary context is there as long as a green one is, also where nobody retains it; what is
// allocated goes with it.
void withoutPrimary(CUdevice device, const CUdevResource& resource, uint32_t words) {
  for (uint32_t round = 1; round <= 2; ++round) {
    CUdeviceptr memory = 0;
    {
      const Half half(device, resource);
      DRIVER_OK(cuCtxSetCurrent(half.context));
      DRIVER_OK(cuMemAlloc(&memory, words * size_t{4}));
      DRIVER_OK(cuMemsetD32(memory, round, words));
      DRIVER_OK(cuCtxSynchronize());
      apps::Bump(4)(memory, words, 1, half.stream);
      DRIVER_OK(cuStreamSynchronize(half.stream));
      check(memory, words, round + 1, "memory without a primary context");
      DRIVER_OK(cuStreamDestroy(half.stream));
      DRIVER_OK(cuCtxSetCurrent(nullptr));
      DRIVER_OK(cuGreenCtxDestroy(half.green));
    }
    CUcontext primary = nullptr;
    DRIVER_OK(cuDevicePrimaryCtxRetain(&primary, device));
    DRIVER_OK(cuCtxSetCurrent(primary));
    CHECK(cuMemFree(memory) != CUDA_SUCCESS,
          "memory of a primary context that ended is still there");
    DRIVER_OK(cuMemAlloc(&memory, words * size_t{4}));
    DRIVER_OK(cuMemsetD32(memory, round, words));
    apps::Bump(4)(memory, words, 1);
    check(memory, words, round + 1, "memory of the primary context that came after it");
    DRIVER_OK(cuMemFree(memory));
    DRIVER_OK(cuCtxSetCurrent(nullptr));
    DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  }
}

// A primary context that is used after its release, kept by a green one, and the next one of the
// device: nothing of the first is in it.
void keptByGreen(CUdevice device, const CUdevResource& resource, uint32_t words) {
  CUcontext primary = nullptr;
  DRIVER_OK(cuDevicePrimaryCtxRetain(&primary, device));
  DRIVER_OK(cuCtxSetCurrent(primary));
  CUdeviceptr memory = 0;
  DRIVER_OK(cuMemAlloc(&memory, words * size_t{4}));
  const Half half(device, resource);
  DRIVER_OK(cuCtxSetCurrent(primary));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  DRIVER_OK(cuMemsetD32Async(memory, 1, words, CU_STREAM_PER_THREAD));
  apps::Bump(4)(memory, words, 1, CU_STREAM_PER_THREAD);
  DRIVER_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  check(memory, words, 2, "memory of a primary context that a green one keeps");
  DRIVER_OK(cuStreamDestroy(half.stream));
  DRIVER_OK(cuCtxSetCurrent(nullptr));
  DRIVER_OK(cuGreenCtxDestroy(half.green));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  DRIVER_OK(cuDevicePrimaryCtxRetain(&primary, device));
  DRIVER_OK(cuCtxSetCurrent(primary));
  DRIVER_OK(cuMemAlloc(&memory, words * size_t{4}));
  DRIVER_OK(cuMemsetD32Async(memory, 5, words, CU_STREAM_PER_THREAD));
  apps::Bump(4)(memory, words, 1, CU_STREAM_PER_THREAD);
  DRIVER_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  check(memory, words, 6, "memory of the next primary context");
  DRIVER_OK(cuMemFree(memory));
  DRIVER_OK(cuCtxSetCurrent(nullptr));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  CUcontext primary = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&primary));
  const size_t words = options.bytes / 16 / 4;
  const CUdevResource all = multiprocessorsOf(device);
  CUdevResource wrong{};
  CHECK(cuDeviceGetDevResource(device, &wrong, CU_DEV_RESOURCE_TYPE_INVALID) != CUDA_SUCCESS,
        "a resource of no type");
  unsigned groups = 0;
  DRIVER_OK(
      cuDevSmResourceSplitByCount(nullptr, &groups, &all, nullptr, 0, all.sm.minSmPartitionSize));
  if (groups < 2) apps::skip("%u multiprocessors can't be split", all.sm.smCount);
  CUdevResource halves[2]{}, left{};
  groups = 2;
  DRIVER_OK(
      cuDevSmResourceSplitByCount(halves, &groups, &all, &left, 0, all.sm.minSmPartitionSize));
  CHECK(groups == 2, "%u groups", groups);
  CHECK(halves[0].sm.smCount == halves[1].sm.smCount &&
            halves[0].sm.smCount >= all.sm.minSmPartitionSize,
        "groups of %u and %u multiprocessors", halves[0].sm.smCount, halves[1].sm.smCount);
  const unsigned rest = all.sm.smCount - 2 * halves[0].sm.smCount;
  const unsigned is_left = left.type == CU_DEV_RESOURCE_TYPE_SM ? left.sm.smCount : 0;
  CHECK(is_left == rest, "%u are left, not %u", is_left, rest);
  CHECK(cuDevSmResourceSplitByCount(halves, &groups, &all, nullptr, 0, all.sm.smCount + 1) !=
            CUDA_SUCCESS,
        "more than there are");
  CUdevResourceDesc none = nullptr;
  CHECK(cuDevResourceGenerateDesc(&none, &wrong, 1) != CUDA_SUCCESS, "a description of nothing");

  Half both[2] = {{device, halves[0]}, {device, halves[1]}};
  unsigned long long ids[2]{};
  for (int h = 0; h < 2; ++h) DRIVER_OK(cuGreenCtxGetId(both[h].green, &ids[h]));
  CHECK(ids[0] != ids[1], "two green contexts with one number");
  DRIVER_OK(cuCtxSetCurrent(both[0].context));
  CUdeviceptr shared = 0;
  DRIVER_OK(cuMemAlloc(&shared, words * 4));
  Pieces others(options.bytes);
  DRIVER_OK(cuCtxSetCurrent(primary));
  CUevent ready = nullptr;
  DRIVER_OK(cuEventCreate(&ready, CU_EVENT_DISABLE_TIMING));
  DRIVER_OK(cuMemsetD32Async(shared, 100, words, nullptr));
  DRIVER_OK(cuEventRecord(ready, nullptr));
  for (Half& half : both) {
    DRIVER_OK(cuCtxSetCurrent(half.context));
    CUdevice its = -1;
    DRIVER_OK(cuCtxGetDevice(&its));
    CHECK(its == device, "its device is %d", its);
    const apps::Bump bump(4);
    DRIVER_OK(cuMemAlloc(&half.memory, words * 4));
    DRIVER_OK(cuMemAlloc(&half.small, kSmall));
    DRIVER_OK(cuMemsetD32(half.small, 9, kSmall / 4));
    DRIVER_OK(cuStreamWaitEvent(half.stream, ready, 0));
    DRIVER_OK(cuMemcpyDtoDAsync(half.memory, shared, words * 4, half.stream));
    bump(half.memory, uint32_t(words), 7, half.stream);
    CUevent done = nullptr;
    DRIVER_OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuGreenCtxRecordEvent(half.green, done));
    DRIVER_OK(cuEventSynchronize(done));
    check(half.memory, words, 107, "what a kernel in a green context made");
    DRIVER_OK(cuGreenCtxWaitEvent(half.green, done));
    bump(half.memory, uint32_t(words), 1);
    DRIVER_OK(cuCtxSynchronize());
    check(half.memory, words, 108, "what a kernel in its default stream made");
    DRIVER_OK(cuEventDestroy(done));
  }
  others.use();
  for (Half& half : both) {
    DRIVER_OK(cuCtxSetCurrent(half.context));
    // Memory that is freed on its streams, and may not have been yet when it goes.
    CUdeviceptr passing = 0;
    DRIVER_OK(cuMemAllocAsync(&passing, words * 4, half.stream));
    DRIVER_OK(cuMemsetD32Async(passing, 1, words, half.stream));
    DRIVER_OK(cuMemFreeAsync(passing, half.stream));
    others.use();
    DRIVER_OK(cuStreamDestroy(half.stream));
    DRIVER_OK(cuCtxSetCurrent(primary));
    DRIVER_OK(cuGreenCtxDestroy(half.green));
  }
  // Memory is the primary context's: what is allocated now is elsewhere.
  CUdeviceptr more[2]{};
  for (CUdeviceptr& address : more) {
    const size_t bytes = &address == more ? words * 4 : kSmall;
    DRIVER_OK(cuMemAlloc(&address, bytes));
    DRIVER_OK(cuMemsetD32(address, 3, bytes / 4));
  }
  for (const Half& half : both) {
    check(half.memory, words, 108, "memory of a green context that is gone");
    check(half.small, kSmall / 4, 9, "a little memory of a green context that is gone");
    others.use();
    DRIVER_OK(cuMemFree(half.memory));
    DRIVER_OK(cuMemFree(half.small));
  }
  check(more[0], words, 3, "memory that came after them");
  check(more[1], kSmall / 4, 3, "a little memory that came after them");
  for (const CUdeviceptr address : more) DRIVER_OK(cuMemFree(address));
  others.check();
  check(shared, words, 100, "the memory that was allocated first");
  DRIVER_OK(cuEventDestroy(ready));
  DRIVER_OK(cuMemFree(shared));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  withoutPrimary(device, halves[0], uint32_t(words));
  keptByGreen(device, halves[0], uint32_t(words));
  return apps::ok("two green contexts with %u of %u multiprocessors each", halves[0].sm.smCount,
                  all.sm.smCount);
}
