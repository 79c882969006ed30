#include "pager/residency/chunks.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/counters/counters.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::pager {

namespace {

CUmemAllocationProp deviceProperties(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

CUmemAllocationProp hostProperties(int numa_node) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, numa_node};
  return properties;
}

constexpr uint64_t kLongestRetryNs = 60'000'000'000;
constexpr double kTellWaitSeconds = 2;  // of waiting for host memory, until a line tells of it

CUmemAccessDesc readWrite(CUmemLocationType type, int id, bool read_only = false) {
  CUmemAccessDesc access{};
  access.location = {type, id};
  access.flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

// NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's address of the chunk
const void* memoryOf(const HostChunk& chunk) { return reinterpret_cast<const void*>(chunk.alias); }

}  // namespace

ChunkStore::~ChunkStore() {
  shares_host_ = false;
  countHost(0);
  for (unsigned order = 0; order < kOrders; ++order) {
    for (VramChunk* chunk : free_vram_[order]) delete chunk;
    for (HostChunk* chunk : free_host_[order]) delete chunk;
  }
  for (const KeptChunk& kept : kept_) delete kept.chunk;
  for (VramChunk* chunk : doomed_vram_) delete chunk;
  for (HostChunk* chunk : doomed_host_) delete chunk;
}

// Counts pages of the host tier: in use and kept free.
void ChunkStore::countHost(uint64_t made) {
  auto& figure = counters().host_used_bytes;
  if (made >= host_made_) {
    add(figure, made - host_made_);
  } else {
    subtract(figure, host_made_ - made);
  }
  if (shares_host_) host_.made += made - host_made_;
  host_made_ = made;
}

void ChunkStore::setVramBudget(uint64_t bytes) {
  vram_budget_ = bytes;
  set(counters().device(static_cast<unsigned>(device_)).vram_budget_bytes, bytes);
}

void ChunkStore::setBudgets(uint64_t vram_bytes) {
  vram_budget_ = vram_bytes;
  shares_host_ = true;
  host_.stores.push_back(this);
}

void ChunkStore::leaveHost() {
  if (!shares_host_) return;
  shares_host_ = false;
  std::erase(host_.stores, this);
  host_.made -= host_made_;
}

void ChunkStore::probeHost(int numa_node) {
  numa_node_ = numa_node < 0 ? 0 : numa_node;
  aliases_.begin();
  host_mappable_ = true;
  HostChunk* chunk = makeHost(0);
  host_mappable_ = chunk != nullptr;
  if (chunk != nullptr) destroyHost(chunk);
}

std::string ChunkStore::probeDirect(const std::shared_ptr<LowerTier>& tier) {
  std::string why = direct_.begin(tier);
  if (!why.empty()) return why;
  VramChunk* const chunk = makeVram(0, false, &why);
  if (chunk != nullptr)
    destroyVram(chunk);
  else if (why.empty())
    why = "there is no VRAM to try it with";
  if (!why.empty()) direct_.giveUp();
  return why;
}

CUresult ChunkStore::protectAt(uint64_t address, uint64_t bytes, bool read_only,
                               std::span<const CUdevice> sharers) const {
  std::array<CUmemAccessDesc, kMostPeers + 1> access;
  size_t count = 0;
  access[count++] = readWrite(CU_MEM_LOCATION_TYPE_DEVICE, device_, read_only);
  const size_t peers = peer_count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < peers; ++i)
    access[count++] = readWrite(CU_MEM_LOCATION_TYPE_DEVICE, peers_[i], read_only);
  const auto isListed = [&](CUdevice device) {
    return std::any_of(access.begin(), access.begin() + count,
                       [&](const auto& one) { return one.location.id == device; });
  };
  for (const CUdevice device : sharers)
    if (count < access.size() && !isListed(device))
      access[count++] = readWrite(CU_MEM_LOCATION_TYPE_DEVICE, device, read_only);
  return driver_.cuMemSetAccess(address, bytes, access.data(), count);
}

bool ChunkStore::hasPeer(CUdevice peer) const {
  const auto end =
      peers_.begin() + static_cast<ptrdiff_t>(peer_count_.load(std::memory_order_acquire));
  return std::find(peers_.begin(), end, peer) != end;
}

bool ChunkStore::addPeer(CUdevice peer) {
  const size_t count = peer_count_.load(std::memory_order_relaxed);
  if (hasPeer(peer) || count == kMostPeers) return false;
  peers_[count] = peer;
  peer_count_.store(count + 1, std::memory_order_release);
  return true;
}

CUresult ChunkStore::mapAt(uint64_t address, uint64_t bytes, CUmemGenericAllocationHandle handle,
                           bool read_only, std::span<const CUdevice> sharers) const {
  CUresult result = driver_.cuMemMap(address, bytes, 0, handle, 0);
  if (result != CUDA_SUCCESS) return result;
  result = protectAt(address, bytes, read_only, sharers);
  if (result != CUDA_SUCCESS) driver_.cuMemUnmap(address, bytes);
  return result;
}

// `why_not`: of a chunk that is a try whether cards can know it.
VramChunk* ChunkStore::makeVram(unsigned order, bool exported, std::string* why_not) {
  const uint64_t bytes = kPageBytes << order;
  CUmemAllocationProp properties = deviceProperties(device_);
  if (exported) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const bool direct = direct_.on() && !exported;
  if (direct) properties.allocFlags.gpuDirectRDMACapable = 1;
  auto* chunk = new (std::nothrow) VramChunk;
  if (chunk == nullptr) return nullptr;
  chunk->order = order;
  chunk->exported = exported;
  if (driver_.cuMemCreate(&chunk->handle, bytes, &properties, 0) == CUDA_SUCCESS) {
    if (const CUdeviceptr alias = aliases_.take(bytes); alias != 0) {
      chunk->alias = alias;
      if (mapAt(alias, bytes, chunk->handle) == CUDA_SUCCESS) {
        if (direct && why_not != nullptr) {
          *why_not = direct_.tryMakeKnown(*chunk).why;
          chunk->direct = why_not->empty();
        } else if (direct) {
          chunk->direct = direct_.makeKnown(*chunk);
        }
        return chunk;
      }
      aliases_.give(alias, bytes);
    }
    driver_.cuMemRelease(chunk->handle);
  }
  delete chunk;
  return nullptr;
}

void ChunkStore::destroyVram(VramChunk* chunk) {
  const uint64_t bytes = kPageBytes << chunk->order;
  if (chunk->direct) direct_.letGo(*chunk);
  driver_.cuMemUnmap(chunk->alias, bytes);
  aliases_.give(chunk->alias, bytes);
  driver_.cuMemRelease(chunk->handle);
  delete chunk;
}

HostChunk* ChunkStore::makeHost(unsigned order) {
  const uint64_t bytes = kPageBytes << order;
  auto* chunk = new (std::nothrow) HostChunk;
  if (chunk == nullptr) return nullptr;
  chunk->order = order;
  if (!host_mappable_) {
    void* memory = nullptr;
    if (driver_.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS) {
      chunk->alias = reinterpret_cast<uint64_t>(memory);
      madvise(memory, bytes, MADV_DONTFORK);
      madvise(memory, bytes, MADV_DONTDUMP);
      return chunk;
    }
    delete chunk;
    return nullptr;
  }
  const CUmemAllocationProp properties = hostProperties(numa_node_);
  if (driver_.cuMemCreate(&chunk->handle, bytes, &properties, 0) == CUDA_SUCCESS) {
    if (const CUdeviceptr alias = aliases_.take(bytes); alias != 0) {
      chunk->alias = alias;
      if (driver_.cuMemMap(alias, bytes, 0, chunk->handle, 0) == CUDA_SUCCESS) {
        std::array<CUmemAccessDesc, 2> access = {
            readWrite(CU_MEM_LOCATION_TYPE_DEVICE, device_),
            readWrite(CU_MEM_LOCATION_TYPE_HOST_NUMA, numa_node_)};
        if (driver_.cuMemSetAccess(alias, bytes, access.data(), access.size()) == CUDA_SUCCESS) {
          madvise(reinterpret_cast<void*>(alias), bytes, MADV_DONTFORK);
          madvise(reinterpret_cast<void*>(alias), bytes, MADV_DONTDUMP);
          return chunk;
        }
        driver_.cuMemUnmap(alias, bytes);
      }
      aliases_.give(alias, bytes);
    }
    driver_.cuMemRelease(chunk->handle);
  }
  delete chunk;
  return nullptr;
}

void ChunkStore::destroyHost(HostChunk* chunk) {
  const uint64_t bytes = kPageBytes << chunk->order;
  if (chunk->handle == 0) {
    driver_.cuMemFreeHost(reinterpret_cast<void*>(chunk->alias));
  } else {
    driver_.cuMemUnmap(chunk->alias, bytes);
    aliases_.give(chunk->alias, bytes);
    driver_.cuMemRelease(chunk->handle);
  }
  delete chunk;
}

bool ChunkStore::restoreBudget() {
  if (vram_withheld_ == 0 || nowNs() < retry_ns_) return false;
  setVramBudget(vram_budget_ + vram_withheld_);
  vram_withheld_ = 0;
  return true;
}

VramChunk* ChunkStore::takeVram(unsigned order, Lock& lock) {
  const uint64_t bytes = kPageBytes << order;
  // Kept chunks are taken once none can be made.
  if (!free_vram_[order].empty() || vram_made_ + bytes > vram_budget_)
    if (VramChunk* const chunk = takeFreeVram(order); chunk != nullptr) return chunk;
  if (vramAvailable() < bytes) return nullptr;
  // Room in the budget: perhaps only as free chunks of other orders, which go back to the driver
  // first.
  uint64_t excess = vram_made_ + bytes > vram_budget_ ? vram_made_ + bytes - vram_budget_ : 0;
  for (unsigned other = 0; other < kOrders && excess > 0; ++other) {
    const uint64_t other_bytes = kPageBytes << other;
    while (excess > 0) {
      VramChunk* const chunk = takeFreeVram(other);
      if (chunk == nullptr) break;
      doomed_vram_.push_back(chunk);
      vram_made_ -= other_bytes;
      excess -= std::min(excess, other_bytes);
    }
  }
  vram_made_ += bytes;  // claimed before the mutex is released
  destroyDoomed(lock);
  lock.unlock();
  VramChunk* chunk = makeVram(order);
  lock.lock();
  if (chunk == nullptr) {
    vram_made_ -= bytes;
    // The driver has less than the budget says (another program took it): live with what there is,
    // and ask again later.
    if (vram_budget_ > vram_made_ && vram_made_ > 0) {
      vram_withheld_ += vram_budget_ - vram_made_;
      retry_ns_ = nowNs() + retry_after_ns_;
      const bool first = retry_after_ns_ == kFirstRetryNs;
      retry_after_ns_ = std::min(retry_after_ns_ * 2, kLongestRetryNs);
      setVramBudget(vram_made_);
      if (first)
        base::logWarn("device %d: the driver has no more VRAM for now, budget lowered to %llu MiB",
                      device_, static_cast<unsigned long long>(vram_budget_ >> 20));
    }
  } else if (retry_after_ns_ != kFirstRetryNs) {
    retry_after_ns_ = kFirstRetryNs;
    base::logInfo("device %d: the driver has VRAM again, budget %llu MiB", device_,
                  static_cast<unsigned long long>(vram_budget_ >> 20));
  }
  return chunk != nullptr ? chunk : takeFreeVram(order);
}

bool ChunkStore::makeVramAhead(unsigned order, Lock& lock) {
  const uint64_t bytes = kPageBytes << order;
  if (vram_made_ + bytes > vram_budget_) return false;
  vram_made_ += bytes;  // claimed before the mutex is released
  lock.unlock();
  VramChunk* chunk = makeVram(order);
  lock.lock();
  if (chunk == nullptr) {
    vram_made_ -= bytes;
    return false;
  }
  giveVram(chunk);
  return true;
}

VramChunk* ChunkStore::makeExported(unsigned order, bool lent, Lock& lock) {
  lock.unlock();
  VramChunk* chunk = makeVram(order, true);
  lock.lock();
  if (chunk != nullptr) chunk->lent = lent;
  return chunk;
}

void ChunkStore::giveVram(VramChunk* chunk) {
  if (chunk->exported) {
    if (chunk->lent) setVramBudget(vram_budget_ + (kPageBytes << chunk->order));
    doomed_vram_.push_back(chunk);
    return;
  }
  free_vram_[chunk->order].push_back(chunk);
  vram_free_ += kPageBytes << chunk->order;
}

// A free chunk of the order, of those whose bytes somebody may want back the one that was kept
// first. nullptr: there is none.
VramChunk* ChunkStore::takeFreeVram(unsigned order) {
  VramChunk* chunk = nullptr;
  if (auto& free = free_vram_[order]; !free.empty()) {
    chunk = free.back();
    free.pop_back();
  } else if (order == 0 && !kept_.empty()) {
    chunk = kept_.front().chunk;
    kept_.front().copy->there = false;
    kept_.pop_front();
  }
  if (chunk != nullptr) vram_free_ -= kPageBytes << order;
  return chunk;
}

void ChunkStore::keepVram(VramChunk* chunk, VramCopy& copy) {
  forgetKept(copy);
  if (chunk->exported || chunk->order != 0) return giveVram(chunk);
  copy.at = kept_.insert(kept_.end(), {chunk, &copy});
  copy.there = true;
  vram_free_ += kPageBytes;
}

VramChunk* ChunkStore::takeKept(VramCopy& copy) {
  if (!copy.there) return nullptr;
  VramChunk* const chunk = copy.at->chunk;
  kept_.erase(copy.at);
  copy.there = false;
  vram_free_ -= kPageBytes;
  return chunk;
}

void ChunkStore::forgetKept(VramCopy& copy) {
  if (VramChunk* const chunk = takeKept(copy); chunk != nullptr) giveVram(chunk);
}

HostChunk* ChunkStore::takeHost(unsigned order, Lock& lock, uint64_t beyond) {
  // Chunks free beyond the limit are for callers that may exceed it.
  if (host_.made > host_.limit && hostInUseOfAll() + (kPageBytes << order) > host_.limit + beyond)
    return nullptr;
  if (free_host_[order].empty() && !addHost(order, nullptr, beyond, lock)) return nullptr;
  return takeFreeHost(order);  // another thread may have taken it meanwhile
}

HostChunk* ChunkStore::takeFreeHost(unsigned order) {
  auto& free = free_host_[order];
  if (free.empty()) return nullptr;
  HostChunk* chunk = free.back();
  free.pop_back();
  host_free_ -= kPageBytes << order;
  return chunk;
}

void ChunkStore::doomHost(uint64_t& excess, const HostCounts& keep, ChunkStore& for_whom) {
  for (unsigned order = 0; order < kOrders && excess > 0; ++order) {
    const uint64_t bytes = kPageBytes << order;
    while (free_host_[order].size() > keep[order] && excess > 0) {
      for_whom.doomed_host_.push_back(free_host_[order].back());
      free_host_[order].pop_back();
      countHost(host_made_ - bytes);
      host_free_ -= bytes;
      excess -= std::min(excess, bytes);
    }
  }
}

bool ChunkStore::makeHostAhead(unsigned order, const HostCounts& keep, Lock& lock) {
  return addHost(order, &keep, 0, lock);
}

uint64_t ChunkStore::hostInUseOfAll() const {
  uint64_t in_use = 0;
  for (const ChunkStore* store : host_.stores) in_use += store->hostInUse();
  return in_use;
}

bool ChunkStore::addHost(unsigned order, const HostCounts* keep, uint64_t beyond, Lock& lock) {
  const uint64_t bytes = kPageBytes << order, limit = host_.limit + beyond;
  if (host_.made + bytes > limit) {
    if (hostInUseOfAll() + bytes > limit) return false;
    uint64_t excess = host_.made + bytes - limit;
    if (keep != nullptr) {
      // Two orders that are both wanted must not be made of each other in turns.
      uint64_t surplus = 0;
      for (unsigned other = 0; other < kOrders; ++other)
        surplus += (free_host_[other].size() -
                    std::min<uint64_t>(free_host_[other].size(), (*keep)[other]))
                   << other;
      if (surplus * kPageBytes < excess) return false;
    }
    static constexpr HostCounts kNone{};
    doomHost(excess, keep != nullptr ? *keep : kNone, *this);
    for (ChunkStore* store : host_.stores)
      // A pass of its device may read them.
      if (keep == nullptr && store != this && store->passes_ == 0)
        store->doomHost(excess, kNone, *this);
    if (excess > 0) return false;
  }
  countHost(host_made_ + bytes);
  destroyDoomed(lock);
  HostChunk* chunk = nullptr;
  uint64_t began_ns = 0, ended_ns = 0;
  {
    const std::shared_ptr<LowerTier> lower = host_.lower;
    lock.unlock();
    began_ns = nowNs();
    chunk = makeHost(order);
    ended_ns = nowNs();
    // Memory that went with a context may have been here.
    if (lower && chunk != nullptr) lower->letGo(memoryOf(*chunk));
  }
  lock.lock();
  if (keep == nullptr) waitedForHost(ended_ns - began_ns);
  if (chunk == nullptr) {
    countHost(host_made_ - bytes);
    return false;
  }
  const uint64_t took_ns = ended_ns - std::max(began_ns, std::min(making_until_ns_, ended_ns));
  making_bytes_ += bytes;
  making_ns_ += took_ns;
  add(counters().why.host_made_bytes, bytes);
  add(counters().why.host_making_ns, took_ns);
  making_until_ns_ = std::max(making_until_ns_, ended_ns);
  giveHost(chunk);
  return true;
}

// A chunk was made that something waits for.
void ChunkStore::waitedForHost(uint64_t ns) const {
  add(counters().host_wait_ns, ns);
  const double waited = static_cast<double>(valueOf(counters().host_wait_ns)) / 1e9;
  if (waited < kTellWaitSeconds || making_ns_ == 0) return;
  base::warnOnce("host memory",
                 "device %d: the program has waited %.1f s for host memory, which this machine "
                 "makes at %.1f GB/s: memory of a virtual machine is slow when it is used first; "
                 "what has been made is used again",
                 device_, waited,
                 static_cast<double>(making_bytes_) / static_cast<double>(making_ns_));
}

void ChunkStore::giveHost(HostChunk* chunk) {
  free_host_[chunk->order].push_back(chunk);
  host_free_ += kPageBytes << chunk->order;
}

void ChunkStore::destroyDoomed(Lock& lock) {
  if (passes_ > 0 || (doomed_vram_.empty() && doomed_host_.empty())) return;
  std::vector<VramChunk*> vram;
  std::vector<HostChunk*> host;
  vram.swap(doomed_vram_);
  host.swap(doomed_host_);
  ++destroying_;
  {
    const std::shared_ptr<LowerTier> lower = host_.lower;  // goes without the mutex, too
    lock.unlock();
    for (VramChunk* chunk : vram) destroyVram(chunk);
    for (HostChunk* chunk : host) {
      if (lower) lower->letGo(memoryOf(*chunk));
      destroyHost(chunk);
    }
  }
  lock.lock();
  --destroying_;
}

uint64_t ChunkStore::releaseFreeVram(uint64_t bytes, Lock& lock) {
  const uint64_t released = doomVram(bytes);
  destroyDoomed(lock);
  return released;
}

uint64_t ChunkStore::doomVram(uint64_t bytes) {
  uint64_t released = 0;
  for (unsigned order = kOrders; order-- > 0 && released < bytes;) {
    while (released < bytes) {
      VramChunk* const chunk = takeFreeVram(order);
      if (chunk == nullptr) break;
      doomed_vram_.push_back(chunk);
      released += kPageBytes << order;
    }
  }
  vram_made_ -= released;
  return released;
}

uint64_t ChunkStore::releaseFreeHost(uint64_t bytes, Lock& lock) {
  const uint64_t had = host_made_;
  doomHost(bytes, {}, *this);
  const uint64_t released = had - host_made_;
  destroyDoomed(lock);
  return released;
}

uint64_t ChunkStore::lend(uint64_t bytes, Lock& lock) {
  uint64_t lent = 0;
  for (unsigned order = 0; order < kOrders && lent < bytes; ++order)
    while (lent < bytes) {
      VramChunk* const chunk = takeFreeVram(order);
      if (chunk == nullptr) break;
      doomed_vram_.push_back(chunk);
      lent += kPageBytes << order;
    }
  vram_made_ -= lent;
  setVramBudget(vram_budget_ - lent);
  destroyDoomed(lock);
  return lent;
}

uint64_t ChunkStore::shrink(uint64_t bytes, Lock& lock) {
  const uint64_t withheld = std::min(bytes, vram_withheld_);
  vram_withheld_ -= withheld;
  const uint64_t unmade =
      std::min(bytes - withheld, vram_budget_ - std::min(vram_budget_, vram_made_));
  setVramBudget(vram_budget_ - unmade);
  const uint64_t given = withheld + unmade;
  return given < bytes ? given + lend(bytes - given, lock) : given;
}

void ChunkStore::grow(uint64_t bytes) {
  setVramBudget(vram_budget_ + vram_withheld_ + bytes);
  vram_withheld_ = 0;
}

void ChunkStore::releaseAllFree(Lock& lock) {
  doomAllFree();
  destroyDoomed(lock);
}

void ChunkStore::forgetAllFree(Lock& lock) {
  doomAllFree();
  const std::vector<VramChunk*> vram = std::exchange(doomed_vram_, {});
  const std::vector<HostChunk*> host = std::exchange(doomed_host_, {});
  const std::shared_ptr<LowerTier> lower = host_.lower;  // goes without the mutex, too
  lock.unlock();
  for (VramChunk* chunk : vram) {
    if (chunk->direct) direct_.letGo(*chunk);
    delete chunk;
  }
  for (HostChunk* chunk : host) {
    if (lower) lower->letGo(memoryOf(*chunk));
    delete chunk;
  }
  lock.lock();
}

void ChunkStore::doomAllFree() {
  doomVram(UINT64_MAX);
  for (auto& free : free_host_) {
    doomed_host_.insert(doomed_host_.end(), free.begin(), free.end());
    free.clear();
  }
  countHost(host_made_ - host_free_);
  host_free_ = 0;
}

}  // namespace olpager::pager
