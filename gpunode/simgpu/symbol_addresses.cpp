#include "gpunode/simgpu/symbol_addresses.h"

#include <dlfcn.h>

namespace olpager::simgpu {

void* symbolAddress(api::Symbol symbol) {
  static void* const self = []() -> void* {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&symbolAddress), &info) == 0) return nullptr;
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return self == nullptr ? nullptr : dlsym(self, api::symbolName(symbol));
}

}  // namespace olpager::simgpu
