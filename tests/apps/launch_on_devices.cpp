// One kernel launched on two devices at once: behind all that is in both streams, and before all
// that comes into either; on memory of each and on pinned memory. Also launches that can't be made
// so.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "driver_program.h"

namespace {

constexpr unsigned kDevices = 2, kWords = 4096;

struct Side {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr words = 0;
  std::unique_ptr<apps::Bump> bump;
};

void CUDA_CB takeTime(void* data) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  *static_cast<std::atomic<bool>*>(data) = true;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  DRIVER_OK(cuInit(0));
  int devices = 0;
  DRIVER_OK(cuDeviceGetCount(&devices));
  if (devices < int(kDevices)) apps::skip("one device only");
  Side sides[kDevices];
  void* pinned = nullptr;
  for (unsigned d = 0; d < kDevices; ++d) {
    Side& side = sides[d];
    CUdevice device = 0;
    int there = 0;
    DRIVER_OK(cuDeviceGet(&device, int(d)));
    DRIVER_OK(
        cuDeviceGetAttribute(&there, CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, device));
    if (there == 0) apps::skip("the devices do not launch together");
    DRIVER_OK(cuDevicePrimaryCtxRetain(&side.context, device));
    DRIVER_OK(cuCtxSetCurrent(side.context));
    DRIVER_OK(cuStreamCreate(&side.stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAlloc(&side.words, kWords * 4));
    DRIVER_OK(cuMemsetD32(side.words, unsigned(options.seed) + d, kWords));
    DRIVER_OK(cuCtxSynchronize());
    side.bump = std::make_unique<apps::Bump>(4);
  }
  DRIVER_OK(cuMemHostAlloc(&pinned, kDevices * 4096,
                           CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  auto* const seen = static_cast<uint32_t*>(pinned);
  for (unsigned i = 0; i < kDevices * 1024; ++i) seen[i] = i;

  uint32_t count = kWords, value = 3;
  CUDA_LAUNCH_PARAMS list[kDevices] = {};
  CUdeviceptr at[kDevices] = {sides[0].words, sides[1].words};
  void* parameters[kDevices][3];
  for (unsigned d = 0; d < kDevices; ++d) {
    parameters[d][0] = &at[d], parameters[d][1] = &count, parameters[d][2] = &value;
    list[d].function = sides[d].bump->kernel();
    list[d].gridDimX = kWords / 128, list[d].gridDimY = list[d].gridDimZ = 1;
    list[d].blockDimX = 128, list[d].blockDimY = list[d].blockDimZ = 1;
    list[d].hStream = sides[d].stream;
    list[d].kernelParams = parameters[d];
  }
  // Work in the first stream is over before the kernel begins in the second.
  std::atomic<bool> over{false};
  DRIVER_OK(cuLaunchHostFunc(sides[0].stream, takeTime, &over));
  DRIVER_OK(cuLaunchCooperativeKernelMultiDevice(list, kDevices, 0));
  value = 100;  // taken by the call
  DRIVER_OK(cuStreamSynchronize(sides[1].stream));
  CHECK(over, "%s", "the second stream did not wait for what was in the first");
  for (const auto& side : sides) {
    DRIVER_OK(cuCtxSetCurrent(side.context));
    std::vector<uint32_t> got(kWords);
    DRIVER_OK(cuMemcpyDtoHAsync(got.data(), side.words, kWords * 4, side.stream));
    DRIVER_OK(cuStreamSynchronize(side.stream));
    for (const uint32_t word : got) {
      const uint32_t expected = uint32_t(options.seed) + uint32_t(&side - sides) + 3;
      CHECK(word == expected, "device %d: %u, expected %u", int(&side - sides), word, expected);
    }
  }

  // Pinned memory, a part for each.
  count = 1024, value = 7;
  for (unsigned d = 0; d < kDevices; ++d) {
    DRIVER_OK(cuCtxSetCurrent(sides[d].context));
    DRIVER_OK(cuMemHostGetDevicePointer(&at[d], seen + d * 1024, 0));
    list[d].gridDimX = 8;
  }
  DRIVER_OK(cuLaunchCooperativeKernelMultiDevice(
      list, kDevices, CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC));
  for (const auto& side : sides) DRIVER_OK(cuStreamSynchronize(side.stream));
  for (unsigned i = 0; i < kDevices * 1024; ++i)
    CHECK(seen[i] == i + 7, "pinned word %u is %u", i, seen[i]);

  const auto refused = [&](const char* what) {
    CHECK(cuLaunchCooperativeKernelMultiDevice(list, kDevices, 0) != CUDA_SUCCESS,
          "%s was launched", what);
  };
  list[1].blockDimX = 64;
  refused("a kernel in another shape");
  list[1].blockDimX = 128;
  list[1].hStream = nullptr;
  refused("a kernel in the default stream");
  list[1] = list[0];
  refused("a kernel twice on one device");
  DRIVER_OK(cuMemFreeHost(pinned));
  for (unsigned d = 0; d < kDevices; ++d) {
    DRIVER_OK(cuCtxSetCurrent(sides[d].context));
    DRIVER_OK(cuStreamDestroy(sides[d].stream));
    DRIVER_OK(cuMemFree(sides[d].words));
    DRIVER_OK(cuDevicePrimaryCtxRelease(CUdevice(d)));
  }
  return apps::ok("launch_on_devices");
}
