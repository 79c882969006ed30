#include "interpose/local/memory_pools.h"

#include <map>
#include <mutex>

#include "interpose/local/hook.h"
#include "interpose/local/locks.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

// A pool that the program has made.
struct MadePool {
  CUmemPoolProps props{};
  uint64_t used = 0;  // as the largest size counts it
};

struct FromPool {
  CUmemoryPool pool = nullptr;
  uint64_t bytes = 0;  // of MadePool::used; 0 where the pool has been destroyed since
};

struct MemoryPools {
  base::RankedMutex mutex{kMemoryPoolsMutex};
  std::map<CUmemoryPool, MadePool> made;
  std::map<CUdeviceptr, FromPool> allocations;  // from pools other than their device's default
};

MemoryPools& memoryPools() {
  static auto* instance = new MemoryPools;
  return *instance;
}

constexpr uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }
// Allocations begin at such multiples.
constexpr uint64_t kUnit = 512;

bool servable(const CUmemPoolProps& props) {
  return props.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         props.handleTypes == CU_MEM_HANDLE_TYPE_NONE;
}

// Under the mutex. Returns the next one.
std::map<CUdeviceptr, FromPool>::iterator forget(MemoryPools& all,
                                                 std::map<CUdeviceptr, FromPool>::iterator one) {
  if (const auto made = all.made.find(one->second.pool); made != all.made.end())
    made->second.used -= one->second.bytes;
  return all.allocations.erase(one);
}

}  // namespace

bool poolDevice(CUmemoryPool pool, CUdevice* device) {
  {
    MemoryPools& all = memoryPools();
    std::lock_guard lock(all.mutex);
    const auto found = all.made.find(pool);
    if (found != all.made.end()) {
      *device = found->second.props.location.id;
      return servable(found->second.props);
    }
  }
  int count = 0;
  if (driver().cuDeviceGetCount(&count) != CUDA_SUCCESS ||
      driver().cuDeviceGetDefaultMemPool == nullptr)
    return false;
  for (int i = 0; i < count; ++i) {
    CUdevice candidate = 0;
    CUmemoryPool its_default = nullptr;
    if (driver().cuDeviceGet(&candidate, i) != CUDA_SUCCESS) continue;
    if (driver().cuDeviceGetDefaultMemPool(&its_default, candidate) != CUDA_SUCCESS ||
        its_default != pool)
      continue;
    *device = candidate;
    return true;
  }
  return false;
}

CUmemoryPool currentPool(CUdevice device) {
  {
    MemoryPools& all = memoryPools();
    std::lock_guard lock(all.mutex);
    if (all.made.empty()) return nullptr;
  }
  CUmemoryPool current = nullptr;
  CUmemoryPool its_default = nullptr;
  if (driver().cuDeviceGetMemPool == nullptr ||
      driver().cuDeviceGetMemPool(&current, device) != CUDA_SUCCESS) {
    return nullptr;
  }
  (void)driver().cuDeviceGetDefaultMemPool(&its_default, device);
  return current == its_default ? nullptr : current;
}

PoolShare::PoolShare(CUmemoryPool pool, uint64_t bytes)
    : pool_(pool), bytes_(rounded(bytes, kUnit)) {
  MemoryPools& all = memoryPools();
  std::lock_guard lock(all.mutex);
  const auto found = all.made.find(pool);
  if (found == all.made.end()) return;
  MadePool& made = found->second;
  // The driver takes memory by whole pages.
  const uint64_t most = rounded(made.props.maxSize, pager::kPageBytes);
  fits_ = most == 0 || (bytes_ <= most && made.used <= most - bytes_);
  if (fits_) made.used += bytes_;
  counted_ = fits_;
}

PoolShare::~PoolShare() {
  if (!counted_) return;
  MemoryPools& all = memoryPools();
  std::lock_guard lock(all.mutex);
  if (const auto found = all.made.find(pool_); found != all.made.end())
    found->second.used -= bytes_;
}

void PoolShare::becomes(CUdeviceptr address) {
  MemoryPools& all = memoryPools();
  std::lock_guard lock(all.mutex);
  if (const auto before = all.allocations.find(address); before != all.allocations.end())
    forget(all, before);
  all.allocations[address] = {pool_, counted_ && all.made.contains(pool_) ? bytes_ : 0};
  counted_ = false;
}

CUmemoryPool poolOf(CUdeviceptr address, CUdevice device) {
  {
    MemoryPools& all = memoryPools();
    std::lock_guard lock(all.mutex);
    const auto found = all.allocations.find(address);
    if (found != all.allocations.end()) return found->second.pool;
  }
  CUmemoryPool its_default = nullptr;
  if (driver().cuDeviceGetDefaultMemPool != nullptr)
    (void)driver().cuDeviceGetDefaultMemPool(&its_default, device);
  return its_default;
}

void forgetFromPool(CUdeviceptr address) {
  MemoryPools& all = memoryPools();
  std::lock_guard lock(all.mutex);
  const auto found = all.allocations.find(address);
  if (found != all.allocations.end()) forget(all, found);
}

void forgetFromPools() {
  const pager::Pool* const running = pool();
  MemoryPools& all = memoryPools();
  std::lock_guard lock(all.mutex);
  for (auto one = all.allocations.begin(); one != all.allocations.end();)
    one =
        running != nullptr && running->isAllocated(one->first) ? std::next(one) : forget(all, one);
}

}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

OLPAGER_HOOK(cuMemPoolCreate)(CUmemoryPool* out, const CUmemPoolProps* props) {
  const CUresult result = driver().cuMemPoolCreate(out, props);
  if (result == CUDA_SUCCESS) {
    MemoryPools& all = memoryPools();
    std::lock_guard lock(all.mutex);
    all.made[*out] = {*props, 0};
  }
  return result;
}

OLPAGER_HOOK(cuMemPoolDestroy)(CUmemoryPool memory_pool) {
  const CUresult result = driver().cuMemPoolDestroy(memory_pool);
  if (result == CUDA_SUCCESS) {
    MemoryPools& all = memoryPools();
    std::lock_guard lock(all.mutex);
    all.made.erase(memory_pool);
    // Allocations stay until they are freed. Another pool may get the handle.
    for (auto& [address, from] : all.allocations)
      if (from.pool == memory_pool) from.bytes = 0;
  }
  return result;
}
