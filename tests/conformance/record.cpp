#include "record.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace conformance {

Driver api;

void openDriver(const char* path) {
  api.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (api.library == nullptr) {
    std::fprintf(stderr, "conformance: %s\n", dlerror());
    std::exit(2);
  }
  const char* missing = nullptr;
#define CONFORMANCE_TEXT(name) #name
#define CONFORMANCE_NAME(name) CONFORMANCE_TEXT(name)
#define CONFORMANCE_LOAD(name)                                                                 \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(api.library, CONFORMANCE_NAME(name))); \
  if (api.name == nullptr) missing = CONFORMANCE_NAME(name);
  CONFORMANCE_FUNCTIONS(CONFORMANCE_LOAD)
#undef CONFORMANCE_LOAD
  if (missing != nullptr) {
    std::fprintf(stderr, "conformance: %s has no %s\n", path, missing);
    std::exit(2);
  }
}

std::string text(CUresult result) {
  switch (int(result)) {
#define CONFORMANCE_CASE(name) \
  case CUDA_ERROR_##name:      \
    return std::to_string(int(result)) + " " #name;
    CONFORMANCE_CASE(INVALID_VALUE)
    CONFORMANCE_CASE(OUT_OF_MEMORY)
    CONFORMANCE_CASE(NOT_INITIALIZED)
    CONFORMANCE_CASE(DEINITIALIZED)
    CONFORMANCE_CASE(NO_DEVICE)
    CONFORMANCE_CASE(INVALID_DEVICE)
    CONFORMANCE_CASE(INVALID_IMAGE)
    CONFORMANCE_CASE(INVALID_CONTEXT)
    CONFORMANCE_CASE(NO_BINARY_FOR_GPU)
    CONFORMANCE_CASE(INVALID_PTX)
    CONFORMANCE_CASE(UNSUPPORTED_PTX_VERSION)
    CONFORMANCE_CASE(INVALID_SOURCE)
    CONFORMANCE_CASE(FILE_NOT_FOUND)
    CONFORMANCE_CASE(INVALID_HANDLE)
    CONFORMANCE_CASE(ILLEGAL_STATE)
    CONFORMANCE_CASE(NOT_FOUND)
    CONFORMANCE_CASE(NOT_READY)
    CONFORMANCE_CASE(ILLEGAL_ADDRESS)
    CONFORMANCE_CASE(LAUNCH_OUT_OF_RESOURCES)
    CONFORMANCE_CASE(PRIMARY_CONTEXT_ACTIVE)
    CONFORMANCE_CASE(CONTEXT_IS_DESTROYED)
    CONFORMANCE_CASE(HOST_MEMORY_ALREADY_REGISTERED)
    CONFORMANCE_CASE(HOST_MEMORY_NOT_REGISTERED)
    CONFORMANCE_CASE(LAUNCH_FAILED)
    CONFORMANCE_CASE(COOPERATIVE_LAUNCH_TOO_LARGE)
    CONFORMANCE_CASE(NOT_PERMITTED)
    CONFORMANCE_CASE(NOT_SUPPORTED)
    CONFORMANCE_CASE(STREAM_CAPTURE_UNSUPPORTED)
    CONFORMANCE_CASE(STREAM_CAPTURE_INVALIDATED)
    CONFORMANCE_CASE(STREAM_CAPTURE_MERGE)
    CONFORMANCE_CASE(STREAM_CAPTURE_UNMATCHED)
    CONFORMANCE_CASE(STREAM_CAPTURE_UNJOINED)
    CONFORMANCE_CASE(STREAM_CAPTURE_ISOLATION)
    CONFORMANCE_CASE(STREAM_CAPTURE_IMPLICIT)
    CONFORMANCE_CASE(CAPTURED_EVENT)
    CONFORMANCE_CASE(STREAM_CAPTURE_WRONG_THREAD)
    CONFORMANCE_CASE(GRAPH_EXEC_UPDATE_FAILURE)
    CONFORMANCE_CASE(UNKNOWN)
#undef CONFORMANCE_CASE
    case CUDA_SUCCESS:
      return "0 SUCCESS";
    default:
      return std::to_string(int(result));
  }
}

void record(const std::string& key, const std::string& value) {
  const std::string line = key + " = " + value + "\n";
  // One write for each line: what was said before a crash counts.
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::exit(2);
}
void record(const std::string& key, const char* value) { record(key, std::string(value)); }
void record(const std::string& key, CUresult result) { record(key, text(result)); }
void recordNumber(const std::string& key, int64_t value) { record(key, std::to_string(value)); }
void recordBool(const std::string& key, bool value) { record(key, value ? "yes" : "no"); }
void recordNumberOr(const std::string& key, CUresult result, int64_t value) {
  result == CUDA_SUCCESS ? recordNumber(key, value) : record(key, result);
}
void recordBoolOr(const std::string& key, CUresult result, bool value) {
  result == CUDA_SUCCESS ? recordBool(key, value) : record(key, result);
}

void need(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "conformance: %s: %s\n", what, text(result).c_str());
  std::exit(3);
}

Base::Base() {
  need(api.cuInit(0), "cuInit");
  need(api.cuDeviceGet(&device, 0), "cuDeviceGet");
  need(api.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  need(api.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

const char* const kPtx = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 8 .b8 table[64];
.visible .const .align 4 .u32 limit;
.visible .entry nothing() { ret; }
.visible .entry store(.param .u64 address, .param .u32 value)
{
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  ld.param.u64 %d1, [address];
  ld.param.u32 %r1, [value];
  st.u32 [%d1], %r1;
  ret;
}
.visible .entry load(.param .u64 out, .param .u64 address)
{
  .reg .b32 %r<2>;
  .reg .b64 %d<3>;
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [address];
  ld.u32 %r1, [%d2];
  st.u32 [%d1], %r1;
  ret;
}
.visible .entry spin(.param .u64 flag, .param .u64 ns)
{
  .reg .pred %p<3>;
  .reg .b32 %r<2>;
  .reg .b64 %d<5>;
  ld.param.u64 %d1, [flag];
  ld.param.u64 %d2, [ns];
  mov.u64 %d3, %globaltimer;
  add.u64 %d2, %d2, %d3;
again:
  ld.volatile.u32 %r1, [%d1];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra done;
  mov.u64 %d4, %globaltimer;
  setp.lt.u64 %p2, %d4, %d2;
  @%p2 bra again;
done:
  ret;
}
.visible .entry atomics(.param .u64 block)
{
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  .reg .f32 %f<4>;
  .reg .f64 %g<4>;
  ld.param.u64 %d1, [block];
  atom.add.u32 %r1, [%d1], 5;
  atom.max.u32 %r1, [%d1+4], 100;
  atom.min.s32 %r1, [%d1+8], -7;
  atom.exch.b32 %r1, [%d1+12], 77;
  atom.cas.b32 %r1, [%d1+16], 11, 99;
  mov.f32 %f1, 0f3FC00000;
  atom.add.f32 %f2, [%d1+20], %f1;
  mov.u64 %d2, 6000000000;
  atom.add.u64 %d3, [%d1+24], %d2;
  mov.f64 %g1, 0d4004000000000000;
  atom.add.f64 %g2, [%d1+32], %g1;
  atom.or.b32 %r1, [%d1+40], 12;
  atom.and.b32 %r1, [%d1+44], 12;
  atom.xor.b32 %r1, [%d1+48], 12;
  mov.u64 %d4, 1;
  mov.u64 %d5, 8589934592;
  atom.cas.b64 %d6, [%d1+56], %d4, %d5;
  red.add.u32 [%d1+64], 3;
  ret;
}
.visible .entry many(.param .u8 a, .param .u64 b, .param .u32 c, .param .align 8 .b8 d[24], .param .u16 e) { ret; }
)";

Kernels::Kernels() {
  need(api.cuModuleLoadData(&module, kPtx), "cuModuleLoadData");
  const struct {
    const char* name;
    CUfunction* function;
  } entries[] = {{"nothing", &nothing}, {"store", &store},     {"load", &load},
                 {"spin", &spin},       {"atomics", &atomics}, {"many", &many}};
  for (const auto& entry : entries)
    need(api.cuModuleGetFunction(entry.function, module, entry.name), entry.name);
}

CUresult launchOne(CUfunction function, std::vector<void*> parameters, CUstream stream) {
  return api.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr);
}

}  // namespace conformance
