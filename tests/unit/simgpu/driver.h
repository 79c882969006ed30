// The driver functions that the simulated GPU's tests call, from the library that OLSIM_LIBRARY
// names.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace simgpu_test {

inline void* library() {
  static void* const opened = [] {
    const char* path = std::getenv("OLSIM_LIBRARY");
    if (path == nullptr) throw std::runtime_error("OLSIM_LIBRARY is not set");
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    return handle;
  }();
  return opened;
}

template <typename Function>
Function function(const char* name) {
  void* found = dlsym(library(), name);
  if (found == nullptr) throw std::runtime_error(std::string("no ") + name);
  return reinterpret_cast<Function>(found);
}

#define SIM_TEXT(name) #name
#define SIM_SYMBOL(name) SIM_TEXT(name)
/// Calls the newest version of a driver function, as cuda.h names it.
#define CU(name) (simgpu_test::function<decltype(&::name)>(SIM_SYMBOL(name)))
#define OK(call) REQUIRE((call) == CUDA_SUCCESS)

constexpr size_t kPage = size_t{2} << 20;

/// The primary context of device 0, current while it lives.
class Primary {
 public:
  explicit Primary(CUdevice ordinal = 0) : device(ordinal) {
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&context, device));
    OK(CU(cuCtxSetCurrent)(context));
  }
  ~Primary() {
    CU(cuCtxSetCurrent)(nullptr);
    CU(cuDevicePrimaryCtxRelease)(device);
  }
  Primary(const Primary&) = delete;
  Primary& operator=(const Primary&) = delete;
  CUdevice device;
  CUcontext context = nullptr;
};

inline size_t freeBytes() {
  size_t free_now = 0, total = 0;
  OK(CU(cuMemGetInfo)(&free_now, &total));
  return free_now;
}

inline CUmemAllocationProp chunkOf(CUmemLocationType type, int id = 0) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = type;
  prop.location.id = id;
  return prop;
}

inline CUmemAccessDesc accessFor(CUmemLocationType type, int id = 0,
                                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc access{};
  access.location.type = type;
  access.location.id = id;
  access.flags = flags;
  return access;
}

}  // namespace simgpu_test
