// One kernel of a library, launched on two devices whose limits and settings of it are their own:
// what the driver has taken on one of them says nothing of the other. A launch that can't be made
// tells so itself.
#include "driver_program.h"

namespace {

constexpr unsigned kShared = 100 << 10;  // more than a kernel may have that has not opted in

// Writes the words of shared memory's size, by way of it.
const char* const kImage = R"(
.version 7.0
.target sm_75
.address_size 64
.extern .shared .align 4 .b8 room[];
.visible .entry through(.param .u64 address, .param .u32 value)
{
  .reg .b32 %r<4>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [address];
  ld.param.u32 %r1, [value];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %d2, %r2, 4;
  mov.u64 %d3, room;
  add.u64 %d3, %d3, %d2;
  add.u32 %r1, %r1, %r2;
  st.shared.u32 [%d3], %r1;
  ld.shared.u32 %r3, [%d3];
  add.u64 %d1, %d1, %d2;
  st.global.u32 [%d1], %r3;
  ret;
}
)";

constexpr unsigned kThreads = 64;

struct Side {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr words = 0;
  int most = 0;  // shared memory of a block
};

Side sideOf(int number) {
  Side side;
  DRIVER_OK(cuDeviceGet(&side.device, number));
  DRIVER_OK(cuDevicePrimaryCtxRetain(&side.context, side.device));
  DRIVER_OK(cuCtxSetCurrent(side.context));
  DRIVER_OK(cuStreamCreate(&side.stream, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuMemAlloc(&side.words, kThreads * 4));
  DRIVER_OK(cuDeviceGetAttribute(&side.most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                 side.device));
  return side;
}

CUresult launch(CUkernel kernel, const Side& side, CUstream stream, unsigned shared,
                uint32_t value) {
  CUdeviceptr words = side.words;
  void* parameters[] = {&words, &value};
  return cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, kThreads, 1, 1, shared,
                        stream, parameters, nullptr);
}

void check(const Side& side, uint32_t value) {
  DRIVER_OK(cuCtxSetCurrent(side.context));
  DRIVER_OK(cuCtxSynchronize());
  uint32_t words[kThreads];
  DRIVER_OK(cuMemcpyDtoH(words, side.words, sizeof words));
  for (unsigned i = 0; i < kThreads; ++i)
    CHECK(words[i] == value + i, "device %d: word %u is %u, not %u", side.device, i, words[i],
          value + i);
}

}  // namespace

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  int count = 0;
  DRIVER_OK(cuInit(0));
  DRIVER_OK(cuDeviceGetCount(&count));
  if (count < 2) apps::skip("one device only");
  const Side first = sideOf(0), second = sideOf(1);
  CHECK(first.most >= int(kShared), "device 0 has %d bytes of shared memory for a block",
        first.most);

  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  DRIVER_OK(cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0));
  DRIVER_OK(cuLibraryGetKernel(&kernel, library, "through"));
  DRIVER_OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kShared, kernel,
                                 first.device));

  // Taken on the first device, in each kind of stream and twice; the second one has not opted in.
  DRIVER_OK(cuCtxSetCurrent(first.context));
  for (const CUstream stream :
       {CUstream{nullptr}, first.stream, CU_STREAM_PER_THREAD, first.stream})
    DRIVER_OK(launch(kernel, first, stream, kShared, 7));
  check(first, 7);
  DRIVER_OK(cuCtxSetCurrent(second.context));
  for (const CUstream stream : {CUstream{nullptr}, second.stream, CU_STREAM_PER_THREAD}) {
    const CUresult result = launch(kernel, second, stream, kShared, 9);
    CHECK(result == CUDA_ERROR_INVALID_VALUE, "on the second device: CUresult %d", int(result));
  }
  // A stream says the device, whichever context is current.
  DRIVER_OK(cuCtxSetCurrent(first.context));
  CHECK(launch(kernel, second, second.stream, kShared, 9) == CUDA_ERROR_INVALID_VALUE, "%s",
        "in a stream of the second device from the first one's context");
  DRIVER_OK(cuCtxSynchronize());
  // Launches that fit everywhere go on.
  DRIVER_OK(cuCtxSetCurrent(second.context));
  DRIVER_OK(launch(kernel, second, second.stream, 1024, 11));
  check(second, 11);

  // Opting in by the kernel in place of its function is for the current context's device: where it
  // is the second, too, as far as that has room.
  const auto function = reinterpret_cast<CUfunction>(kernel);
  constexpr auto kMost = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  const auto optIn = [&](const Side& side, unsigned bytes) {
    DRIVER_OK(cuCtxSetCurrent(side.context));
    return cuFuncSetAttribute(function, kMost, int(bytes));
  };
  constexpr unsigned kBoth = 60 << 10;
  for (const Side* side : {&first, &second}) {
    DRIVER_OK(optIn(*side, kBoth));
    DRIVER_OK(launch(kernel, *side, nullptr, kBoth, 20));
    check(*side, 20);
  }
  DRIVER_OK(optIn(first, kShared));
  const bool fits = second.most >= int(kShared);
  const CUresult result = optIn(second, kShared);
  CHECK((result == CUDA_SUCCESS) == fits, "opting in to %u of %d bytes: CUresult %d", kShared,
        second.most, int(result));
  for (const Side* side : {&first, &second}) {
    DRIVER_OK(cuCtxSetCurrent(side->context));
    const CUresult taken = launch(kernel, *side, side->stream, kShared, 30);
    const bool expected = side == &first || fits;
    CHECK((taken == CUDA_SUCCESS) == expected, "device %d: CUresult %d", side->device, int(taken));
    check(*side, expected ? 30 : 20);
  }
  for (const Side* side : {&first, &second}) {
    DRIVER_OK(cuCtxSetCurrent(side->context));
    DRIVER_OK(cuStreamDestroy(side->stream));
    DRIVER_OK(cuMemFree(side->words));
  }
  DRIVER_OK(cuLibraryUnload(library));
  return apps::ok("two devices with %d and %d bytes of shared memory for a block", first.most,
                  second.most);
}
