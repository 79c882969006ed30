// Streams whose context is not the current one: another one of the same device is, another
// device's, or none. Copies, allocations and frees in the stream's order, host functions and events
// there are as with the stream's own context, and nothing is left over.
#include <functional>

#include "driver_program.h"

namespace {

constexpr unsigned kWords = 512 * 1024;

// A context with a stream.
struct Place {
  CUcontext context = nullptr;
  CUstream stream = nullptr;

  explicit Place(CUcontext made) : context(made) {
    DRIVER_OK(cuCtxSetCurrent(context));
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  void use() const { DRIVER_OK(cuCtxSetCurrent(context)); }
  size_t freeBytes() const {
    size_t free_bytes = 0, total = 0;
    use();
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
  }
};

CUcontext primaryOf(CUdevice device) {
  CUcontext context = nullptr;
  DRIVER_OK(cuDevicePrimaryCtxRetain(&context, device));
  return context;
}

CUdevice deviceOf(CUdeviceptr memory) {
  CUdevice device = -1;
  DRIVER_OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
  return device;
}

void CUDA_CB count(void* counter) { ++*static_cast<int*>(counter); }

// Everything in the stream of `there` while `here` is current.
void round(const Place& there, const Place& here, uint32_t value, uint32_t* pinned) {
  std::vector<uint32_t> pageable(kWords, value), got(kWords);
  for (unsigned i = 0; i < kWords; ++i) pinned[i] = value + i;
  CUdeviceptr a = 0, b = 0, from_pool = 0;
  CUdevice device = -1;
  CUmemoryPool pool = nullptr;
  CUevent event = nullptr;
  int called = 0;
  there.use();
  DRIVER_OK(cuCtxGetDevice(&device));
  DRIVER_OK(cuDeviceGetDefaultMemPool(&pool, device));
  DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  here.use();
  DRIVER_OK(cuMemAllocAsync(&a, kWords * 4, there.stream));
  DRIVER_OK(cuMemAllocAsync(&b, kWords * 4, there.stream));
  DRIVER_OK(cuMemAllocFromPoolAsync(&from_pool, kWords * 4, pool, there.stream));
  CHECK(deviceOf(a) == device && deviceOf(from_pool) == device,
        "memory of the current device, not of the stream's");
  DRIVER_OK(cuMemcpyHtoDAsync(a, pinned, kWords * 4, there.stream));
  DRIVER_OK(cuMemcpyDtoDAsync(b, a, kWords * 4, there.stream));
  DRIVER_OK(cuLaunchHostFunc(there.stream, count, &called));
  DRIVER_OK(cuMemcpyHtoDAsync(from_pool, pageable.data(), kWords * 4, there.stream));
  DRIVER_OK(cuEventRecord(event, there.stream));
  DRIVER_OK(cuStreamWaitEvent(here.stream, event, 0));
  DRIVER_OK(cuMemcpyDtoHAsync(got.data(), b, kWords * 4, there.stream));
  DRIVER_OK(cuStreamSynchronize(there.stream));
  CHECK(called == 1, "the host function was called %d times", called);
  for (unsigned i = 0; i < kWords; i += 997)
    CHECK(got[i] == value + i, "word %u is %#x", i, got[i]);
  // Bytes that come to pinned memory are there behind the event that follows them, too.
  DRIVER_OK(cuMemcpyDtoHAsync(pinned, from_pool, kWords * 4, there.stream));
  DRIVER_OK(cuEventRecord(event, there.stream));
  for (const CUdeviceptr memory : {a, b, from_pool})
    DRIVER_OK(cuMemFreeAsync(memory, there.stream));
  DRIVER_OK(cuEventSynchronize(event));
  CHECK(pinned[kWords - 1] == value, "pinned memory has %#x", pinned[kWords - 1]);
  DRIVER_OK(cuStreamSynchronize(here.stream));
  DRIVER_OK(cuStreamSynchronize(there.stream));
  DRIVER_OK(cuEventDestroy(event));
}

// Only a default stream needs a current context.
void withoutContext(const Place& there) {
  CUdeviceptr memory = 0;
  DRIVER_OK(cuCtxSetCurrent(nullptr));
  CHECK(cuMemAllocAsync(&memory, kWords * 4, nullptr) == CUDA_ERROR_INVALID_CONTEXT,
        "the default stream of no context");
  DRIVER_OK(cuMemAllocAsync(&memory, kWords * 4, there.stream));
  there.use();
  std::vector<uint32_t> got(kWords);
  DRIVER_OK(cuMemsetD32Async(memory, 9, kWords, there.stream));
  DRIVER_OK(cuMemcpyDtoHAsync(got.data(), memory, kWords * 4, there.stream));
  DRIVER_OK(cuStreamSynchronize(there.stream));
  CHECK(got.back() == 9, "memory that was allocated without a current context has %#x", got.back());
  DRIVER_OK(cuCtxSetCurrent(nullptr));
  DRIVER_OK(cuMemFreeAsync(memory, there.stream));
  there.use();
  DRIVER_OK(cuStreamSynchronize(there.stream));
}

// Later rounds may leave no more than the first ones.
void leavesNothing(const Place& there, const char* where,
                   const std::function<void(uint32_t)>& once) {
  for (uint32_t i = 0; i < 2; ++i) once(i);
  const size_t before = there.freeBytes();
  for (uint32_t i = 2; i < 5; ++i) once(i);
  const size_t after = there.freeBytes();
  CHECK(after >= before, "%s: %zu bytes are left over", where, before - after);
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  int devices = 0;
  DRIVER_OK(cuDeviceGetCount(&devices));
  CUcontext second = nullptr;
  DRIVER_OK(cuCtxCreate(&second, nullptr, 0, device));
  DRIVER_OK(cuCtxPopCurrent(&second));  // below the first one there is none
  // The streams are made before anything is done in one, and the second context is current when the
  // first thing is.
  const Place first(primaryOf(device)), other(second);

  // Allocations that take all the room there is when this is paged.
  std::vector<CUdeviceptr> pieces;
  for (size_t done = 0; done < options.bytes; done += kWords * 4) {
    DRIVER_OK(cuMemAlloc(&pieces.emplace_back(), kWords * 4));
    DRIVER_OK(cuMemsetD32(pieces.back(), uint32_t(pieces.size()), kWords));
  }
  void* pinned = nullptr;
  DRIVER_OK(cuMemHostAlloc(&pinned, kWords * 4, CU_MEMHOSTALLOC_PORTABLE));
  auto* const words = static_cast<uint32_t*>(pinned);
  leavesNothing(first, "another context is current",
                [&](uint32_t value) { round(first, other, value, words); });
  leavesNothing(other, "the first context is current",
                [&](uint32_t value) { round(other, first, value, words); });
  leavesNothing(first, "no context is current", [&](uint32_t) { withoutContext(first); });
  if (devices > 1) {
    const Place far(primaryOf(1));
    leavesNothing(first, "another device is current",
                  [&](uint32_t value) { round(first, far, value, words); });
    leavesNothing(far, "this device is current",
                  [&](uint32_t value) { round(far, first, value, words); });
    first.use();
    DRIVER_OK(cuDevicePrimaryCtxRelease(1));
  }
  other.use();
  for (size_t i = 0; i < pieces.size(); ++i) {
    uint32_t got = 0;
    DRIVER_OK(cuMemcpyDtoH(&got, pieces[i] + kWords * 2, 4));
    CHECK(got == i + 1, "piece %zu has %#x", i, got);
  }
  DRIVER_OK(cuMemFreeHost(pinned));
  DRIVER_OK(cuCtxDestroy(second));
  return apps::ok("streams of contexts that are not current%s",
                  devices > 1 ? ", of two devices" : "");
}
