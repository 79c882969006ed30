// Launches whose parameters come packed in one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER), pointers
// inside by-value structs included, and cuLaunchKernelEx.
#include "driver_program.h"

namespace {
const char* const kPtx = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry combine(.param .align 8 .b8 views[48], .param .u32 count)
{
  // views: three of {u32 tag; pad; u64 pointer}: out, a, b
  .reg .pred %p;
  .reg .b32 %r<10>;
  .reg .b64 %d<10>;
  ld.param.u64 %d1, [views+8];
  ld.param.u64 %d2, [views+24];
  ld.param.u64 %d3, [views+40];
  ld.param.u32 %r8, [views+16];
  ld.param.u32 %r1, [count];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p, %r6, %r1;
  @%p bra done;
  mul.wide.u32 %d4, %r6, 4;
  add.s64 %d1, %d1, %d4;
  add.s64 %d2, %d2, %d4;
  add.s64 %d3, %d3, %d4;
  ld.u32 %r2, [%d2];
  ld.u32 %r7, [%d3];
  mad.lo.s32 %r2, %r2, %r8, %r7;
  st.u32 [%d1], %r2;
done:
  ret;
}
)";

struct View {
  uint32_t tag;
  uint32_t pad;
  CUdeviceptr pointer;
};

struct Parameters {
  View out, a, b;
  uint32_t count;
};
}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  CUmodule module;
  CUfunction combine;
  DRIVER_OK(cuModuleLoadData(&module, kPtx));
  DRIVER_OK(cuModuleGetFunction(&combine, module, "combine"));
  CUstream stream;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  constexpr size_t kPiece = size_t{2} << 20;
  constexpr uint32_t kTouched = 1 << 14;
  const size_t n = options.bytes / kPiece < 4 ? 4 : options.bytes / kPiece;
  std::vector<CUdeviceptr> buffers(n);
  std::vector<std::vector<uint32_t>> model(n, std::vector<uint32_t>(kTouched));
  for (size_t b = 0; b < n; ++b) {
    DRIVER_OK(cuMemAlloc(&buffers[b], kPiece));
    for (uint32_t i = 0; i < kTouched; ++i) model[b][i] = apps::word(i, uint32_t(options.seed + b));
    // At the end of the buffer, so that the words are found through interior pointers.
    DRIVER_OK(cuMemcpyHtoD(buffers[b] + kPiece - kTouched * 4, model[b].data(), kTouched * 4));
  }
  apps::Random random(options.seed);
  for (size_t step = 0; step < 3 * n; ++step) {
    const size_t out = random.below(n), a = random.below(n), b = random.below(n);
    const CUdeviceptr offset = kPiece - kTouched * 4;
    Parameters parameters{{1, 0, buffers[out] + offset},
                          {uint32_t(step + 1), 0, buffers[a] + offset},
                          {3, 0, buffers[b] + offset},
                          kTouched};
    size_t bytes = offsetof(Parameters, count) + 4;
    if (step % 2 == 0) {
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &parameters, CU_LAUNCH_PARAM_BUFFER_SIZE,
                       &bytes, CU_LAUNCH_PARAM_END};
      DRIVER_OK(
          cuLaunchKernel(combine, kTouched / 128, 1, 1, 128, 1, 1, 0, stream, nullptr, extra));
    } else {
      void* list[] = {&parameters, &parameters.count};
      CUlaunchConfig config{};
      config.gridDimX = kTouched / 128, config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = 128, config.blockDimY = config.blockDimZ = 1;
      config.hStream = stream;
      DRIVER_OK(cuLaunchKernelEx(&config, combine, list, nullptr));
    }
    std::memset(&parameters, 0xff, sizeof parameters);  // the driver has copied them
    for (uint32_t i = 0; i < kTouched; ++i)
      model[out][i] = model[a][i] * uint32_t(step + 1) + model[b][i];
  }
  DRIVER_OK(cuStreamSynchronize(stream));
  std::vector<uint32_t> got(kTouched);
  for (size_t b = 0; b < n; ++b) {
    DRIVER_OK(cuMemcpyDtoH(got.data(), buffers[b] + kPiece - kTouched * 4, kTouched * 4));
    for (uint32_t i = 0; i < kTouched; ++i) {
      CHECK(got[i] == model[b][i], "buffer %zu word %u is %#x, expected %#x", b, i, got[i],
            model[b][i]);
    }
  }
  DRIVER_OK(cuStreamDestroy(stream));
  DRIVER_OK(cuModuleUnload(module));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("extra_launch: %zu launches over %zu buffers", 3 * n, n);
}
