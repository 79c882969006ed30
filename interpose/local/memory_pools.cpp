#include "interpose/local/memory_pools.h"

#include <map>
#include <mutex>

#include "interpose/local/hook.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

struct MemoryPools {
  std::mutex mutex;
  std::map<CUmemoryPool, CUmemPoolProps> made;      // by the program
  std::map<CUdeviceptr, CUmemoryPool> allocations;  // from pools other than their device's default
};

MemoryPools& state() {
  static auto* instance = new MemoryPools;
  return *instance;
}

bool servable(const CUmemPoolProps& props) {
  return props.location.type == CU_MEM_LOCATION_TYPE_DEVICE && props.handleTypes == CU_MEM_HANDLE_TYPE_NONE;
}

}  // namespace

bool poolDevice(CUmemoryPool pool, CUdevice* device) {
  {
    MemoryPools& all = state();
    std::lock_guard lock(all.mutex);
    const auto found = all.made.find(pool);
    if (found != all.made.end()) {
      *device = found->second.location.id;
      return servable(found->second);
    }
  }
  int count = 0;
  if (driver().cuDeviceGetCount(&count) != CUDA_SUCCESS || driver().cuDeviceGetDefaultMemPool == nullptr) return false;
  for (int i = 0; i < count; ++i) {
    CUdevice candidate = 0;
    CUmemoryPool its_default = nullptr;
    if (driver().cuDeviceGet(&candidate, i) != CUDA_SUCCESS) continue;
    if (driver().cuDeviceGetDefaultMemPool(&its_default, candidate) != CUDA_SUCCESS || its_default != pool) continue;
    *device = candidate;
    return true;
  }
  return false;
}

CUmemoryPool currentPool(CUdevice device) {
  {
    MemoryPools& all = state();
    std::lock_guard lock(all.mutex);
    if (all.made.empty()) return nullptr;
  }
  CUmemoryPool current = nullptr;
  CUmemoryPool its_default = nullptr;
  if (driver().cuDeviceGetMemPool == nullptr || driver().cuDeviceGetMemPool(&current, device) != CUDA_SUCCESS) {
    return nullptr;
  }
  (void)driver().cuDeviceGetDefaultMemPool(&its_default, device);
  return current == its_default ? nullptr : current;
}

void noteFromPool(CUdeviceptr address, CUmemoryPool pool) {
  MemoryPools& all = state();
  std::lock_guard lock(all.mutex);
  all.allocations[address] = pool;
}

CUmemoryPool poolOf(CUdeviceptr address, CUdevice device) {
  {
    MemoryPools& all = state();
    std::lock_guard lock(all.mutex);
    const auto found = all.allocations.find(address);
    if (found != all.allocations.end()) return found->second;
  }
  CUmemoryPool its_default = nullptr;
  if (driver().cuDeviceGetDefaultMemPool != nullptr) (void)driver().cuDeviceGetDefaultMemPool(&its_default, device);
  return its_default;
}

void forgetFromPool(CUdeviceptr address) {
  MemoryPools& all = state();
  std::lock_guard lock(all.mutex);
  all.allocations.erase(address);
}

}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C functions

OLPAGER_HOOK(cuMemPoolCreate)(CUmemoryPool* out, const CUmemPoolProps* props) {
  const CUresult result = driver().cuMemPoolCreate(out, props);
  if (result == CUDA_SUCCESS) {
    MemoryPools& all = state();
    std::lock_guard lock(all.mutex);
    all.made[*out] = *props;
  }
  return result;
}

OLPAGER_HOOK(cuMemPoolDestroy)(CUmemoryPool memory_pool) {
  const CUresult result = driver().cuMemPoolDestroy(memory_pool);
  if (result == CUDA_SUCCESS) {
    MemoryPools& all = state();
    std::lock_guard lock(all.mutex);
    all.made.erase(memory_pool);
  }
  return result;
}
