#include "pager/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/counters/trace.h"
#include "pager/kernels/page_pass.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kPatienceNs =
    200'000'000;  // a launch waits this long without progress, then it is mapped in place
// Where in place is no way out: what it waits for may be a kernel of minutes, or one that waits for
// this launch.
constexpr uint64_t kRefusedAfterNs = 60'000'000'000;
constexpr uint64_t kLongestPromotedPauseNs = 10'000'000'000, kPassPatienceNs = 5'000'000'000;
constexpr uint64_t kLongestSurplusPatienceNs = 5'000'000'000;
constexpr unsigned kRoundBelieved = 8;  // looks, four in each round
constexpr uint64_t kInFlightBytes = 128ull << 20;
constexpr uint64_t kChangeBytes =
    kPageBytes << (kOrders - 1);  // beyond what just holds all: pages change place
constexpr uint64_t kLongestRunNs = 1'000'000;
// Unpacking that the GPU does not come to is given up after this time, and for so long nothing is
// unpacked.
constexpr uint64_t kLateNs = 1'000'000'000, kLatePauseNs = 10'000'000'000;
constexpr uint64_t kRefusalPauseNs = 100'000'000;  // between fetches after the driver refused one
constexpr uint64_t kRefusalBytes = 16ull << 20;    // of free chunks that it then gets back
// While the GPU is at something only asking tells. Asking costs a processor time, so pauses grow
// with what has been waited already, and make it longer by a sixteenth at most.
constexpr uint64_t kShortestPollNs = 10'000, kLongestPollNs = 200'000, kPollShare = 16;
// Else whoever changes something rings; these are for what nobody rings for.
constexpr auto kWantPause = std::chrono::microseconds(200);
constexpr auto kRemotePause = std::chrono::milliseconds(5);
constexpr auto kIdlePause = std::chrono::milliseconds(100);
}  // namespace

// As olpagestat shows it.
static Place placeOf(ExtentState state, const Extent& extent) {
  switch (state) {
    case ExtentState::kEmpty:
    case ExtentState::kMapping:
      return Place::kEmpty;
    case ExtentState::kVram:
      return Place::kVram;
    case ExtentState::kRetiring:
      return extent.vram != nullptr ? Place::kLeaving : Place::kInPlace;
    case ExtentState::kWriting:
      return Place::kOut;
    case ExtentState::kParked:
    case ExtentState::kSending:
      return Place::kHost;
    case ExtentState::kRemote:
    case ExtentState::kReceiving:
      return Place::kRemote;
    case ExtentState::kFetching:
      return Place::kIn;
    case ExtentState::kInPlace:
      return Place::kInPlace;
    case ExtentState::kMoving:
      return extent.vram != nullptr ? Place::kLeaving : Place::kMoving;
    case ExtentState::kFreeing:
    case ExtentState::kDetached:
    case ExtentState::kLost:
      return Place::kNone;
  }
  return Place::kNone;
}

Engine::Engine(PoolState& pool, CUdevice device, CUcontext context)
    : pool_(pool),
      device_(device),
      context_(context),
      chunks_(pool.driver, device, pool.host),
      packed_(pool.driver, chunks_),
      figures_(&counters().device(static_cast<unsigned>(device))) {}

Engine::~Engine() { stop(); }

CUresult Engine::start(uint64_t vram_budget, int numa_node, Lock& lock) {
  chunks_.setBudgets(vram_budget);
  budget_ = vram_budget;
  lock.unlock();
  CUresult result = CUDA_SUCCESS;
  {
    const InContext current(pool_.driver, context_);
    result = current.result();
    if (result == CUDA_SUCCESS) {
      chunks_.probeHost(numa_node);
      result = makeObjects();
    }
  }
  lock.lock();
  if (result != CUDA_SUCCESS) return result;
  set(figures_->vram_budget_bytes, vram_budget);
  set(counters().host_limit_bytes, chunks_.hostLimit());
  return startThreads() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Streams, kernel and buffers, in the current context.
CUresult Engine::makeObjects() {
  const DriverApi& driver = pool_.driver;
  vram_bandwidth_ = vramBandwidth(driver, device_);
  size_t free_bytes = 0, total_bytes = 0;
  CUresult result = driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  most_ = std::max<uint64_t>(total_bytes, budget_);
  const uint64_t pages = (most_ + chunks_.mostHost()) / kPageBytes + 64;
  // Before other streams' work, so that eviction does not wait behind the program's kernels.
  for (CUstream* stream : {&in_stream_, &out_stream_, &pass_stream_})
    if (result == CUDA_SUCCESS)
      result = driver.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, -5);
  if (result == CUDA_SUCCESS) result = driver.cuModuleLoadData(&module_, kernels::pagePassPtx());
  if (result == CUDA_SUCCESS)
    result = driver.cuModuleGetFunction(&pass_, module_, kernels::kPagePassKernel);
  if (result == CUDA_SUCCESS)
    result = driver.cuModuleGetFunction(&scan_, module_, kernels::kScanKernel);
  if (result == CUDA_SUCCESS)
    result = driver.cuModuleGetFunction(&scan_roots_, module_, kernels::kScanRangesKernel);
  for (Scratch& scratch : scratch_) {
    void* memory = nullptr;
    const uint64_t bytes = kFoundBytes +
                           pages * (sizeof(ContentHash) + sizeof(kernels::PagePassJob)) +
                           kRootJobs * sizeof(kernels::ScanJob);
    if (result == CUDA_SUCCESS)
      result = driver.cuMemHostAlloc(&memory, bytes,
                                     CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (result != CUDA_SUCCESS) break;
    scratch.pages = pages;
    scratch.hashes = static_cast<ContentHash*>(memory);
    scratch.found = reinterpret_cast<uint32_t*>(scratch.hashes + pages);
    scratch.jobs = reinterpret_cast<kernels::PagePassJob*>(reinterpret_cast<char*>(scratch.found) +
                                                           kFoundBytes);
    scratch.roots = reinterpret_cast<kernels::ScanJob*>(scratch.jobs + pages);
  }
  if (result == CUDA_SUCCESS && pool_.options.pack) result = packed_.makeObjects();
  void* memory = nullptr;
  constexpr size_t kHashes = size_t{FetchHashes::kAtOnce} * space::kLargestExtentPages;
  if (result == CUDA_SUCCESS)
    result = driver.cuMemHostAlloc(
        &memory,
        kHashes * sizeof(ContentHash) + FetchHashes::kAtOnce * sizeof(kernels::PagePassJob),
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result != CUDA_SUCCESS) return result;
  fetch_hashes_.hashes = static_cast<ContentHash*>(memory);
  fetch_hashes_.jobs = reinterpret_cast<kernels::PagePassJob*>(fetch_hashes_.hashes + kHashes);
  for (int slot = 0; slot < FetchHashes::kAtOnce; ++slot) fetch_hashes_.free.push_back(slot);
  return result;
}

void Engine::destroyObjects() {
  const DriverApi& driver = pool_.driver;
  packed_.destroyObjects();
  for (Scratch& scratch : scratch_) {
    if (scratch.hashes != nullptr) driver.cuMemFreeHost(scratch.hashes);
    scratch = {};
  }
  if (fetch_hashes_.hashes != nullptr) driver.cuMemFreeHost(fetch_hashes_.hashes);
  fetch_hashes_ = {};
  for (CUevent event : events_) driver.cuEventDestroy_v2(event);
  events_.clear();
  timer_.drop(driver);
  for (CUstream* stream : {&in_stream_, &out_stream_, &pass_stream_}) {
    if (*stream != nullptr) driver.cuStreamDestroy_v2(*stream);
    *stream = nullptr;
  }
  if (module_ != nullptr) driver.cuModuleUnload(module_);
  module_ = nullptr;
}

// False: the system gives no thread. Without makers of host chunks the engine makes them itself,
// when they are needed.
bool Engine::startThreads() {
  try {
    thread_ = std::thread([this] { guarded(&Engine::run, true); });
  } catch (const std::exception& error) {
    base::logError(
        "device %d: the pager's thread can't be started: %s (see ulimit -u and the cgroup's "
        "pids.max)",
        device_, error.what());
    return false;
  }
  const unsigned makers = std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u);
  try {
    for (unsigned i = 0; i < makers; ++i)
      host_makers_.emplace_back([this] { guarded(&Engine::makeHostChunks, false); });
  } catch (const std::exception& error) {
    base::logWarn("device %d: %zu of %u threads that make host memory: %s", device_,
                  host_makers_.size(), makers, error.what());
  }
  return true;
}

// A thread's body. `vital`: what it could not do left extents half moved, and nobody is to wait for
// them any more.
void Engine::guarded(void (Engine::*body)(), bool vital) noexcept {
  try {
    (this->*body)();
  } catch (const std::exception& error) {
    base::logError("device %d: a thread of the pager has ended: %s%s", device_, error.what(),
                   vital ? "; launches that need what is not mapped are refused" : "");
    if (!vital) return;
    std::lock_guard lock(pool_.mutex);
    pool_.stopped = true;
    pool_.changed.notify_all();
  }
}

uint64_t Engine::usedByOthers() const {
  uint64_t others = 0;
  for (const auto& engine : pool_.engines)
    if (engine.get() != this) others += engine->beyondVram();
  return others;
}

uint64_t Engine::capacity() const {
  const uint64_t below = chunks_.hostLimit() + remoteCapacity(pool_);
  return chunks_.vramBudget() + below - std::min(below, usedByOthers());
}

uint64_t Engine::unallocated() const { return capacity() - std::min(capacity(), allocated_); }

bool Engine::moveTo(CUcontext context, Lock& lock) {
  if (broken_ || !chunks_.hostMappable())
    return false;  // other host memory goes with the context that made it
  pausing_ = true;
  wake();
  // What comes from memservers or goes there is between them and host memory, which stays: it ends
  // meanwhile or later.
  while (!fetching_.empty() || !late_.empty() || !packing_.empty() || !writing_.empty() ||
         !batches_.empty()) {
    if (pool_.stopped) return false;  // nobody ends them any more
    pool_.changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  lock.unlock();
  stop();
  if (const InContext current(pool_.driver, context_); current.result() == CUDA_SUCCESS)
    destroyObjects();
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  try {
    const InContext current(pool_.driver, context);
    result = current.result();
    if (result == CUDA_SUCCESS) result = makeObjects();
  } catch (const std::exception& failure) {  // no memory
    base::logError("device %d: the pager could not go to another context: %s", device_,
                   failure.what());
  }
  lock.lock();
  context_ = context;
  pausing_ = stop_ = false;
  if (result != CUDA_SUCCESS) lost(result);
  if (!pool_.stopped && !startThreads()) return false;
  return !broken_;
}

void Engine::stop() noexcept {
  Lock lock(pool_.mutex);
  stop_ = true;
  wake_.notify_all();
  host_wake_.notify_all();
  // The process's end may come beside a context's: threads are joined once, and who comes second
  // waits for that.
  while (stopping_) pool_.changed.wait_for(lock, std::chrono::milliseconds(1));
  stopping_ = true;
  std::thread thread = std::move(thread_);
  std::vector<std::thread> makers = std::exchange(host_makers_, {});
  lock.unlock();
  if (thread.joinable()) thread.join();
  for (std::thread& maker : makers)
    if (maker.joinable()) maker.join();
  pool_.streams.polls(device_, false);
  lock.lock();
  stopping_ = false;
  pool_.changed.notify_all();
  for (auto& batch : batches_) {  // passes that nobody will finish
    if (batch->stage == Batch::Stage::kPass && batch->reads_roots) --pool_.root_scans;
    batch->reads_roots = false;
  }
}

void Engine::abandon() noexcept {
  // The threads exist in the parent only.
  if (thread_.joinable()) thread_.detach();
  for (std::thread& maker : host_makers_)
    if (maker.joinable()) maker.detach();
  host_makers_.clear();
}

void Engine::setState(Extent& extent, ExtentState state) {
  const ExtentState before = extent.state;
  if (before == state) return;
  placeChanged(*figures_,
               {static_cast<unsigned>(device_), extent.address, extent.bytes(), extent.region->base,
                extent.region->pages * kPageBytes, placeOf(state, extent), extent.prefetched});
  Region& region = *extent.region;
  const uint64_t bytes = extent.bytes();
  const auto gauge = [&](ExtentState of) -> Gauge* {
    switch (of) {
      case ExtentState::kRetiring:
        if (extent.vram == nullptr) return &figures_->in_place_bytes;
        return &figures_->resident_bytes;
      case ExtentState::kVram:
        return &figures_->resident_bytes;
      case ExtentState::kInPlace:
        return &figures_->in_place_bytes;
      case ExtentState::kParked:
      case ExtentState::kSending:
      case ExtentState::kReceiving:
        return &figures_->parked_bytes;
      case ExtentState::kRemote:
        return &figures_->remote_bytes;
      default:
        return nullptr;
    }
  };
  if (Gauge* counter = gauge(before)) subtract(*counter, bytes);
  if (Gauge* counter = gauge(state)) add(*counter, bytes);
  if (before == ExtentState::kRemote) --region.remote;
  if (state == ExtentState::kRemote) ++region.remote;
  if (before == ExtentState::kInPlace) --region.in_place;
  if (state == ExtentState::kInPlace) ++region.in_place;
  if (usable(before) && !usable(state)) ++region.unusable;
  if (!usable(before) && usable(state)) --region.unusable;
  extent.state = state;
  const bool was = before == ExtentState::kVram, is = state == ExtentState::kVram;
  if (was && !is) {
    region.blocked.fetch_add(1, std::memory_order_seq_cst);
    if (region.published) {
      ++pool_.outside;
      pool_.updateSlow();
    }
  } else if (!was && is) {
    region.blocked.fetch_sub(1, std::memory_order_seq_cst);
    if (region.published) {
      --pool_.outside;
      pool_.updateSlow();
    }
  }
  if (extent.mapped() || !moving(state)) pool_.changed.notify_all();
}

/// A pass takes its event where the mutex can't be released.
void Engine::stockEvents(Lock& lock) {
  while (events_.empty() && !broken_) {
    CUevent event = nullptr;
    lock.unlock();
    const CUresult result = pool_.driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    lock.lock();
    if (result != CUDA_SUCCESS) return lost(result);
    events_.push_back(event);
  }
}

/// Null when the context is lost.
CUevent Engine::takeEvent(Lock& lock) {
  stockEvents(lock);
  if (events_.empty()) return nullptr;
  const CUevent event = events_.back();
  events_.pop_back();
  return event;
}

/// Whether an event of ours has come; a lost context ends everything.
bool Engine::reached(CUevent event, Lock& lock) {
  lock.unlock();
  const CUresult result = pool_.driver.cuEventQuery(event);
  lock.lock();
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result != CUDA_SUCCESS) lost(result);
  return true;
}

/// The driver refused a call that brings an extent in. Launches that wait get it in place
/// meanwhile.
void Engine::refused(const char* what, CUresult result) {
  if (endsContext(result)) return lost(result);
  refused_until_ns_ = nowNs() + kRefusalPauseNs;
  ++refusals_;
  base::warnOnce(
      "fetch refused",
      "device %d: the driver refused to %s memory in VRAM (CUDA error %d); it stays in host "
      "memory until the driver can",
      device_, what, static_cast<int>(result));
}

/// Maps a chunk where its extent is. Short of memory, the driver gets free chunks back before the
/// second try.
CUresult Engine::mapVram(const Extent& extent, const VramChunk& chunk, Lock& lock) {
  CUresult result = CUDA_SUCCESS;
  for (int tries = 0; tries < 2; ++tries) {
    lock.unlock();
    result = chunks_.mapAt(extent.address, extent.bytes(), chunk.handle, extent.read_only);
    lock.lock();
    if (result == CUDA_SUCCESS) refusals_ = 0;
    if (result == CUDA_SUCCESS || endsContext(result) ||
        chunks_.releaseFreeVram(kRefusalBytes, lock) == 0)
      break;
  }
  return result;
}

void Engine::lost(CUresult result) {
  if (broken_) return;
  broken_ = true;
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS && tellUnmapped(pool_, context_)) return;
  base::logError("device %d: the context is lost (CUDA error %d); paging on it has stopped",
                 device_, static_cast<int>(result));
}

void Engine::run() {
  const DriverApi& driver = pool_.driver;
  driver.cuCtxPushCurrent_v2(context_);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  prctl(PR_SET_TIMERSLACK, 1000ul);  // the pauses below are to last microseconds
  pool_.streams.polls(device_, true);
  Lock lock(pool_.mutex);
  uint64_t paused = nowNs(), waited_from = paused;
  while (!stop_) {
    if (poll_asked_) {
      poll_asked_ = false;
      lock.unlock();
      pool_.streams.poll(device_);
      lock.lock();
    }
    prefetch_again_ |= chunks_.restoreBudget();
    stockEvents(lock);
    bool progress = finishRemote(pool_);
    progress |= finishFetches(lock);
    progress |= finishLate(lock);
    progress |= finishPacking(lock);
    progress |= finishWrites(lock);
    if (pausing_) cancelBatches();
    progress |= advanceBatches(lock);
    if (!pausing_) {
      judgeTimed(lock);
      progress |= serveReliefs(lock);
      progress |= giveSurplus(lock);
      progress |= giveHostSurplus(lock);
      progress |= serveWants(lock);
      progress |= bringHome(lock);
      progress |= fillFreeVram();
      progress |= prefetch(lock);
      progress |= swapArenas();
      progress |= prefetchRemote(lock);
      progress |= demote();
    }
    // The mutex is not fair: a launch that has all it needs must get it too.
    const uint64_t now = nowNs();
    const bool pause = now - paused > kLongestRunNs;
    if (progress) waited_from = now;
    if (stop_ || (progress && !pause)) continue;
    tellRoom(pool_);
    const bool gpu_busy = progress || !fetching_.empty() || !late_.empty() || !packing_.empty() ||
                          !writing_.empty() || !batches_.empty() || !reliefs_.empty();
    if (gpu_busy && !broken_) {
      const uint64_t pause_ns =
          std::clamp((now - waited_from) / kPollShare, kShortestPollNs, kLongestPollNs);
      wake_.wait_for(lock, std::chrono::nanoseconds(pause_ns));
    } else {
      idle_ = true;
      if (!wants_.empty() && !broken_ && !hasNoPlace()) {
        wake_.wait_for(lock, kWantPause);
      } else if ((!wants_.empty() || pool_.remote_moves > 0) && !broken_) {
        wake_.wait_for(lock, kRemotePause);
      } else {
        wake_.wait_for(lock, kIdlePause);
      }
      idle_ = false;
      waited_from = nowNs();
    }
    paused = nowNs();
  }
}

// Host chunks take milliseconds to make (pinning), so they are made before the first eviction needs
// them.
void Engine::makeHostChunks() {
  const DriverApi& driver = pool_.driver;
  driver.cuCtxPushCurrent_v2(context_);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  Lock lock(pool_.mutex);
  while (!stop_) {
    bool made = false;
    // From three quarters of the budget on something will have to leave.
    if (allocated_ > chunks_.vramBudget() / 4 * 3 && !broken_) {
      HostCounts ahead;
      for (unsigned order = 0; order < kOrders; ++order)
        ahead[order] =
            std::min<uint64_t>(without_host_[order], kHostAheadBytes / (kPageBytes << order)) +
            imagesExpected(order);
      for (unsigned order = kOrders; order-- > 0 && !made;) {
        if (chunks_.hostFreeOf(order) + host_making_[order] >= ahead[order]) continue;
        ++host_making_[order];
        made = chunks_.makeHostAhead(order, ahead, lock);
        --host_making_[order];
        if (!made && host_full_ == false) {
          host_full_ = true;
          base::logInfo("device %d: the host tier is full at %llu MiB", device_,
                        static_cast<unsigned long long>(chunks_.hostInUse() >> 20));
        }
      }
    }
    if (!made) host_wake_.wait_for(lock, std::chrono::milliseconds(host_full_ ? 500 : 50));
  }
}

CUresult Engine::mapNew(Region& region, Lock& lock) {
  for (auto& extent : region.extents) ++without_host_[extent->order];
  host_wake_.notify_all();
  for (auto& extent : region.extents)
    if (!mapEmpty(*extent, lock)) break;
  return CUDA_SUCCESS;
}

/// What is being exported comes back into chunks of its own.
VramChunk* Engine::takeVram(const Extent& extent, Lock& lock) {
  const Region& region = *extent.region;
  return region.exporting ? chunks_.makeExported(extent.order, region.exports_lent, lock)
                          : chunks_.takeVram(extent.order, lock);
}

bool Engine::mapEmpty(Extent& extent, Lock& lock) {
  if (extent.state != ExtentState::kEmpty) return false;
  setState(extent, ExtentState::kMapping);
  VramChunk* chunk = takeVram(extent, lock);
  if (chunk == nullptr) {
    setState(extent, ExtentState::kEmpty);
    return false;
  }
  if (const CUresult result = mapVram(extent, *chunk, lock); result != CUDA_SUCCESS) {
    if (endsContext(result)) lost(result);
    chunks_.giveVram(chunk);
    setState(extent, ExtentState::kEmpty);
    return false;
  }
  extent.vram = chunk;
  setState(extent, ExtentState::kVram);
  return true;
}

void Engine::giveHost(Extent& extent) {
  if (extent.host == nullptr) return;
  chunks_.giveHost(extent.host);
  ++pool_.host_given;
  extent.host = nullptr;
  extent.host_valid = extent.hash_valid = false;
  ++without_host_[extent.order];
  packed_.drop(extent);
}

bool Engine::takeHost(Extent& extent, Lock& lock) {
  if (extent.host != nullptr) return true;
  extent.host = chunks_.takeHost(extent.order, lock);
  for (size_t e = 0; e < pool_.engines.size() && extent.host == nullptr;
       ++e)  // the mutex is released meanwhile
    if (pool_.engines[e]->packed_.drop(extent.bytes()) > 0)
      extent.host = chunks_.takeHost(extent.order, lock);
  for (const bool own : {true, false})  // other devices' last
    if (extent.host == nullptr && dropLowerCopies(extent.bytes(), own) > 0)
      extent.host = chunks_.takeHost(extent.order, lock);
  if (extent.host == nullptr) {
    host_short_ =
        std::max(host_short_,
                 extent.bytes());  // what is parked goes to memservers for it, where there are any
    for (const auto& other : pool_.engines)
      if (other.get() != this) other->recall();
    return false;
  }
  --without_host_[extent.order];
  host_wake_.notify_all();
  return true;
}

// Gives up copies in host RAM of what is in VRAM until `bytes` came free: those that may(region,
// extent) names. Returns the bytes.
template <typename May>
uint64_t Engine::dropHostCopies(uint64_t bytes, May may) {
  uint64_t dropped = 0;
  for (uint32_t id = 1; id < pool_.regions.end() && dropped < bytes; ++id) {
    Region* const region = pool_.regions.at(id);
    if (region->dead || region->engine == nullptr) continue;
    for (auto& extent : region->extents) {
      if (dropped >= bytes) break;
      if (extent->state != ExtentState::kVram || extent->host == nullptr || !may(*region, *extent))
        continue;
      dropped += extent->bytes();
      region->engine->giveHost(*extent);
    }
  }
  return dropped;
}

// The host tier is full: lower copies of extents that are in VRAM are a convenience only.
uint64_t Engine::dropLowerCopies(uint64_t bytes, bool own) {
  return dropHostCopies(
      bytes, [&](const Region& region, const Extent&) { return (region.engine == this) == own; });
}

// Lower copies that nobody will miss: of what is to stay in VRAM, and those that memservers have as
// well. A parked extent is needed sooner than any of them.
uint64_t Engine::dropSpareCopies(uint64_t bytes) {
  return dropHostCopies(bytes, [&](const Region& region, const Extent& extent) {
    if (region.engine != this || region.by_pieces) return false;
    return region.placement == Placement::kKeep || remoteHolds(extent);
  });
}

void Engine::dismantle(Extent& extent, Lock& lock) {
  if (extent.prefetched) noteUsed(extent, false);
  lock.unlock();
  if (extent.left_mapped) chunks_.unmapAt(extent.address, extent.bytes());
  lock.lock();
  const bool exported = extent.vram != nullptr && extent.vram->exported;
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  if (exported) chunks_.releaseFreeVram(0, lock);  // it goes back to the driver
  giveHost(extent);
  --without_host_[extent.order];
  if (pool_.remote != nullptr) pool_.remote->drop(remoteId(extent));
  wake();
}

void Engine::forget(const Region* region) {
  std::erase(swaps_asked_, region);
  if (swapping_ == region) swapping_ = nullptr;
  for (auto& batch : batches_) {
    if (batch->swap_of == region) batch->swap_of = nullptr;
    for (Extent*& victim : batch->victims)
      if (victim != nullptr && victim->region == region) victim = nullptr;
    std::erase_if(batch->scan_for, [region](const auto& entry) { return entry.region == region; });
  }
}

void Engine::adopt(VmmHandle& handle) {
  for (auto& extent : handle.extents) ++without_host_[extent->order];
  host_wake_.notify_all();
}

void Engine::attach(Extent& extent, Lock& lock) {
  if (extent.vram != nullptr) {
    setState(extent, ExtentState::kMoving);
    if (const CUresult result = mapVram(extent, *extent.vram, lock); result != CUDA_SUCCESS)
      lost(result);
    setState(extent, ExtentState::kVram);
  } else if (extent.host != nullptr && extent.host_valid) {
    setState(extent, ExtentState::kParked);
  } else if (extent.rests != ExtentState::kEmpty) {
    setState(extent, extent.rests);
  } else {
    setState(extent, ExtentState::kEmpty);
    mapEmpty(extent, lock);
  }
}

void Engine::detach(Extent& extent, Lock& lock) {
  if (extent.state == ExtentState::kRetiring) cancelRetiring(extent);
  for (auto& batch : batches_)
    for (Extent*& victim : batch->victims)
      if (victim == &extent) victim = nullptr;
  noteUsed(extent, false);
  const bool mapped = extent.mapped();
  const bool away = extent.state == ExtentState::kRemote || extent.state == ExtentState::kLost;
  extent.rests = away ? extent.state : ExtentState::kEmpty;
  setState(extent, ExtentState::kDetached);
  if (!mapped) return;
  lock.unlock();
  chunks_.unmapAt(extent.address, extent.bytes());
  lock.lock();
}

void Engine::releaseAll() {
  const DriverApi& driver = pool_.driver;
  Lock lock(pool_.mutex);
  chunks_.leaveHost();
  lock.unlock();
  const InContext current(driver, context_);
  if (current.result() != CUDA_SUCCESS) return;
  for (CUstream stream : {pass_stream_, out_stream_})  // what nobody will finish reads chunks
    if (stream != nullptr) driver.cuStreamSynchronize(stream);
  packed_.synchronize();
  lock.lock();
  for (const Late& late : late_) {
    events_.push_back(late.event);
    chunks_.giveVram(late.chunk);
    chunks_.giveHost(late.image);
  }
  late_.clear();
  chunks_.passesOver();
  packed_.releaseAll();
  chunks_.releaseAllFree(lock);
  lock.unlock();
  destroyObjects();
}

CUresult Engine::protect(const std::vector<Extent*>& extents, Lock& lock) {
  for (Extent* extent : extents) ++extent->pins;  // nothing of it is evicted meanwhile
  CUresult result = CUDA_SUCCESS;
  for (Extent* extent : extents) {
    while (moving(extent->state) && !pool_.stopped) {
      hurry(*extent);
      pool_.changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (extent->state == ExtentState::kRetiring) cancelRetiring(*extent);
    if (!extent->mapped() || result != CUDA_SUCCESS)
      continue;  // else mapped as it is to be, the next time
    const uint64_t address = extent->address;
    const uint64_t bytes = extent->bytes();
    const bool read_only = extent->read_only;
    lock.unlock();
    result = chunks_.protectAt(address, bytes, read_only);
    lock.lock();
    if (!extent->mapped()) result = CUDA_SUCCESS;
  }
  for (Extent* extent : extents) --extent->pins;
  return result;
}

CUresult Engine::addPeer(CUdevice peer, Lock& lock) {
  if (peer == device_ || chunks_.hasPeer(peer)) return CUDA_SUCCESS;
  if (!chunks_.addPeer(peer)) return CUDA_ERROR_TOO_MANY_PEERS;
  CUresult result = CUDA_SUCCESS;
  for (uint32_t id = 1; id < pool_.regions.end() && result == CUDA_SUCCESS; ++id) {
    Region* region = pool_.regions.at(id);
    if (region->dead || region->engine != this) continue;
    std::vector<Extent*> extents;
    for (auto& extent : region->extents) extents.push_back(extent.get());
    ++region->wanted;  // it stays, and so do its extents: what joins them meanwhile is mapped for
                       // the peer
    result = protect(extents, lock);
    --region->wanted;
    pool_.changed.notify_all();
  }
  if (result == CUDA_SUCCESS) result = protectFixed(pool_, *this, lock);
  return result;
}

void Engine::noteUsed(Extent& extent, bool used) {
  if (!extent.prefetched) return;
  extent.prefetched = false;
  --extent.region->ahead;
  ahead_bytes_ -= std::min(ahead_bytes_, extent.bytes());
  add(used ? figures_->prefetches_useful : figures_->prefetches_wasted);
}

// What a copy brings is hashed in VRAM before anybody can use it: that is what its host copy holds.
// Without the mutex; returns the event to wait for, nullptr if the driver refused.
CUevent Engine::hashFetched(const Extent& extent, CUevent copied, int slot) {
  const DriverApi& driver = pool_.driver;
  const auto first = static_cast<uint32_t>(slot) * space::kLargestExtentPages;
  kernels::PagePassJob* const job = fetch_hashes_.jobs + slot;
  *job = {extent.vram->alias, 0, 1u << extent.order, first};
  kernels::PagePassParameters parameters{
      reinterpret_cast<uint64_t>(job), {}, reinterpret_cast<uint64_t>(fetch_hashes_.hashes)};
  void* pointers[] = {&parameters.jobs, &parameters.scope, &parameters.hashes};
  CUresult result = driver.cuStreamWaitEvent(pass_stream_, copied, 0);
  if (result == CUDA_SUCCESS)
    result = driver.cuLaunchKernel(pass_, job->pages, 1, 1, kernels::kPagePassThreads, 1, 1, 0,
                                   pass_stream_, pointers, nullptr);
  if (result == CUDA_SUCCESS)
    result = driver.cuEventRecord(copied, pass_stream_);  // the wait has its state by now
  return result == CUDA_SUCCESS ? copied : nullptr;
}

ContentHash Engine::fetchedHash(const Extent& extent, int slot) {
  const ContentHash* pages =
      fetch_hashes_.hashes + static_cast<size_t>(slot) * space::kLargestExtentPages;
  fetch_hashes_.free.push_back(slot);
  return kernels::combineHashes(pages, 1u << extent.order);
}

bool Engine::startFetch(Extent& extent, Fetch why, Lock& lock) {
  if (extent.state != ExtentState::kParked || broken_ || nowNs() < refused_until_ns_) return false;
  setState(extent, ExtentState::kFetching);
  VramChunk* chunk = takeVram(extent, lock);
  if (chunk == nullptr) {
    setState(extent, ExtentState::kParked);
    return false;
  }
  extent.vram = chunk;
  const CUevent event = takeEvent(lock);
  const HostChunk* image =
      late_.empty() && packed_.isReady(extent) ? &packed_.imageOf(extent) : nullptr;
  const bool hashed = image != nullptr ? !packed_.isChecked(extent)
                                       : extent.region->by_pieces && !extent.hash_valid;
  int hash = -1;
  if (hashed && !fetch_hashes_.free.empty()) {
    hash = fetch_hashes_.free.back();
    fetch_hashes_.free.pop_back();
  } else if (hashed) {
    image = nullptr;
  }
  lock.unlock();
  const DriverApi& driver = pool_.driver;
  CUresult result = CUDA_SUCCESS;
  bool copying = false;
  if (image != nullptr) {
    result = packed_.fetch(extent, *image, chunk->alias, event, copying);
    if (result != CUDA_SUCCESS && !copying && !endsContext(result)) image = nullptr;
  }
  if (image == nullptr) {
    result =
        driver.cuMemcpyHtoDAsync_v2(chunk->alias, reinterpret_cast<const void*>(extent.host->alias),
                                    extent.bytes(), in_stream_);
    copying = result == CUDA_SUCCESS;
    if (copying) result = driver.cuEventRecord(event, in_stream_);
  }
  // Not hashed, it will be written down, or compared the next time. The kernel may have been
  // launched: the slot is not used again.
  if (hash >= 0 && result == CUDA_SUCCESS && hashFetched(extent, event, hash) == nullptr) hash = -1;
  const bool unchecked = image != nullptr && hashed && hash < 0;
  lock.lock();
  if (result != CUDA_SUCCESS) {
    copying ? lost(result)
            : refused("copy", result);  // nobody would know when the chunk is free again
    events_.push_back(event);
    if (hash >= 0) fetch_hashes_.free.push_back(hash);
    chunks_.giveVram(chunk);
    extent.vram = nullptr;
    setState(extent, ExtentState::kParked);
    return false;
  }
  fetching_.push_back({&extent, event, hash, image != nullptr, unchecked, nowNs()});
  fetching_bytes_ += extent.bytes();
  add(figures_->bytes_in, image != nullptr ? PackedImages::bytesOf(extent) : extent.bytes());
  add(figures_->fetched_bytes, extent.bytes());
  if (why == Fetch::kAhead) {
    extent.prefetched = true;
    ++extent.region->ahead;
    ahead_bytes_ += extent.bytes();
    add(figures_->prefetches_issued);
  } else if (why == Fetch::kDemand) {
    add(figures_->demand_faults);
  }
  return true;
}

bool Engine::finishFetches(Lock& lock) {
  if (fetching_.empty()) {
    if (late_.empty() && packing_.empty()) packed_.trimSlots(unallocated());
    return false;
  }
  const Copy copy = fetching_.front();
  Extent& extent = *copy.extent;
  const auto parked = [&] {
    noteUsed(extent, false);
    extent.vram = nullptr;
    setState(extent, ExtentState::kParked);
    return true;
  };
  if (!reached(copy.event, lock)) {
    if (!copy.packed || nowNs() - copy.since_ns < kLateNs) return false;
    fetching_.pop_front();
    fetching_bytes_ -= extent.bytes();
    makeLate(extent, copy);
    return parked();
  }
  fetching_.pop_front();
  events_.push_back(copy.event);
  fetching_bytes_ -= extent.bytes();
  bool good = !copy.unchecked || broken_;
  if (copy.hash >= 0) {
    const ContentHash hash = fetchedHash(extent, copy.hash);
    if (copy.packed) {
      good = broken_ || hash == extent.hash;
      packed_.checked(extent, good);
      if (!good)
        base::logError(
            "device %d: what was unpacked is not what was packed; 0x%llx is fetched as it is from "
            "now on",
            device_, static_cast<unsigned long long>(extent.address));
    } else {
      extent.hash = hash;
      extent.hash_valid = extent.host_valid;
    }
  }
  const CUresult result = good ? mapVram(extent, *extent.vram, lock) : CUDA_SUCCESS;
  if (!good || result != CUDA_SUCCESS || broken_) {
    if (good && !broken_) refused("map", result);
    chunks_.giveVram(extent.vram);
    prefetch_again_ = true;
    return parked();
  }
  setState(extent, ExtentState::kVram);
  return true;
}

bool Engine::finishLate(Lock& lock) {
  if (late_.empty() || !reached(late_.front().event, lock)) return false;
  const Late late = late_.front();
  late_.pop_front();
  events_.push_back(late.event);
  if (late.hash >= 0) fetch_hashes_.free.push_back(late.hash);
  chunks_.giveVram(late.chunk);
  chunks_.giveHost(late.image);
  return true;
}

// Host memory that images may still take: what would be left if all allocations had their copies in
// it.
uint64_t Engine::spareForImages() const {
  if (pool_.remote != nullptr) return 0;
  uint64_t needed = 0;
  for (const auto& engine : pool_.engines)
    needed += engine->allocated_ + engine->packed_.hostBytes();
  return chunks_.hostLimit() - std::min(chunks_.hostLimit(), needed);
}

// Host chunks of the order that images wait for, or will: what does not fit VRAM streams through
// it.
uint64_t Engine::imagesExpected(unsigned order) const {
  const uint64_t bytes = kPageBytes << order;
  uint64_t expected = 0;
  if (static_cast<int>(order) == packed_.slotOrder() && beyondVram() > 0)
    expected =
        beyondVram() + windowBytes() - std::min(beyondVram() + windowBytes(), packed_.hostBytes());
  return std::min(std::max<uint64_t>(packed_.wanted(order), expected / bytes),
                  spareForImages() / bytes);
}

bool Engine::finishWrites(Lock& lock) {
  if (writing_.empty() || !reached(writing_.front().event, lock)) return false;
  const Copy copy = writing_.front();
  writing_.pop_front();
  events_.push_back(copy.event);
  Extent& extent = *copy.extent;
  incoming_ -= extent.bytes();
  if (broken_) {
    setState(extent, ExtentState::kParked);
    return true;
  }
  extent.host_valid = true;
  add(figures_->bytes_out, extent.bytes());
  add(figures_->evictions_written);
  if ((extent.region->by_pieces ? extent.wanted : extent.region->wanted) > 0 && !extent.in_host &&
      surplus_ == 0) {  // a launch came for it meanwhile, and its VRAM is owed to nobody
    if (mapVram(extent, *extent.vram, lock) == CUDA_SUCCESS) {
      setState(extent, ExtentState::kVram);
      return true;
    }
  }
  chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  setState(extent, ExtentState::kParked);
  if (extent.region->by_pieces) mapInPlace(extent, lock);
  return true;
}

// What has left its mapping and is as its host copy stays in VRAM until the GPU has packed it.
// False: there is nothing to pack, or no place for it.
bool Engine::startPacking(Extent& extent, Lock& lock) {
  if (extent.region->by_pieces || !late_.empty() || !packed_.claim(extent, spareForImages()))
    return false;
  setState(extent, ExtentState::kWriting);
  const CUevent event = takeEvent(lock);
  const HostChunk& image = packed_.imageOf(extent);
  bool queued = false;
  lock.unlock();
  const CUresult result = packed_.start(extent, image, event, queued);
  lock.lock();
  if (result != CUDA_SUCCESS && (!queued || endsContext(result))) {
    events_.push_back(event);
    chunks_.giveHost(packed_.release(extent));
    setState(extent, ExtentState::kMoving);
    if (endsContext(result)) lost(result);
    return false;
  }
  if (result != CUDA_SUCCESS) lost(result);  // nobody would know when the chunk is free again
  packing_.push_back({&extent, event, -1, false, false, nowNs()});
  return true;
}

// A kernel of the program's that holds the whole GPU may wait for what a launch that waits for the
// extent would do: it is waited for no more, and its chunks are free once the GPU is done with
// them.
void Engine::makeLate(Extent& extent, const Copy& copy) {
  packed_.pause(nowNs() + kLatePauseNs);
  late_.push_back({extent.vram, packed_.release(extent), copy.event, copy.hash});
  extent.vram = nullptr;
}

bool Engine::finishPacking(Lock& lock) {
  if (packing_.empty()) return false;
  const Copy copy = packing_.front();
  Extent& extent = *copy.extent;
  const bool done = reached(copy.event, lock);
  if (!done && nowNs() - copy.since_ns < kLateNs) return false;
  packing_.pop_front();
  incoming_ -= extent.bytes();
  prefetch_again_ = true;
  if (done) {
    events_.push_back(copy.event);
    if (!broken_) packed_.finish(extent);
  } else {
    makeLate(extent, copy);
  }
  add(figures_->evictions_clean);
  const bool wanted = extent.region->wanted > 0 && !extent.in_host &&
                      surplus_ == 0;  // a launch came for it meanwhile
  if (done && wanted && !broken_ && mapVram(extent, *extent.vram, lock) == CUDA_SUCCESS) {
    setState(extent, ExtentState::kVram);
    return true;
  }
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  setState(extent, ExtentState::kParked);
  return true;
}

bool Engine::mapInPlace(Extent& extent, Lock& lock) {
  if (!chunks_.hostMappable() || broken_) return false;
  if (extent.state != ExtentState::kParked && extent.state != ExtentState::kEmpty) return false;
  const ExtentState before = extent.state;
  setState(extent, ExtentState::kMoving);
  if (!takeHost(extent, lock)) {
    setState(extent, before);
    return false;
  }
  lock.unlock();
  const CUresult result =
      chunks_.mapAt(extent.address, extent.bytes(), extent.host->handle, extent.read_only);
  lock.lock();
  if (result != CUDA_SUCCESS) {
    setState(extent, before);
    return false;
  }
  extent.host_valid = true;
  extent.hash_valid = false;  // the GPU may write it where it is
  setState(extent, ExtentState::kInPlace);
  return true;
}

// A launch waited for what was to leave its place in host memory, which was not quiet in time: for
// a while none waits for such.
void Engine::waitedInVain(uint64_t now) {
  promoted_from_ns_ = now + promoted_pause_ns_;
  promoted_pause_ns_ = std::min(2 * promoted_pause_ns_, kLongestPromotedPauseNs);
}

// A launch waited for a victim whose VRAM is owed to others, which was not quiet in time: the next
// ones wait for longer.
void Engine::surplusCameBack(uint64_t now) {
  if (now < surplus_patience_from_ns_) return;  // those of one batch are one time
  surplus_patience_ns_ =
      std::min(2 * std::max(kPatienceNs, surplus_patience_ns_), kLongestSurplusPatienceNs);
  surplus_patience_from_ns_ = now + surplus_patience_ns_;
}

bool Engine::serveWants(Lock& lock) {
  bool progress = false;
  demand_short_ = 0;
  const uint64_t now = nowNs();
  // Where nothing can be used in place, launches that fit only one at a time must not hold half of
  // VRAM each: the oldest gets what it needs first, from the others if need be.
  const bool one_by_one = !chunks_.hostMappable();
  // By index: the list may change while the mutex is released. A waiting thread leaves it only
  // under the mutex.
  for (size_t w = 0; w < wants_.size(); ++w) {
    Want* want = wants_[w];
    serving_ = w;
    if (one_by_one && demand_short_ > 0) {
      want->since_ns = now;
      continue;
    }
    uint64_t missing = 0;
    bool in_flight = false;
    bool moved = false;
    bool lingering = false;  // the launch could go on with what is in place, and waits for VRAM
    std::vector<Extent*> leaving;  // their place in host memory
    for (size_t i = 0; i < want->extents.size(); ++i) {
      Extent& extent = *want->extents[i];
      switch (extent.state) {
        case ExtentState::kInPlace:
          if (want->in_vram || (want->fetch && !want->in_place)) {
            leaving.push_back(&extent);
            in_flight = true;
            lingering |= !want->in_vram;
          }
          break;
        case ExtentState::kVram:
        case ExtentState::kDetached:
        case ExtentState::kFreeing:
          break;
        case ExtentState::kRetiring:
          if (extent.region->swapping && !want->in_vram) {
            in_flight = true;
          } else if (extent.vram == nullptr &&
                     (want->in_vram ||
                      ((want->fetch || extent.region->by_pieces) && !want->in_place))) {
            in_flight = true;
            lingering |= !want->in_vram;
          } else {
            // Launches that come all the time would for ever take back VRAM that is owed to others,
            // and for ever keep in place what there is room for: they wait, a bounded time.
            const bool owed = extent.vram != nullptr && surplus_ > 0;
            const bool promoted = extent.vram == nullptr && now >= promoted_from_ns_;
            const bool waits =
                owed || (promoted && !want->in_place && chunks_.vramAvailable() >= extent.bytes());
            // Once nothing uses it any more, it is a matter of the GPU alone.
            const uint64_t patience =
                owed ? std::max(kPatienceNs, surplus_patience_ns_)
                     : (promoted && inPass(extent) ? kPassPatienceNs : kPatienceNs);
            const bool patient = now - want->since_ns < patience;
            if (waits && patient) {
              in_flight = true;
            } else {
              if (promoted && !patient) waitedInVain(now);
              if (owed) surplusCameBack(now);
              cancelRetiring(extent);
              moved = true;
            }
          }
          break;
        case ExtentState::kMapping:
        case ExtentState::kWriting:
        case ExtentState::kFetching:
        case ExtentState::kMoving:
          in_flight = true;
          break;
        case ExtentState::kSending:
        case ExtentState::kReceiving:
          pool_.remote->raise(remoteId(extent));
          in_flight = true;
          break;
        case ExtentState::kRemote:
          if (startReceive(extent, true, lock)) moved = true;
          in_flight |= moved || pool_.remote_moves > 0 || !writing_.empty() || !packing_.empty();
          missing += extent.bytes();
          break;
        case ExtentState::kLost:
          want->lost = true;
          pool_.changed.notify_all();
          break;
        case ExtentState::kEmpty:
        case ExtentState::kParked: {
          const bool parked = extent.state == ExtentState::kParked;
          const bool in_place =
              want->in_place || (!want->in_vram && (extent.in_host || extent.region->isSparse()));
          if (in_place && mapInPlace(extent, lock)) {
            moved = true;
          } else if (parked ? startFetch(extent, Fetch::kDemand, lock) : mapEmpty(extent, lock)) {
            moved = in_flight = true;
          } else {
            missing += extent.bytes();
          }
          break;
        }
      }
      if (w >= wants_.size() || wants_[w] != want)
        return true;  // it left while the mutex was released
    }
    const bool roots = want->scan_roots && pool_.roots_written.contains(context_);
    if (!want->scan_late &&
        (roots || std::any_of(want->to_scan.begin(), want->to_scan.end(),
                              [](const Region* region) { return region->host_written; }))) {
      if (now - want->since_ns > 5 * kPatienceNs) {
        want->scan_late = true;
        pool_.changed.notify_all();
      } else {
        in_flight = true;
        moved |= scanHostWritten(want->to_scan, roots);
      }
    }
    if (promote(leaving)) moved = true;
    progress |= moved;
    if (moved && refusals_ == 0) want->since_ns = now;
    for (const Extent* extent : leaving)
      if (extent->state == ExtentState::kRetiring && want->fetch)
        missing += extent->bytes();  // soon
    demand_short_ += missing;
    if (want->in_vram && !leaving.empty() && now - want->since_ns > kRefusedAfterNs) {
      want->failed = true;  // launches that never end reach it where it is
      pool_.changed.notify_all();
    }
    // Who could go on at once waits longer for what is on its way already.
    const bool coming_soon = want->fetch && (incoming_ > 0 || !batches_.empty());
    const uint64_t patience = coming_soon ? 5 * kPatienceNs : kPatienceNs;
    if (lingering && now - want->since_ns > patience) {
      want->in_place = true;
      progress = true;
      pool_.changed.notify_all();
    }
    if (missing == 0) continue;
    const uint64_t coming = chunks_.vramAvailable() + incoming_;
    if (missing > coming && retire(missing - coming, 0, true)) {
      progress = true;
      continue;
    }
    // Host memory comes free when memservers have what is being sent.
    const bool hopeless = !in_flight && incoming_ == 0 && batches_.empty() && !hasNoPlace() &&
                          pool_.remote_moves == 0;
    // Who needs VRAM waits for kernels that have it, as long as there are some.
    const uint64_t longest = want->in_vram && !hopeless ? kRefusedAfterNs : patience;
    if (!want->in_place &&
        (broken_ || (hopeless && !want->in_vram) || now - want->since_ns > longest)) {
      want->in_place = true;
      want->since_ns = now;
      progress = true;
    } else if (want->in_place &&
               (broken_ ||
                (!moved && now - want->since_ns >
                               (hopeless || allIsFull() ? 25 * kPatienceNs : kRefusedAfterNs)))) {
      // Neither VRAM nor host memory in place: the launch is refused before it starts.
      want->failed = true;
      pool_.changed.notify_all();
    }
  }
  serving_ = SIZE_MAX;  // what follows is on no launch's behalf
  return progress;
}

// Before any launch gets what becomes free: a launch can use host memory in place, the driver
// can't.
bool Engine::serveReliefs(Lock& lock) {
  serving_ = 0;
  uint64_t wanted = 0;
  bool progress = false;
  for (size_t r = 0; r < reliefs_.size(); ++r) {
    const std::shared_ptr<Relief> relief = reliefs_[r];
    if (relief->bytes == 0) continue;
    const uint64_t lent = chunks_.lend(relief->bytes, lock);
    if (r >= reliefs_.size() || reliefs_[r] != relief) {  // it left while the mutex was released
      chunks_.takeBack(lent);
      return true;
    }
    relief->given += lent;
    relief->bytes -= std::min(relief->bytes, lent);
    progress |= lent > 0;
    wanted += relief->bytes;
  }
  if (progress) {
    set(figures_->vram_budget_bytes, chunks_.vramBudget());
    pool_.changed.notify_all();
  }
  if (wanted > incoming_ && retire(wanted - incoming_, 0, true)) progress = true;
  return progress;
}

uint64_t Engine::leastBelow() const {
  const uint64_t above = std::min(budget_, chunks_.vramBudget()), held = allocated_ + kChangeBytes;
  return allocated_ == 0 ? 0 : held - std::min(held, above);
}

uint64_t Engine::setVramBudget(uint64_t bytes) {
  const uint64_t below = chunks_.hostLimit() + remoteCapacity(pool_);
  const uint64_t room = below - std::min(below, usedByOthers());
  const uint64_t held = allocated_ + kChangeBytes;
  const uint64_t least = std::min(budget_, held - std::min(held, room));
  const uint64_t wanted = std::max(std::min(bytes, most_), least);
  const uint64_t budget = std::max(kPageBytes, (wanted + kPageBytes - 1) / kPageBytes * kPageBytes);
  if (budget < budget_) {
    surplus_ += budget_ - budget;
  } else {
    const uint64_t kept = std::min(surplus_, budget - budget_);
    surplus_ -= kept;
    chunks_.grow(budget - budget_ - kept);
  }
  budget_ = budget;
  wake();
  return budget;
}

// Before launches as well: who is to have it may be waiting.
bool Engine::giveSurplus(Lock& lock) {
  if (surplus_ == 0) surplus_patience_ns_ = 0;
  if (surplus_ == 0 || broken_) return false;
  serving_ = 0;
  const uint64_t given =
      chunks_.shrink(surplus_, lock);  // releases the mutex: the budget may be raised meanwhile
  if (given > surplus_) chunks_.grow(given - surplus_);
  surplus_ -= std::min(surplus_, given);
  const bool leaving = surplus_ > incoming_ && retire(surplus_ - incoming_, 0, true);
  return given > 0 || leaving;
}

// The host tier's limit was lowered: what is free goes back to the system, and copies of what is in
// VRAM go with it. What is parked has its place: the limit is not below it.
bool Engine::giveHostSurplus(Lock& lock) {
  const uint64_t surplus = chunks_.hostSurplus();
  if (surplus == 0 || broken_) return false;
  if (chunks_.hostFree() < surplus) packed_.drop(surplus - chunks_.hostFree());
  if (chunks_.hostFree() < surplus) dropLowerCopies(surplus - chunks_.hostFree(), true);
  return chunks_.releaseFreeHost(surplus, lock) > 0;
}

// One extent at a time: the other device asks again for as long as it needs more. Its host chunk
// goes as a lower copy. Where memservers are full, only VRAM may have room for what makes way in
// host RAM for what a launch needs from them.
bool Engine::bringHome(Lock& lock) {
  const bool makes_way =
      host_short_ > 0 && pool_.remote != nullptr && nowNs() < pool_.remote_retry_ns;
  if (broken_ || (!makes_way && (!recalled_ || demand_short_ > 0))) return false;
  for (uint32_t id = 1; id < pool_.regions.end(); ++id) {
    Region* region = pool_.regions.at(id);
    if (region->dead || region->engine != this || (region->unusable == 0 && region->in_place == 0))
      continue;
    for (auto& extent : region->extents) {
      if (extent->bytes() > chunks_.vramAvailable()) continue;
      if (extent->state == ExtentState::kInPlace && region->wanted == 0)
        return promote({extent.get()});
      if (extent->state == ExtentState::kParked) return startFetch(*extent, Fetch::kDemand, lock);
    }
  }
  recalled_ = false;
  return false;
}

// What is used in place since there was no room stays so where nobody can tell what comes next,
// though there is room by now: memory was freed, or the budget is larger. A launch that has all it
// needs in place asks for nothing.
bool Engine::fillFreeVram() {
  constexpr uint64_t kEachNs = 20'000'000;
  if (broken_ || valueOf(figures_->in_place_bytes) == 0 || !wants_.empty() || demand_short_ > 0 ||
      surplus_ > 0 || !reliefs_.empty() || incoming_ > 0 || !batches_.empty() ||
      nowNs() < filled_ns_ + kEachNs)
    return false;
  filled_ns_ = nowNs();
  const uint64_t window = windowBytes();
  uint64_t room = chunks_.vramAvailable();
  if (room <= window) return false;
  room = std::min(room - window, kInFlightBytes);
  std::vector<Extent*> coming;
  for (uint32_t id = 1; id < pool_.regions.end() && room >= kPageBytes; ++id) {
    const Region* region = pool_.regions.at(id);
    if (region->dead || region->engine != this || region->in_place == 0 || region->wanted > 0 ||
        region->isSparse() || region->arena != nullptr)
      continue;
    for (const auto& extent : region->extents) {
      if (extent->state != ExtentState::kInPlace || extent->bytes() > room) continue;
      room -= extent->bytes();
      coming.push_back(extent.get());
    }
  }
  return !coming.empty() && promote(coming, true);
}

uint64_t Engine::windowBytes() const {
  // Enough to keep the link busy over the latency of a launch, its end, and the way out of what it
  // used: some milliseconds of PCIe. Every byte of it is a byte of the model that can't stay.
  return std::clamp<uint64_t>(chunks_.vramBudget() / 16, 2 * kPageBytes, 320ull << 20);
}

bool Engine::prefetch(Lock& lock) {
  if (broken_ || !pool_.slow.load(std::memory_order_relaxed) || demand_short_ > 0 ||
      !reliefs_.empty() || surplus_ > 0)
    return false;
  if (pool_.predictor.touches() == planned_touches_ && !prefetch_again_) return false;
  planned_touches_ = pool_.predictor.touches();
  prefetch_again_ = false;
  plan();
  const uint64_t window = windowBytes();
  if (ahead_bytes_ >= window) return false;
  struct Next {
    Region* region;
    uint64_t distance;
    uint64_t begin, end;  // of a piece; else nothing: all of the region
    bool piece() const { return begin != end; }
  };
  std::vector<Next> upcoming;
  uint64_t bytes = 0;
  pool_.predictor.upcoming(128, [&](uint32_t unit, uint64_t distance) {
    const UnitRef found = pool_.unitAt(unit);
    Region* region = found.region;
    if (region == nullptr || region->dead || region->engine != this) return true;
    if (found.piece != nullptr) {
      upcoming.push_back({region, distance, found.begin(), found.end()});
      if (found.placement() != Placement::kKeep) bytes += found.pages() * kPageBytes;
      return bytes < 2 * window;
    }
    upcoming.push_back({region, distance, 0, 0});
    if (region->unusable != 0) bytes += region->pages * kPageBytes;
    return bytes < 2 * window;
  });
  // What was put in place when there was no room comes in before it is used again. Once it is known
  // what streams, that makes room.
  std::vector<Extent*> leaving;
  uint64_t room = chunks_.vramAvailable();
  uint64_t room_for = UINT64_MAX;  // the distance of the first that room is made for
  bool progress = false;
  for (const Next& next : upcoming) {
    if (next.region->in_place == 0 || next.region->wanted > 0 || next.region->isSparse()) continue;
    if (next.region->arena != nullptr)
      continue;  // by its pieces (below), or by what is used most (swap.cpp)
    for (auto& extent : next.region->extents) {
      if (extent->state != ExtentState::kInPlace) continue;
      const uint64_t coming = room + incoming_;
      if (extent->bytes() <= room) {
        room -= extent->bytes();
        leaving.push_back(extent.get());
      } else if (plan_known()) {
        room_for = std::min(room_for, next.distance);
        if (extent->bytes() > coming)
          progress |= retire(extent->bytes() - coming, next.distance, false);
      }
    }
  }
  progress |= promote(leaving);
  prefetch_again_ |= progress;
  leaving.clear();
  uint64_t promoting = promotingBytes();
  for (const Next& next : upcoming) {
    if (next.region->dead) continue;
    if (!next.piece() && next.region->unusable == 0) continue;  // nothing of it is parked or leaves
    const ExtentRange range = next.piece()
                                  ? extentsAt(*next.region, next.begin, next.end - next.begin)
                                  : ExtentRange{0, next.region->extents.size()};
    for (size_t i = range.first; i < std::min(range.last, next.region->extents.size()); ++i) {
      Extent& extent = *next.region->extents[i];
      if (extent.state == ExtentState::kRetiring && extent.vram != nullptr) {
        if (next.distance > room_for) continue;  // it goes for what is used before it
        cancelRetiring(extent);
        progress = true;
        continue;
      }
      if (extent.state == ExtentState::kParked && next.region->isSparse() &&
          mapInPlace(extent, lock)) {
        progress = prefetch_again_ = true;
        if (next.region->dead) return true;
        continue;
      }
      const bool in_place = next.piece() && extent.state == ExtentState::kInPlace &&
                            extent.wanted == 0 && !next.region->isPinned(extent);
      if ((extent.state != ExtentState::kParked && !in_place) || extent.in_host) continue;
      const uint64_t ahead = ahead_bytes_ + promoting;
      if (ahead + extent.bytes() > window && ahead > 0) return promote(leaving) || progress;
      if (fetching_bytes_ > kInFlightBytes) {  // a demand would wait behind all that is queued
        prefetch_again_ = true;
        return promote(leaving) || progress;
      }
      if (in_place && chunks_.vramAvailable() >= promoting + extent.bytes()) {
        // Unmapped once no launch uses it, then fetched at once (evict).
        promoting += extent.bytes();
        leaving.push_back(&extent);
        prefetch_again_ = true;
        continue;
      }
      if (!in_place && startFetch(extent, Fetch::kAhead, lock)) {
        progress = prefetch_again_ = true;
        if (next.region->dead) return true;
        continue;
      }
      const uint64_t short_of = window - std::min(window, ahead_bytes_);
      const uint64_t coming = chunks_.vramAvailable() + incoming_;
      if (coming < short_of) progress |= retire(short_of - coming, next.distance, false);
      prefetch_again_ = incoming_ > 0;
      return promote(leaving) || progress;
    }
  }
  return promote(leaving) || progress;
}

// What timed launches tell of the regions that they used.
void Engine::judgeTimed(Lock& lock) {
  if (!timer_.busy() || broken_) return;
  struct Sample {
    Region* region;
    uint64_t buffer_id;
    uint64_t ns;
    bool in_place;
  };
  std::vector<Sample> samples;
  lock.unlock();
  timer_.collect(pool_.driver, [&](const TimedLaunch& launch, uint64_t ns) {
    samples.push_back({launch.region, launch.buffer_id, ns, launch.in_place});
  });
  lock.lock();
  for (const Sample& sample : samples) {
    Region& region = *sample.region;
    if (region.dead || region.buffer_id != sample.buffer_id) continue;
    const uint64_t bytes = region.pages * kPageBytes;
    if (!judge(region.density, bytes, sample.ns, sample.in_place, vram_bandwidth_)) continue;
    if (!region.isSparse() && !sample.in_place) continue;  // as it was treated so far
    base::logInfo(
        "device %d: launches touch %s of the %llu MiB at 0x%llx: %s", device_,
        region.isSparse() ? "little" : "much", static_cast<unsigned long long>(bytes >> 20),
        static_cast<unsigned long long>(region.base),
        region.isSparse() ? "it stays in host memory, used in place" : "it is fetched again");
    region.placement = Placement::kUnplanned;
    planned_round_ = next_plan_ = 0;  // there is more or less room for the others
    prefetch_again_ = true;
  }
}

// Which regions stay and which stream through VRAM, once the order of a round is known. Any set
// that stays gives the same number of bytes a round; an evenly spread one lets copies and kernels
// overlap all the time, where the set that plain farthest-next-use ends up with (one contiguous
// run) would leave the link idle while the run is used.
void Engine::plan() {
  if (pool_.predictor.touches() < next_plan_ || !pool_.predictor.confident()) return;
  std::vector<UnitRef> round;
  uint64_t total = 0;
  pool_.predictor.upcoming(1u << 16, [&](uint32_t unit, uint64_t) {
    const UnitRef found = pool_.unitAt(unit);
    if (found.region == nullptr || found.region->dead || found.region->engine != this ||
        found.region->isSparse())
      return true;
    round.push_back(found);
    total += found.pages();
    return true;
  });
  next_plan_ = pool_.predictor.touches() + std::max<size_t>(64, round.size() / 4);
  if (total * kPageBytes * 2 < allocated_) return;  // an inner loop, not the round
  // What other regions hold in VRAM (hot ones, and those outside the round) is not there for it.
  uint64_t others = packed_.mostSlotBytes() / kPageBytes;
  const uint32_t mark = ++pool_.closure_mark;
  for (const UnitRef& unit : round) unit.region->mark = mark;
  for (uint32_t id = 1; id < pool_.regions.end(); ++id) {
    Region* region = pool_.regions.at(id);
    if (region->dead || region->engine != this) continue;
    if (region->by_pieces) {  // what nobody uses of an arena is in nobody's way
      region->arena->overlapping(region->base, region->pages * kPageBytes, [&](const Piece& piece) {
        if (pool_.predictor.isHot(unitOf(piece))) others += piece.pages();
      });
      continue;
    }
    if (region->mark == mark || region->isSparse()) continue;
    if (pool_.predictor.isHot(unitOf(*region)) || region->placement == Placement::kUnplanned)
      others += region->pages;
  }
  const uint64_t budget = chunks_.vramBudget() / kPageBytes;
  // The window, and what is on its way out: the more, the faster what comes in.
  const uint64_t streaming = windowBytes() / kPageBytes * (packed_.mostSlotBytes() > 0 ? 4 : 3) / 2;
  const uint64_t room = budget > others + streaming ? budget - others - streaming : 0;
  // Planned anew only when the round or the room has changed noticeably: another choice costs a
  // round of traffic. What is new in a round that is otherwise the same is small: it stays.
  const auto differs = [](uint64_t a, uint64_t b) {
    return (a > b ? a - b : b - a) * 32 > std::max(a, b);
  };
  if (planned_round_ != 0 && !differs(total, planned_round_) && !differs(room, planned_room_)) {
    for (const UnitRef& unit : round)
      if (unit.placement() == Placement::kUnplanned)
        unit.placement() =
            unit.pages() <= space::kLargestExtentPages ? Placement::kKeep : Placement::kStream;
    return;
  }
  // Another round is believed when it has been seen for a while: while the cursor is found anew,
  // what it foretells is short.
  if (planned_round_ != 0) {
    if (differs(total, candidate_round_)) candidate_seen_ = 0;
    candidate_round_ = total;
    if (++candidate_seen_ < kRoundBelieved) return;
  }
  candidate_seen_ = 0;
  planned_round_ = total;
  planned_room_ = room;
  std::sort(round.begin(), round.end(),
            [](const UnitRef& a, const UnitRef& b) { return a.begin() < b.begin(); });
  // Units that share the extent in which they begin stay or go together.
  struct Group {
    size_t first, last;
    uint64_t pages;
    bool kept;
  };
  std::vector<Group> groups;
  const Extent* shared = nullptr;
  uint64_t kept = 0;
  for (size_t i = 0; i < round.size(); ++i) {
    const UnitRef& unit = round[i];
    const Extent* begins_in = nullptr;
    if (unit.piece != nullptr) {
      const ExtentRange range = extentsAt(*unit.region, unit.begin(), 1);
      if (range.first < range.last) begins_in = unit.region->extents[range.first].get();
    }
    if (begins_in == nullptr || begins_in != shared)
      groups.push_back({i, i, 0, unit.placement() == Placement::kKeep});
    shared = begins_in;
    groups.back().last = i + 1;
    groups.back().pages += unit.pages();
    if (groups.back().kept) kept += unit.pages();
  }
  // As few as need be change, evenly spread: what is to stay from now on has to come, and what does
  // not makes way for it.
  const uint64_t wanted = std::min(room, total);
  const bool more = kept < wanted;
  const uint64_t change = more ? wanted - kept : kept - wanted;
  const uint64_t may_change = more ? total - kept : kept;
  uint64_t owed = 0;  // pages that should have changed of those passed, times may_change
  uint64_t changed = 0;
  for (Group& group : groups) {
    if (change != 0 && group.kept != more) {
      owed += group.pages * change;
      if ((changed + group.pages / 2) * may_change <= owed) {
        changed += group.pages;
        group.kept = more;
      }
    }
    for (size_t i = group.first; i < group.last; ++i)
      round[i].placement() = group.kept ? Placement::kKeep : Placement::kStream;
  }
  kept += more ? changed : -changed;
  const unsigned long long total_mib = total * kPageBytes >> 20, kept_mib = kept * kPageBytes >> 20;
  base::logInfo(
      "device %d: a round of %zu allocations and pieces of arenas, %llu MiB; %llu MiB of them stay "
      "in VRAM",
      device_, round.size(), total_mib, kept_mib);
}

}  // namespace olpager::pager
