#include "interpose/local/graph_memory.h"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>

#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/hook.h"
#include "interpose/local/locks.h"
#include "interpose/local/pinned_users.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

struct GraphMemories {
  struct One {
    uint64_t buffer_id = 0;
    uint64_t bytes = 0;
    CUdevice device = 0;
    std::weak_ptr<GraphMemory> owner;  // expired: it is left
    bool allocated = false;
  };
  base::RankedMutex mutex{kGraphMemoriesMutex};
  std::map<CUdeviceptr, One> all;
  std::map<CUdevice, GraphMemoryUsage> usage;

  void setAllocated(One& one, bool allocated) {
    if (one.allocated == allocated) return;
    one.allocated = allocated;
    GraphMemoryUsage& here = usage[one.device];
    here.used = allocated ? here.used + one.bytes : here.used - one.bytes;
    here.used_high = std::max(here.used_high, here.used);
  }
  std::map<CUdeviceptr, One>::iterator remove(std::map<CUdeviceptr, One>::iterator one) {
    setAllocated(one->second, false);
    usage[one->second.device].reserved -= one->second.bytes;
    return all.erase(one);
  }
  // One whose context is gone is none: other memory may have its address.
  One* find(CUdeviceptr address);
};

// Never destroyed: graphs are launched in destructors of the program too.
GraphMemories& graphMemories() {
  static auto* instance = new GraphMemories;
  return *instance;
}

bool describe(CUdeviceptr address, pager::AllocationInfo* info) {
  const pager::Pool* running = pool();
  return running != nullptr && running->describe(address, info) && info->base == address;
}

bool isThere(CUdeviceptr address, uint64_t buffer_id) {
  pager::AllocationInfo info;
  return describe(address, &info) && info.buffer_id == buffer_id;
}

GraphMemories::One* GraphMemories::find(CUdeviceptr address) {
  const auto found = all.find(address);
  return found != all.end() && isThere(address, found->second.buffer_id) ? &found->second : nullptr;
}

}  // namespace

GraphMemory::~GraphMemory() {
  bool there = false;
  {
    GraphMemories& memories = graphMemories();
    std::lock_guard lock(memories.mutex);
    const auto found = memories.all.find(address_);
    if (found == memories.all.end() || found->second.buffer_id != buffer_id_) return;
    there = isThere(address_, buffer_id_);
    if (there && found->second.allocated) return;
    memories.remove(found);
  }
  if (!there) return;
  try {
    forgetPointerState(address_);
    (void)freeMemory(address_);
  } catch (const std::exception& failure) {  // no memory: the graph goes all the same
    base::logError("memory of a graph that is gone stays: %s", failure.what());
  }
}

void MemoryUse::add(const MemoryUse& other) {
  allocates.insert(allocates.end(), other.allocates.begin(), other.allocates.end());
  frees.insert(frees.end(), other.frees.begin(), other.frees.end());
}

std::shared_ptr<GraphMemory> newGraphMemory(CUdeviceptr address) {
  pager::AllocationInfo info;
  (void)describe(address, &info);
  auto made = std::make_shared<GraphMemory>(address, info.buffer_id);
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  if (const auto before = memories.all.find(address); before != memories.all.end())
    memories.remove(before);
  memories.all[address] = {info.buffer_id, info.bytes, info.device, made, false};
  GraphMemoryUsage& usage = memories.usage[info.device];
  usage.reserved += info.bytes;
  usage.reserved_high = std::max(usage.reserved_high, usage.reserved);
  return made;
}

bool isGraphMemory(CUdeviceptr address) {
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  return memories.find(address) != nullptr;
}

GraphFree freeGraphMemory(CUdeviceptr address) {
  std::shared_ptr<GraphMemory> owner;  // goes after the lock
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  GraphMemories::One* const one = memories.find(address);
  if (one == nullptr) return GraphFree::kOther;
  if (!one->allocated) return GraphFree::kIdle;
  memories.setAllocated(*one, false);
  owner = one->owner.lock();
  if (owner != nullptr) return GraphFree::kFreed;
  memories.remove(memories.all.find(address));
  return GraphFree::kLeft;
}

CUresult MemoryLaunch::begin(MemoryUse use, bool auto_free) {
  if (use.empty()) return CUDA_SUCCESS;
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  std::map<CUdeviceptr, bool> allocated;  // by the graph so far
  for (const auto& memory : use.allocates) {
    const GraphMemories::One* const one = memories.find(memory->address());
    if (one == nullptr || (one->allocated && !auto_free)) return CUDA_ERROR_INVALID_VALUE;
    allocated[memory->address()] = true;
  }
  for (const CUdeviceptr address : use.frees) {
    const GraphMemories::One* const one = memories.find(address);
    if (one == nullptr) return CUDA_ERROR_INVALID_VALUE;
    bool& now = allocated.try_emplace(address, one->allocated).first->second;
    if (!now) return CUDA_ERROR_INVALID_VALUE;
    now = false;
  }
  before_.reserve(allocated.size());
  for (const auto& [address, after] : allocated) {
    GraphMemories::One& one = *memories.find(address);
    before_.push_back({address, one.allocated});
    memories.setAllocated(one, true);  // counts towards the most
  }
  for (const auto& [address, after] : allocated)
    memories.setAllocated(*memories.find(address), after);
  use_ = std::move(use);
  return CUDA_SUCCESS;
}

std::vector<CUdeviceptr> MemoryLaunch::done() {
  std::vector<CUdeviceptr> left;
  if (before_.empty()) return left;
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  for (const Before& one : before_) {
    const auto found = memories.all.find(one.address);
    if (found == memories.all.end() || found->second.allocated || !found->second.owner.expired())
      continue;
    memories.remove(found);
    left.push_back(one.address);
  }
  before_.clear();
  return left;
}

MemoryLaunch::~MemoryLaunch() {
  if (before_.empty()) return;
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  for (const Before& one : before_) {
    const auto found = memories.all.find(one.address);
    if (found != memories.all.end()) memories.setAllocated(found->second, one.allocated);
  }
}

GraphMemoryUsage graphMemoryUsage(CUdevice device) {
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  return memories.usage[device];
}

void graphMemoryOfContextGone() {
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  for (auto one = memories.all.begin(); one != memories.all.end();)
    one = isThere(one->first, one->second.buffer_id) ? std::next(one) : memories.remove(one);
}

}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

// The driver's own memory of graphs, and the pager's. For the most bytes the sum is told: the two
// need not have had theirs at the same time.
OLPAGER_HOOK(cuDeviceGetGraphMemAttribute)
(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  const CUresult result = driver().cuDeviceGetGraphMemAttribute(device, attribute, value);
  if (result != CUDA_SUCCESS || pool() == nullptr) return result;
  const GraphMemoryUsage usage = graphMemoryUsage(device);
  auto* const bytes = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *bytes += usage.used;
      break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *bytes += usage.used_high;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *bytes += usage.reserved;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *bytes += usage.reserved_high;
      break;
  }
  return result;
}

OLPAGER_HOOK(cuDeviceSetGraphMemAttribute)
(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  const CUresult result = driver().cuDeviceSetGraphMemAttribute(device, attribute, value);
  if (result != CUDA_SUCCESS || pool() == nullptr) return result;
  GraphMemories& memories = graphMemories();
  std::lock_guard lock(memories.mutex);
  GraphMemoryUsage& usage = memories.usage[device];
  // The driver takes no other attribute, nor another value than 0.
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) usage.used_high = usage.used;
  if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) usage.reserved_high = usage.reserved;
  return result;
}
