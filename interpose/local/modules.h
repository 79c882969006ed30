// The globals and constants of modules and libraries. A kernel can find addresses of the range in
// them, so the pager has to know where they are before a kernel of the module runs for the first
// time. Thread-safety: any thread. Lock: ModuleRoots::mutex; the driver is never called under it.
#pragma once

#include <cuda.h>

#include <optional>

#include "base/held_signals.h"

namespace olpager::local {

/// While it lives the driver may load or unload code for the context, or do what else waits for all
/// that runs there: managed memory is where a touch of the CPU's does not wait for that
/// (pager/launch/code_loads.h). Costs nothing where there is no managed memory.
class LoadsCode {
 public:
  explicit LoadsCode(CUcontext context);
  ~LoadsCode();
  LoadsCode(const LoadsCode&) = delete;
  LoadsCode& operator=(const LoadsCode&) = delete;

 private:
  CUdevice device_ = 0;
  bool began_ = false;
  std::optional<base::HeldSignals> held_;
};

/// `function` (a CUfunction, or a CUkernel in its place) is about to be launched in `context` for
/// the first time: makes the variables of its module known to the pager. Cheap when that was done
/// before.
void registerModuleOf(CUfunction function, CUcontext context);

/// The program was told where a variable of module or library `handle` is in the current context:
/// it may copy to it before any kernel of the module runs. Makes all variables of the image known
/// to the pager, and this one in any case.
void registerVariable(const void* handle, CUdeviceptr address, size_t bytes, bool managed);

/// The context is about to be destroyed, and its instances of all modules with it.
void modulesOfContextGone(CUcontext context);

}  // namespace olpager::local
