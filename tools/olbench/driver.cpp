#include "tools/olbench/driver.h"

#include <dlfcn.h>

#include <stdexcept>

#include "base/format.h"

namespace olpager::tools::bench {

Driver::Driver(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
#define OLBENCH_TEXT(name) #name
#define OLBENCH_NAME(name) OLBENCH_TEXT(name)
#define OLBENCH_LOAD(name)                                                     \
  name = reinterpret_cast<decltype(name)>(dlsym(library, OLBENCH_NAME(name))); \
  if (name == nullptr)                                                         \
    throw std::runtime_error(base::format("{} has no {}", path, OLBENCH_NAME(name)));
  OLBENCH_FUNCTIONS(OLBENCH_LOAD)
#undef OLBENCH_LOAD
#undef OLBENCH_NAME
#undef OLBENCH_TEXT
  check(cuInit(0), "cuInit");
  CUdevice device = 0;
  CUcontext context = nullptr;
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

void Driver::check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  throw std::runtime_error(base::format(
      "{}: {} ({})", what, name == nullptr ? "unknown error" : name, static_cast<int>(result)));
}

CUfunction Driver::function(const std::string& ptx, const char* name) const {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  check(cuModuleLoadData(&module, ptx.c_str()), "cuModuleLoadData");
  check(cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  return function;
}

std::string Driver::deviceName() const {
  char name[128] = "";
  check(cuDeviceGetName(name, sizeof name, 0), "cuDeviceGetName");
  return name;
}

std::string emptyKernelPtx(const char* name, unsigned pointers) {
  std::string parameters;
  for (unsigned i = 0; i < pointers; ++i)
    parameters += base::format("{}.param .u64 p{}", i == 0 ? "" : ", ", i);
  return base::format(
      ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry {}({}) {{ ret; }}\n", name,
      parameters);
}

const char* const kTouchPtx = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry touch(.param .u64 address, .param .u64 bytes, .param .u32 stride, .param .u32 write)
{
  .reg .pred %p<3>;
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [address];
  ld.param.u64 %d2, [bytes];
  ld.param.u32 %r1, [stride];
  ld.param.u32 %r2, [write];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  mul.wide.u32 %d3, %r6, %r1;
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra done;
  add.u64 %d4, %d1, %d3;
  ld.volatile.global.u32 %r7, [%d4];
  setp.eq.u32 %p2, %r2, 0;
  @%p2 bra done;
  add.u32 %r7, %r7, 1;
  st.volatile.global.u32 [%d4], %r7;
done:
  ret;
}
.visible .entry stream(.param .u64 out, .param .u64 in, .param .u64 bytes)
{
  .reg .pred %p<2>;
  .reg .b32 %r<12>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [in];
  ld.param.u64 %d3, [bytes];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %d4, %r4, 16;
  setp.ge.u64 %p1, %d4, %d3;
  @%p1 bra finished;
  add.u64 %d5, %d1, %d4;
  add.u64 %d6, %d2, %d4;
  ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d6];
  st.global.v4.u32 [%d5], {%r5, %r6, %r7, %r8};
finished:
  ret;
}
)";

}  // namespace olpager::tools::bench
