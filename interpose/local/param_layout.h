// Offsets and sizes of a kernel's parameters: asked of the driver once for each kernel and context,
// then looked up on every launch.
//
// Thread-safety: find() is wait-free and takes no lock; everything else may be called from any
// thread. Ownership: layouts live for the whole process; equal ones are stored once, so that
// programs that load and unload modules for ever do not grow them: there are as many as there are
// different ones (of names too, unless reach = all).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace olpager::local {

/// The parameters of a kernel that can hold an address: those of 8 bytes and more.
struct ParamLayout {
  struct Param {
    uint32_t index;  // into kernelParams
    uint32_t bytes;
  };
  std::vector<Param> params;
  std::vector<uint32_t> sizes;  // of all parameters, in bytes
  uint32_t count = 0;           // of all parameters
  uint32_t bytes = 0;           // of the whole parameter block, without padding at its end
  std::string name;             // of the kernel; only where the pager asks for names, else empty

  bool operator==(const ParamLayout&) const;
};
inline bool operator==(const ParamLayout::Param& a, const ParamLayout::Param& b) {
  return a.index == b.index && a.bytes == b.bytes;
}

/// The layout of `function` (a CUfunction, or a CUkernel in its place as the runtime passes it) as
/// last asked in `context`; nullptr when it was not asked since the last invalidateParamLayouts().
const ParamLayout* findParamLayout(CUfunction function, CUcontext context);

/// Asks the driver and publishes the answer. nullptr when the driver does not tell: the handle is
/// no kernel's, or nobody knows what such a kernel takes. Also makes the globals of the kernel's
/// module known to the pager (modules.h).
const ParamLayout* loadParamLayout(CUfunction function, CUcontext context);

/// A module was unloaded: its handles may be given out again for other kernels. Everything is asked
/// again.
void invalidateParamLayouts();

}  // namespace olpager::local
