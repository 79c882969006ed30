#include "gpunode/simgpu/mem_pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {

namespace {

constexpr uint64_t kBlockUnit = 512;
/// The sum over all pools, so that synchronizing costs nothing in programs that use none.
std::atomic<uint64_t> g_reserved{0};

uint64_t roundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/// Default and current pools by device ordinal.
struct Pools {
  std::mutex mutex;
  std::map<int, std::shared_ptr<MemPool>> defaults, current;
};

Pools& pools() {
  static Pools* const all = new Pools;
  return *all;
}

}  // namespace

MemPool::MemPool(Device& device, CUmemoryPool handle, const CUmemPoolProps& pool_properties)
    : properties(pool_properties), device_(device), handle_(handle) {}

MemPool::~MemPool() {
  for (const auto& [base, bytes] : chunks_) Driver::get().memory.givePoolMemory(base);
  g_reserved -= reserved_;
}

std::shared_ptr<MemPool> MemPool::defaultOf(Device& device) {
  std::scoped_lock lock(pools().mutex);
  auto& pool = pools().defaults[device.ordinal];
  if (pool == nullptr) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device.ordinal;
    const uint64_t handle = newHandleValue(HandleKind::kMemPool);
    pool = std::make_shared<MemPool>(device, reinterpret_cast<CUmemoryPool>(handle), properties);
    Driver::get().pools.set(handle, pool);
  }
  return pool;
}

std::shared_ptr<MemPool> MemPool::currentOf(Device& device) {
  {
    std::scoped_lock lock(pools().mutex);
    auto it = pools().current.find(device.ordinal);
    if (it != pools().current.end() && it->second != nullptr) return it->second;
  }
  return defaultOf(device);
}

void MemPool::setCurrent(Device& device, std::shared_ptr<MemPool> pool) {
  std::scoped_lock lock(pools().mutex);
  pools().current[device.ordinal] = std::move(pool);
}

bool MemPool::releaseUnused(Device& device) {
  uint64_t released = 0;
  for (const auto& pool : Driver::get().pools.all()) {
    if (&pool->device_ != &device) continue;
    std::scoped_lock lock(pool->mutex_);
    released += pool->releaseLocked(0);
  }
  return released != 0;
}

void MemPool::trimAll(Device& device) {
  if (g_reserved.load(std::memory_order_relaxed) == 0) return;
  for (const auto& pool : Driver::get().pools.all()) {
    if (&pool->device_ != &device) continue;
    std::scoped_lock lock(pool->mutex_);
    (void)pool->releaseLocked(pool->threshold_);
  }
}

void MemPool::trim(uint64_t keep) {
  std::scoped_lock lock(mutex_);
  (void)releaseLocked(keep);
}

void MemPool::joinFree() {
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    auto next = std::next(it);
    if (next == blocks_.end()) break;
    Block &a = it->second, &b = next->second;
    const bool done = a.free_after.complete() && b.free_after.complete();
    const bool joins = a.chunk == b.chunk && !a.used && !b.used &&
                       (done || a.free_after.stream == b.free_after.stream);
    if (!joins) {
      it = next;
      continue;
    }
    a.bytes += b.bytes;
    if (done) {
      a.free_after = {};
    } else {
      a.free_after.number = std::max(a.free_after.number, b.free_after.number);
    }
    blocks_.erase(next);
  }
}

uint64_t MemPool::releaseLocked(uint64_t keep) {
  uint64_t released = 0;
  if (reserved_ <= keep) return 0;
  joinFree();
  for (auto it = blocks_.begin(); it != blocks_.end() && reserved_ > keep;) {
    const Block& block = it->second;
    if (block.used || it->first != block.chunk || block.bytes != chunks_[block.chunk] ||
        !block.free_after.complete()) {
      ++it;
      continue;
    }
    Driver::get().memory.givePoolMemory(it->first);
    reserved_ -= block.bytes;
    g_reserved -= block.bytes;
    released += block.bytes;
    chunks_.erase(it->first);
    it = blocks_.erase(it);
  }
  return released;
}

MemPool::Blocks::iterator MemPool::findFree(const Stream& stream, uint64_t bytes) {
  auto best = blocks_.end();
  for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
    const Block& block = it->second;
    if (block.used || block.bytes < bytes) continue;
    if (block.free_after.stream.get() != &stream && !block.free_after.complete()) continue;
    if (best == blocks_.end() || block.bytes < best->second.bytes) best = it;
  }
  return best;
}

// Under the mutex. 0: the device has no room, or the pool is as large as it may be.
uint64_t MemPool::takeChunk(uint64_t bytes) {
  const uint64_t most = roundUp(properties.maxSize, kPageBytes);
  if (most != 0 && (bytes > most || reserved_ > most - bytes)) return 0;
  return Driver::get().memory.takePoolMemory(device_, bytes);
}

CUresult MemPool::allocate(Context& context, Stream& stream, uint64_t bytes, CUdeviceptr* out) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > device_.vram.totalBytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t need = roundUp(bytes, kBlockUnit);
  Memory& memory = Driver::get().memory;
  for (int attempt = 0;; ++attempt) {
    std::vector<StreamPoint> pending;
    {
      std::scoped_lock lock(mutex_);
      auto it = findFree(stream, need);
      if (it == blocks_.end()) {
        joinFree();
        it = findFree(stream, need);
      }
      if (it == blocks_.end()) {
        const uint64_t size = roundUp(need, kPageBytes);
        uint64_t base = takeChunk(size);
        if (base == 0 && releaseLocked(0) != 0) base = takeChunk(size);
        if (base != 0) {
          chunks_[base] = size;
          reserved_ += size;
          g_reserved += size;
          reserved_high_ = std::max(reserved_high_, reserved_);
          it = blocks_.emplace(base, Block{size, base, false, 0, {}}).first;
        }
      }
      if (it != blocks_.end()) {
        Block& block = it->second;
        if (block.bytes > need) {
          blocks_.emplace(it->first + need,
                          Block{block.bytes - need, block.chunk, false, 0, block.free_after});
          block.bytes = need;
        }
        block.used = true;
        block.requested = bytes;
        block.free_after = {};
        used_ += bytes;
        used_high_ = std::max(used_high_, used_);
        memory.addPoolAllocation(context, handle_, it->first, bytes);
        *out = it->first;
        return CUDA_SUCCESS;
      }
      for (const auto& [base, block] : blocks_)
        if (!block.used && !block.free_after.complete()) pending.push_back(block.free_after);
    }
    // Memory that earlier work gives back will do, once that work is done.
    if (attempt >= 2 || (pending.empty() && !releaseUnused(device_)))
      return CUDA_ERROR_OUT_OF_MEMORY;
    for (const StreamPoint& point : pending) point.wait();
  }
}

void MemPool::retire() {
  bool gone = false;
  {
    std::scoped_lock lock(mutex_);
    retired_ = true;
    gone = used_ == 0;
  }
  if (gone) Driver::get().pools.remove(handle_);
}

bool MemPool::retired() const {
  std::scoped_lock lock(mutex_);
  return retired_;
}

bool MemPool::giveBack(CUdeviceptr address, StreamPoint after) {
  std::unique_lock lock(mutex_);
  auto it = blocks_.find(address);
  if (it == blocks_.end() || !it->second.used) return false;
  it->second.used = false;
  it->second.free_after = std::move(after);
  used_ -= it->second.requested;
  const bool gone = retired_ && used_ == 0;
  lock.unlock();
  if (gone) Driver::get().pools.remove(handle_);
  return true;
}

CUresult MemPool::free(Context& context, Stream& stream, CUdeviceptr address) {
  if (!Driver::get().memory.removePoolAllocation(address)) return CUDA_ERROR_INVALID_VALUE;
  // A pool that has been destroyed goes with its last allocation, but not before the stream has
  // come to that.
  StreamPoint point = context.submit(
      stream, makeOp("stream-ordered free",
                     [pool = shared_from_this()](Context&) { return CUDA_SUCCESS; }));
  return giveBack(address, std::move(point)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult MemPool::freeNow(const Allocation& allocation) {
  const auto pool = Driver::get().pools.find(allocation.pool);
  if (pool == nullptr || !Driver::get().memory.removePoolAllocation(allocation.base))
    return CUDA_ERROR_INVALID_VALUE;
  (void)pool->giveBack(allocation.base, {});
  return CUDA_SUCCESS;
}

CUresult MemPool::attribute(CUmemPool_attribute attribute, void* value) const {
  std::scoped_lock lock(mutex_);
  const auto put = [&](auto number) {
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return put(follow_events_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return put(opportunistic_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return put(internal_dependencies_);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return put(static_cast<cuuint64_t>(threshold_));
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return put(static_cast<cuuint64_t>(reserved_));
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return put(static_cast<cuuint64_t>(reserved_high_));
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return put(static_cast<cuuint64_t>(used_));
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return put(static_cast<cuuint64_t>(used_high_));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult MemPool::setAttribute(CUmemPool_attribute attribute, const void* value) {
  std::scoped_lock lock(mutex_);
  int number = 0;
  cuuint64_t wide = 0;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      std::memcpy(&number, value, sizeof number);
      (attribute == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ? follow_events_
       : attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC     ? opportunistic_
                                                                : internal_dependencies_) = number;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      std::memcpy(&wide, value, sizeof wide);
      threshold_ = wide;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      std::memcpy(&wide, value, sizeof wide);
      if (wide != 0) return CUDA_ERROR_INVALID_VALUE;  // high marks can only be reset
      (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ? reserved_high_ : used_high_) =
          attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ? reserved_ : used_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult MemPool::setAccess(int viewer, CUmemAccess_flags flags) {
  Device* other = Driver::get().device(viewer);
  if (other == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (other == &device_)
    return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  // Page tables know peers by device, not by pool: enabling one pool enables the device's memory.
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    Driver::get().memory.setPeer(device_, *other, true);
  std::scoped_lock lock(mutex_);
  access_[viewer] = flags;
  return CUDA_SUCCESS;
}

CUmemAccess_flags MemPool::access(int viewer) const {
  if (viewer == device_.ordinal) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  std::scoped_lock lock(mutex_);
  auto it = access_.find(viewer);
  return it == access_.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : it->second;
}

}  // namespace olpager::simgpu
