// Shared by programs of the driver API: a context, and one kernel from PTX text.
#pragma once

#include <string>

#include "common.h"

namespace apps {

/// Makes device 0's primary context current; the program releases it at its end.
inline CUdevice usePrimaryContext() {
  CUdevice device;
  CUcontext context;
  DRIVER_OK(cuInit(0));
  DRIVER_OK(cuDeviceGet(&device, 0));
  DRIVER_OK(cuDevicePrimaryCtxRetain(&context, device));
  DRIVER_OK(cuCtxSetCurrent(context));
  return device;
}

/// Adds a value to `count` 32-bit words that lie `stride` bytes apart, one thread for each.
class Bump {
 public:
  explicit Bump(unsigned stride) {
    const std::string ptx = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry bump(.param .u64 address, .param .u32 count, .param .u32 value)
{
  .reg .pred %p;
  .reg .b32 %r<7>;
  .reg .b64 %d<3>;
  ld.param.u64 %d1, [address];
  ld.param.u32 %r1, [count];
  ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p, %r6, %r1;
  @%p bra done;
  mul.wide.u32 %d2, %r6, )" +
                            std::to_string(stride) +
                            R"(;
  add.u64 %d1, %d1, %d2;
  ld.global.u32 %r3, [%d1];
  add.u32 %r3, %r3, %r2;
  st.global.u32 [%d1], %r3;
done:
  ret;
}
)";
    CUmodule module;
    DRIVER_OK(cuModuleLoadData(&module, ptx.c_str()));
    DRIVER_OK(cuModuleGetFunction(&kernel_, module, "bump"));
  }
  void operator()(CUdeviceptr address, uint32_t count, uint32_t value,
                  CUstream stream = nullptr) const {
    void* parameters[] = {&address, &count, &value};
    DRIVER_OK(cuLaunchKernel(kernel_, (count + 127) / 128, 1, 1, 128, 1, 1, 0, stream, parameters,
                             nullptr));
  }
  CUfunction kernel() const { return kernel_; }

 private:
  CUfunction kernel_ = nullptr;
};

}  // namespace apps
