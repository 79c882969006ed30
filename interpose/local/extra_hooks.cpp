#include "interpose/local/extra_hooks.h"

#include "interpose/local/extra.h"

namespace olpager::local {

void* extraHook(api::Symbol symbol) {
  switch (symbol) {
    case api::Symbol::kCuMemPoolCreate: return reinterpret_cast<void*>(&ol_extra_cuMemPoolCreate);
    case api::Symbol::kCuMemPoolDestroy: return reinterpret_cast<void*>(&ol_extra_cuMemPoolDestroy);
    case api::Symbol::kCuDevicePrimaryCtxRetain: return reinterpret_cast<void*>(&ol_extra_cuDevicePrimaryCtxRetain);
    case api::Symbol::kCuLibraryGetModule: return reinterpret_cast<void*>(&ol_extra_cuLibraryGetModule);
    case api::Symbol::kCuKernelGetFunction: return reinterpret_cast<void*>(&ol_extra_cuKernelGetFunction);
    default: return nullptr;
  }
}

}  // namespace olpager::local
