// Contexts that end beside others: one of the same device, a green one, another device's. Memory
// allocated in the others is still known as device memory, also to calls that take a device's
// address for the host's; memory allocated in one that ended is not.
#include "driver_program.h"

namespace {

constexpr unsigned kWords = 512 * 1024;  // of a piece

// Memory that stays, allocated in each way.
class Kept {
 public:
  explicit Kept(size_t bytes) {
    CUdeviceptr made = 0;
    size_t pitch = 0;
    DRIVER_OK(cuMemAllocPitch(&made, &pitch, 1024, kWords * 4 / 1024, 4));
    pieces_.push_back(made);
    DRIVER_OK(cuMemAllocAsync(&made, kWords * 4, nullptr));
    pieces_.push_back(made);
    while (pieces_.size() * kWords * 4 < bytes) {
      DRIVER_OK(cuMemAlloc(&made, kWords * 4));
      pieces_.push_back(made);
    }
    for (size_t i = 0; i < pieces_.size(); ++i)
      DRIVER_OK(cuMemsetD32(pieces_[i], valueOf(i), kWords));
    DRIVER_OK(cuMemAlloc(&into_, kWords * 4));
    DRIVER_OK(cuCtxSynchronize());
  }
  void check(const char* when) {
    std::vector<uint32_t> got(kWords);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const CUdeviceptr piece = pieces_[i];
      uint32_t one = 0;
      DRIVER_OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(&one), piece + 4096, 4));
      CHECK(one == valueOf(i), "%s: piece %zu has %#x", when, i, one);
      DRIVER_OK(cuMemsetD32(into_, 0, kWords));
      DRIVER_OK(cuMemcpyHtoD(into_, reinterpret_cast<const void*>(piece), kWords * 4));
      DRIVER_OK(cuMemcpyDtoH(got.data(), into_, kWords * 4));
      CHECK(got.front() == valueOf(i) && got.back() == valueOf(i),
            "%s: a copy of piece %zu has %#x", when, i, got.back());
      DRIVER_OK(cuMemcpyDtoH(reinterpret_cast<void*>(into_), piece + 4, 4));
    }
  }
  void release() {
    for (const CUdeviceptr piece : pieces_) DRIVER_OK(cuMemFree(piece));
    DRIVER_OK(cuMemFree(into_));
  }

 private:
  static uint32_t valueOf(size_t piece) { return 0x1000 + uint32_t(piece); }
  std::vector<CUdeviceptr> pieces_;
  CUdeviceptr into_ = 0;
};

void freed(CUdeviceptr memory, const char* whose) {
  CHECK(cuMemFree(memory) != CUDA_SUCCESS, "memory of %s that has ended is still there", whose);
}

// The other context is of the same device.
void endOne(CUdevice device, CUcontext stays) {
  CUcontext other = nullptr;
  CUdeviceptr plain = 0, ordered = 0;
  DRIVER_OK(cuCtxCreate(&other, nullptr, 0, device));
  DRIVER_OK(cuMemAlloc(&plain, kWords * 4));
  DRIVER_OK(cuMemAllocAsync(&ordered, 4096, nullptr));
  DRIVER_OK(cuCtxSynchronize());
  DRIVER_OK(cuCtxDestroy(other));
  DRIVER_OK(cuCtxSetCurrent(stays));
  freed(plain, "a context");
}

// Memory allocated in it, or in its stream, is the primary one's.
bool endGreen(CUdevice device, CUcontext stays) {
  CUdevResource all{};
  if (cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) return false;
  CUdevResourceDesc description = nullptr;
  DRIVER_OK(cuDevResourceGenerateDesc(&description, &all, 1));
  for (const bool current : {true, false}) {
    CUgreenCtx green = nullptr;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUdeviceptr plain = 0, ordered = 0;
    DRIVER_OK(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    DRIVER_OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    if (current) {
      DRIVER_OK(cuCtxFromGreenCtx(&context, green));
      DRIVER_OK(cuCtxSetCurrent(context));
      DRIVER_OK(cuMemAlloc(&plain, kWords * 4));
    }
    DRIVER_OK(cuMemAllocAsync(&ordered, 4096, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuCtxSetCurrent(stays));
    DRIVER_OK(cuGreenCtxDestroy(green));
    for (const CUdeviceptr left : {plain, ordered}) {
      uint32_t one = 0;
      if (left == 0) continue;
      DRIVER_OK(cuMemsetD32(left, 77, 16));
      DRIVER_OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(&one), left, 4));
      CHECK(one == 77, "memory that was allocated in a green context has %#x", one);
      DRIVER_OK(cuMemFree(left));
    }
  }
  return true;
}

// Another device's primary context, by its last release and by a reset.
void endOtherDevices(CUdevice other, CUcontext stays) {
  for (const bool reset : {false, true}) {
    CUcontext context = nullptr;
    CUdeviceptr plain = 0;
    DRIVER_OK(cuDevicePrimaryCtxRetain(&context, other));
    DRIVER_OK(cuCtxSetCurrent(context));
    DRIVER_OK(cuMemAlloc(&plain, kWords * 4));
    DRIVER_OK(cuMemsetD32(plain, 5, kWords));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuCtxSetCurrent(stays));
    if (reset) DRIVER_OK(cuDevicePrimaryCtxReset(other));
    DRIVER_OK(cuDevicePrimaryCtxRelease(other));
    freed(plain, "another device's context");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  CUcontext primary = nullptr, created = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&primary));
  int devices = 0;
  DRIVER_OK(cuDeviceGetCount(&devices));

  Kept kept(options.bytes);
  endOne(device, primary);
  kept.check("after another context");
  const bool green = endGreen(device, primary);
  kept.check("after a green context");
  if (devices > 1) endOtherDevices(1, primary);
  kept.check("after another device's context");

  // The primary context ends, and one that the program has made stays.
  DRIVER_OK(cuCtxCreate(&created, nullptr, 0, device));
  Kept own(options.bytes / 4);
  DRIVER_OK(cuDevicePrimaryCtxReset(device));
  own.check("after the primary context");
  own.release();
  DRIVER_OK(cuCtxDestroy(created));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("contexts that end beside others%s%s", green ? "" : ", no green ones",
                  devices > 1 ? ", of two devices" : "");
}
