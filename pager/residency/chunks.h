// Physical memory of one device: VRAM chunks within the budget, host chunks within the host tier's
// limit, which all devices of the pool share. Both are made once and reused; a chunk is 2^order
// pages. Making and releasing are driver calls, made with the mutex released.
//
// Thread-safety: every member runs under PoolState::mutex, passed as `lock`; those that make driver
// calls release it meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "pager/driver_api.h"
#include "pager/residency/alias_space.h"
#include "pager/residency/direct_memory.h"
#include "pager/space/region.h"

namespace olpager::pager {

inline constexpr unsigned kOrders = 7;    // 2, 4, 8, 16, 32, 64 and 128 MiB
inline constexpr size_t kMostPeers = 63;  // further devices that have access to one's memory
/// VRAM that the driver did not have is asked for again after this time, then after twice as long,
/// up to a minute.
inline constexpr uint64_t kFirstRetryNs = 1'000'000'000;

using HostCounts = std::array<uint64_t, kOrders>;  // host chunks, by order

class ChunkStore;
class LowerTier;

/// The host tier of a pool. Under PoolState::mutex.
struct HostBudget {
  bool known = false;  // `limit` was given or worked out
  uint64_t limit = 0;  // bytes of host chunks that all stores together may have
  uint64_t most = 0;   // that it may be raised to
  uint64_t made = 0;   // that they have
  uint64_t given = 0;  // chunks that extents gave back so far
  std::vector<ChunkStore*> stores;
  std::shared_ptr<LowerTier> lower;  // moves chunks' bytes; to let go of those that are released
};

// Many members: VRAM and host chunks make way for each other.
class ChunkStore {
 public:
  ChunkStore(const DriverApi& driver, CUdevice device, HostBudget& host)
      : driver_(driver),
        device_(device),
        host_(host),
        direct_(driver, device),
        aliases_(driver, device) {}

  /// Drops the records of chunks that are still there; their memory goes with the context.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;
  /// Joins those that share the host tier, until leaveHost().
  void setBudgets(uint64_t vram_bytes);
  /// The store's host chunks count no more, whether or not they can still be released.
  void leaveHost();
  uint64_t vramBudget() const { return vram_budget_; }
  uint64_t hostLimit() const { return host_.limit; }
  uint64_t mostHost() const { return host_.most; }
  /// Bytes that all stores together have beyond a limit that was lowered.
  uint64_t hostSurplus() const { return host_.made - std::min(host_.made, host_.limit); }
  /// Finds out what kind of host memory this machine gives. The device's context is current.
  void probeHost(int numa_node);
  bool hostMappable() const { return host_mappable_; }
  /// Finds out whether network cards can know VRAM chunks, by one: "", or why not. Chunks that are
  /// made after this are known to them. The device's context is current; without the mutex.
  std::string probeDirect(const std::shared_ptr<LowerTier>& tier);
  const DirectMemory& direct() const { return direct_; }

  /// A free VRAM chunk, made if the budget has room, from free chunks of other orders if need be.
  /// nullptr: evict first. When the driver has less than the budget says, the budget is lowered for
  /// a while (some seconds, longer each time).
  VramChunk* takeVram(unsigned order, Lock& lock);
  /// True if takeVram() finds or makes a chunk without giving others back.
  bool hasVram(unsigned order) const {
    return !free_vram_[order].empty() || (order == 0 && !kept_.empty()) ||
           vram_made_ + (kPageBytes << order) <= vram_budget_;
  }
  /// Makes a VRAM chunk ahead of need and puts it among the free ones, where the budget has room in
  /// which nothing was made. False: it has none, or the driver gave none.
  bool makeVramAhead(unsigned order, Lock& lock);
  /// True when a budget that was lowered for a while is whole again.
  bool restoreBudget();
  /// A chunk that other processes can map, outside the budget. nullptr: the driver gave none.
  VramChunk* makeExported(unsigned order, bool lent, Lock& lock);
  /// Takes a chunk back. One that is exported goes to the driver, with the next call that releases
  /// chunks.
  void giveVram(VramChunk* chunk);
  /// As giveVram(), of a chunk of one page whose bytes are `copy` until the chunk is taken for
  /// something else: once nothing is left to be made, the one that was kept first. `copy` stays
  /// where it is until then, or until takeKept() or forgetKept().
  void keepVram(VramChunk* chunk, VramCopy& copy);
  /// The chunk with its bytes. nullptr: they are gone.
  VramChunk* takeKept(VramCopy& copy);
  /// The bytes are of no use any more.
  void forgetKept(VramCopy& copy);
  uint64_t keptBytes() const { return kept_.size() * kPageBytes; }
  /// A free host chunk or a new one. nullptr: the host tier is full, or the system gave none.
  /// `beyond`: bytes by which the tier's limit may be exceeded for it.
  HostChunk* takeHost(unsigned order, Lock& lock, uint64_t beyond = 0);
  /// A free one or nullptr: none is made.
  HostChunk* takeFreeHost(unsigned order);
  void giveHost(HostChunk* chunk);
  /// Makes a host chunk ahead of need and puts it among the free ones. `keep` free ones are wanted
  /// of each order: if the limit is reached, only what is free beyond that goes for it. False:
  /// limit reached or refused.
  bool makeHostAhead(unsigned order, const HostCounts& keep, Lock& lock);

  /// Bytes that takeVram can still give, counting free chunks.
  uint64_t vramAvailable() const { return vram_budget_ - (vram_made_ - vram_free_); }
  uint64_t vramInUse() const { return vram_made_ - vram_free_; }
  uint64_t hostInUse() const { return host_made_ - host_free_; }
  /// The same of all devices of the pool.
  uint64_t hostInUseOfAll() const;
  uint64_t hostFree() const { return host_free_; }
  uint64_t hostFreeOf(unsigned order) const { return free_host_[order].size(); }
  /// A pass of the GPU reads chunks through their aliases: until it ends none is released.
  void passBegins() { ++passes_; }
  void passEnds(Lock& lock) {
    if (--passes_ == 0) destroyDoomed(lock);
  }
  /// No pass runs any more, also of those that nobody has ended.
  void passesOver() { passes_ = 0; }
  /// Gives free chunks back to the driver until `bytes` of VRAM are released. Returns the bytes
  /// released.
  uint64_t releaseFreeVram(uint64_t bytes, Lock& lock);
  /// Gives free host chunks back to the system until `bytes` are released. Returns the bytes
  /// released.
  uint64_t releaseFreeHost(uint64_t bytes, Lock& lock);
  /// Drops every free chunk (the device's context is current). After leaveHost().
  void releaseAllFree(Lock& lock);
  /// After that, without the mutex.
  void releaseAliases() { aliases_.end(); }
  /// Likewise where the context is gone, and with it the chunks' memory: all that is left is that
  /// network cards let go of it.
  void forgetAllFree(Lock& lock);

  /// VRAM that the driver is short of: gives up to `bytes` of free chunks back to it and lowers the
  /// budget by as much, so that they are not made again. Returns the bytes.
  uint64_t lend(uint64_t bytes, Lock& lock);
  /// The driver has it back.
  void takeBack(uint64_t bytes) { setVramBudget(vram_budget_ + bytes); }
  /// Lowers the budget by up to `bytes`: by what the driver withholds, by room in which nothing was
  /// made, then by free chunks, which go back to the driver. Returns the bytes; what is in use has
  /// to be evicted first.
  uint64_t shrink(uint64_t bytes, Lock& lock);
  /// Raises the budget. Memory that the driver withheld is asked for again at once.
  void grow(uint64_t bytes);
  /// Chunks that count as released and that the driver has not got yet.
  bool releasing() const { return destroying_ > 0 || !doomed_vram_.empty(); }
  uint64_t vramMade() const { return vram_made_; }

  /// Maps a chunk at a global address for the device, its peers and `sharers`. Without the mutex.
  CUresult mapAt(uint64_t address, uint64_t bytes, CUmemGenericAllocationHandle handle,
                 bool read_only = false, std::span<const CUdevice> sharers = {}) const;
  /// Makes what is mapped there read-only, or writable again, for all of these. Without the mutex.
  CUresult protectAt(uint64_t address, uint64_t bytes, bool read_only,
                     std::span<const CUdevice> sharers = {}) const;
  CUresult unmapAt(uint64_t address, uint64_t bytes) const {
    return driver_.cuMemUnmap(address, bytes);
  }
  /// For every mapping from now on; those that stand are the caller's to widen. False: it has
  /// access already, or there are more devices than kMostPeers. Under the mutex; mapAt and
  /// protectAt read the list without it.
  bool addPeer(CUdevice peer);
  bool hasPeer(CUdevice peer) const;

 private:
  VramChunk* takeFreeVram(unsigned order);
  VramChunk* makeVram(unsigned order, bool exported = false, std::string* why_not = nullptr);
  void destroyVram(VramChunk* chunk);
  /// Free VRAM chunks go to the doomed ones until `bytes` have gone. Returns the bytes.
  uint64_t doomVram(uint64_t bytes);
  void doomAllFree();
  HostChunk* makeHost(unsigned order);
  /// Makes one and puts it among the free ones. Free chunks of other orders go for it, all but
  /// `keep` of each; nullptr: as many as it takes, those of other devices as well. `beyond`: as
  /// takeHost() has it.
  bool addHost(unsigned order, const HostCounts* keep, uint64_t beyond, Lock& lock);
  void destroyHost(HostChunk* chunk);
  void destroyDoomed(Lock& lock);
  void countHost(uint64_t made);
  void waitedForHost(uint64_t ns) const;
  void setVramBudget(uint64_t bytes);
  /// Free host chunks go to the doomed ones of `for_whom` until `excess` bytes have gone, all but
  /// `keep` of each order.
  void doomHost(uint64_t& excess, const HostCounts& keep, ChunkStore& for_whom);

  const DriverApi& driver_;
  CUdevice device_;
  HostBudget& host_;
  DirectMemory direct_;
  AliasSpace aliases_;
  uint64_t vram_budget_ = 0, vram_made_ = 0, vram_free_ = 0;
  uint64_t vram_withheld_ = 0;  // of the budget: the driver did not have it. Tried again at:
  uint64_t retry_ns_ = 0, retry_after_ns_ = kFirstRetryNs;
  uint64_t host_made_ = 0, host_free_ = 0;
  bool shares_host_ = false;
  bool host_mappable_ = false;
  int numa_node_ = 0;
  std::array<std::vector<VramChunk*>, kOrders> free_vram_;
  std::list<KeptChunk> kept_;  // free as well; the first was kept first
  std::array<std::vector<HostChunk*>, kOrders> free_host_;
  // Host chunks that the driver has made so far: their bytes, how long at least one thread was in
  // it for them, and when the last one was done.
  uint64_t making_bytes_ = 0, making_ns_ = 0, making_until_ns_ = 0;
  std::array<CUdevice, kMostPeers> peers_{};
  std::atomic<size_t> peer_count_{0};  // entries before it are never written again
  unsigned passes_ = 0;
  unsigned destroying_ = 0;  // threads in the driver with chunks to release
  std::vector<VramChunk*> doomed_vram_;
  std::vector<HostChunk*> doomed_host_;
};

}  // namespace olpager::pager
