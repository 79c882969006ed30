// The driver API with PTX text: a context of its own, JIT options, a module global, all forms of
// memset, and a launch with kernel parameters.
#include <string>

#include "common.h"

namespace {
const char* const kPtx = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 bias;
.visible .entry scale(.param .u64 out, .param .u64 in, .param .u32 count, .param .u32 factor)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [in];
  ld.param.u32 %r1, [count];
  ld.param.u32 %r2, [factor];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p, %r6, %r1;
  @%p bra done;
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  mul.wide.u32 %d3, %r6, 4;
  add.s64 %d4, %d2, %d3;
  add.s64 %d5, %d1, %d3;
  ld.global.u32 %r7, [%d4];
  ld.global.u32 %r3, [bias];
  mad.lo.s32 %r7, %r7, %r2, %r3;
  st.global.u32 [%d5], %r7;
done:
  ret;
}
)";
}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  DRIVER_OK(cuInit(0));
  CUdevice device;
  DRIVER_OK(cuDeviceGet(&device, 0));
  CUcontext context;
  DRIVER_OK(cuCtxCreate(&context, nullptr, 0, device));
  char log[4096] = "";
  CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                          CU_JIT_OPTIMIZATION_LEVEL};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log),
                    reinterpret_cast<void*>(uintptr_t{3})};
  CUmodule module;
  const CUresult loaded = cuModuleLoadDataEx(&module, kPtx, 3, names, values);
  CHECK(loaded == CUDA_SUCCESS, "cuModuleLoadDataEx: %d %s", int(loaded), log);
  CUfunction scale;
  DRIVER_OK(cuModuleGetFunction(&scale, module, "scale"));
  CUfunction missing;
  CHECK(cuModuleGetFunction(&missing, module, "absent") == CUDA_ERROR_NOT_FOUND,
        "an absent function was found");
  CUdeviceptr bias;
  size_t bias_bytes = 0;
  DRIVER_OK(cuModuleGetGlobal(&bias, &bias_bytes, module, "bias"));
  CHECK(bias_bytes == 4, "the global has %zu bytes", bias_bytes);
  const uint32_t offset = uint32_t(options.seed) * 17;
  DRIVER_OK(cuMemcpyHtoD(bias, &offset, 4));

  constexpr size_t kPiece = size_t{2} << 20;
  constexpr uint32_t kTouched = 1 << 14;  // words that the kernel works on in each buffer
  std::vector<CUdeviceptr> buffers(options.bytes / kPiece < 3 ? 3 : options.bytes / kPiece);
  std::vector<uint32_t> host(kPiece / 4);
  for (size_t b = 0; b < buffers.size(); ++b) {
    DRIVER_OK(cuMemAlloc(&buffers[b], kPiece));
    for (uint32_t i = 0; i < host.size(); ++i) host[i] = apps::word(i, uint32_t(options.seed + b));
    DRIVER_OK(cuMemcpyHtoD(buffers[b], host.data(), kPiece));
  }
  for (size_t b = 0; b + 1 < buffers.size();
       ++b) {  // buffer b's upper half becomes a function of b+1's lower half
    CUdeviceptr out = buffers[b] + kPiece / 2, in = buffers[b + 1];
    uint32_t count = kTouched, factor = uint32_t(b + 3);
    void* parameters[] = {&out, &in, &count, &factor};
    DRIVER_OK(
        cuLaunchKernel(scale, kTouched / 256, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  }
  DRIVER_OK(cuCtxSynchronize());
  for (size_t b = 0; b + 1 < buffers.size(); ++b) {
    DRIVER_OK(cuMemcpyDtoH(host.data(), buffers[b], kPiece));
    for (uint32_t i = 0; i < kTouched; ++i) {
      const uint32_t expected =
          apps::word(i, uint32_t(options.seed + b + 1)) * uint32_t(b + 3) + offset;
      const uint32_t got = host[kPiece / 8 + i];
      CHECK(got == expected, "buffer %zu word %u is %#x, expected %#x", b, i, got, expected);
    }
  }
  DRIVER_OK(cuMemsetD8(buffers[0], 0x11, kPiece));
  DRIVER_OK(cuMemsetD16(buffers[0] + 2, 0x2233, 5));
  DRIVER_OK(cuMemsetD32(buffers[0] + 16, 0x44556677, 3));
  DRIVER_OK(cuMemsetD2D8(buffers[0] + 4096, 1024, 0x99, 100, 10));
  DRIVER_OK(cuMemcpyDtoD(buffers[1], buffers[0], kPiece));
  std::vector<uint8_t> expected(kPiece, 0x11), got(kPiece);
  for (int i = 0; i < 5; ++i)
    expected[size_t(2 + 2 * i)] = 0x33, expected[size_t(3 + 2 * i)] = 0x22;
  for (int i = 0; i < 3; ++i) {
    const uint32_t v = 0x44556677;
    std::memcpy(&expected[size_t(16 + 4 * i)], &v, 4);
  }
  for (size_t row = 0; row < 10; ++row) std::memset(&expected[4096 + row * 1024], 0x99, 100);
  DRIVER_OK(cuMemcpyDtoH(got.data(), buffers[1], kPiece));
  for (size_t i = 0; i < kPiece; ++i)
    CHECK(got[i] == expected[i], "byte %zu is %#x, expected %#x", i, got[i], expected[i]);
  for (CUdeviceptr p : buffers) DRIVER_OK(cuMemFree(p));
  DRIVER_OK(cuModuleUnload(module));
  DRIVER_OK(cuCtxDestroy(context));
  return apps::ok("driver_ptx with %zu buffers", buffers.size());
}
