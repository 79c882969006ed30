#include "pager/residency/engine.h"
#include "pager/residency/arena_streaming.h"

#include <sys/prctl.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/counters/trace.h"
#include "pager/pool_state.h"
#include "pager/residency/direct_moves.h"
#include "pager/residency/eviction.h"
#include "pager/residency/fetches.h"
#include "pager/residency/give_away.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/in_place.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/remote_moves.h"
#include "pager/residency/sparse_use.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kLongestRunNs = 1'000'000;
// While the GPU is at something only asking tells. Asking costs a processor time, so pauses grow
// with what has been waited already, and make it longer by a sixteenth at most.
constexpr uint64_t kShortestPollNs = 10'000, kLongestPollNs = 200'000, kPollShare = 16;
// Else whoever changes something rings; these are for what nobody rings for.
constexpr auto kWantPause = std::chrono::microseconds(200);
constexpr auto kRemotePause = std::chrono::milliseconds(5);
constexpr uint64_t kOwedNs = 300'000;
constexpr auto kIdlePause = std::chrono::milliseconds(100);
// How often the GPU is looked at; how long an idle one takes to come to a mark, at least and at
// most; and when that was too long ago to tell of one moment.
constexpr uint64_t kLookEveryNs = 10'000'000, kLookNs = 50'000, kLookMostNs = 500'000,
                   kLookLateNs = 1'000'000;
constexpr auto kLookPause = std::chrono::nanoseconds(kLookNs);
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
    case ExtentState::kAbsent:  // managed memory has its frame in host RAM
      return extent.region->managed != nullptr ? Place::kHost : Place::kNone;
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

bool mayBeInPlace(const Region& region) {
  return region.engine != nullptr && region.engine->chunks().hostMappable();
}

// True if the extent leaves this machine, and others have its room. (That memservers hold it
// already says nothing: such pages may come and go while all stays full.)
static bool leavesHere(ExtentState before, ExtentState state) {
  const bool sent = before == ExtentState::kSending || before == ExtentState::kWriting;
  return (sent && state == ExtentState::kRemote) || state == ExtentState::kAbsent ||
         state == ExtentState::kFreeing;
}

Engine::Engine(PoolState& pool, CUdevice device, CUcontext context)
    : pool_(pool),
      device_(device),
      context_(context),
      chunks_(pool.driver, device, pool.devices.host),
      packed_(pool.driver, chunks_, pool.options.packing),
      figures_(&counters().device(static_cast<unsigned>(device))),
      account_(counters().whyOf(static_cast<unsigned>(device))),
      kernels_(pool.driver),
      scanner_(pool, *this, kernels_),
      arenas_(std::make_unique<ArenaStreaming>(*this)),
      eviction_(std::make_unique<Eviction>(*this)),
      fetching_(std::make_unique<Fetching>(*this)),
      leaving_(std::make_unique<GivingAway>(*this)),
      host_(std::make_unique<HostCopies>(*this)),
      remote_(std::make_unique<RemoteMoves>(*this)),
      ahead_(std::make_unique<Prefetcher>(*this)),
      sparse_(std::make_unique<SparseUse>(*this)) {}

Engine::~Engine() { stop(); }

CUresult Engine::start(uint64_t vram_budget, int numa_node, Lock& lock) {
  chunks_.setBudgets(vram_budget);
  debts_.budget = vram_budget;
  lock.unlock();
  CUresult result = CUDA_SUCCESS;
  {
    const InContext current(pool_.driver, context_);
    result = current.result();
    if (result == CUDA_SUCCESS) {
      chunks_.probeHost(numa_node);
      result = DirectMoves::start(*this, direct_);
      if (result == CUDA_SUCCESS) result = makeObjects();
    }
  }
  lock.lock();
  if (result != CUDA_SUCCESS) return result;
  set(figures_->vram_budget_bytes, vram_budget);
  set(counters().host_limit_bytes, chunks_.hostLimit());
  return startThreads() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Streams, kernels and buffers, in the current context.
CUresult Engine::makeObjects() {
  const DriverApi& driver = pool_.driver;
  sparse_->setVramBandwidth(vramBandwidth(driver, device_));
  size_t free_bytes = 0, total_bytes = 0;
  CUresult result = driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  debts_.most = std::max<uint64_t>(total_bytes, debts_.budget);
  // Before other streams' work, so that eviction does not wait behind the program's kernels.
  for (CUstream* stream : {&streams_.in, &streams_.out})
    if (result == CUDA_SUCCESS)
      result = driver.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, -5);
  if (result == CUDA_SUCCESS)
    result = kernels_.makeObjects((debts_.most + chunks_.mostHost()) / kPageBytes + 64);
  if (result == CUDA_SUCCESS && pool_.options.packing.on) result = packed_.makeObjects();
  return result;
}

void Engine::destroyObjects() {
  const DriverApi& driver = pool_.driver;
  packed_.destroyObjects();
  for (CUevent event : events_) driver.cuEventDestroy_v2(event);
  events_.clear();
  sparse_->timer().drop(driver);
  for (CUstream* stream : {&streams_.in, &streams_.out}) {
    if (*stream != nullptr) driver.cuStreamDestroy_v2(*stream);
    *stream = nullptr;
  }
  kernels_.destroyObjects();
}

// A thread's body. `vital`: what it could not do left extents half moved, and nobody is to wait for
// them any more.
template <typename Body>
void Engine::guarded(Body body, bool vital) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    base::logError("device %d: a thread of the pager has ended: %s%s", device_, error.what(),
                   vital ? "; launches that need what is not mapped are refused" : "");
    if (!vital) return;
    std::lock_guard lock(pool_.mutex);
    pool_.stopped = true;
    pool_.changed.notify_all();
  }
}

// False: the system gives no thread. Without a maker of host chunks the engine makes them itself,
// when they are needed, and maps what has come where there is no mapper.
bool Engine::startThreads() {
  try {
    life_.thread = base::ownThread([this] { guarded([this] { run(); }, true); });
  } catch (const std::exception& error) {
    base::logError(
        "device %d: the pager's thread can't be started: %s (see ulimit -u and the cgroup's "
        "pids.max)",
        device_, error.what());
    return false;
  }
  try {
    fetching_->mapper =
        base::ownThread([this] { guarded([this] { fetching_->runMapper(); }, true); });
  } catch (const std::exception& error) {
    base::logWarn("device %d: no thread that maps pages: %s", device_, error.what());
  }
  try {
    host_->maker = base::ownThread([this] { guarded([this] { host_->makeHostChunks(); }, false); });
  } catch (const std::exception& error) {
    base::logWarn("device %d: no thread that makes host memory: %s", device_, error.what());
  }
  return true;
}

uint64_t Engine::usedByOthers() const {
  uint64_t others = 0;
  for (const auto& engine : pool_.devices.engines)
    if (engine.get() != this) others += engine->beyondVram();
  return others;
}

uint64_t Engine::capacity() const {
  const uint64_t below = chunks_.hostLimit() + lowerCapacity(pool_);
  return chunks_.vramBudget() + below - std::min(below, usedByOthers());
}

uint64_t Engine::unallocated() const { return capacity() - std::min(capacity(), named()); }

bool Engine::moveTo(CUcontext context, Lock& lock) {
  if (life_.broken || !chunks_.hostMappable())
    return false;  // other host memory goes with the context that made it
  life_.pausing = true;
  wake();
  // Transfers from and to memservers are between them and host memory, which stays: they end
  // meanwhile or later.
  while (!flight_.none() || isCopyingAhead() || !fetching_->mapperIsIdle() ||
         !eviction_->batches().empty()) {
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
  life_.pausing = life_.stop = false;
  if (result != CUDA_SUCCESS) lost(result);
  if (!pool_.stopped && !startThreads()) return false;
  return !life_.broken;
}

void Engine::stop() noexcept {
  Lock lock(pool_.mutex);
  life_.stop = true;
  life_.wake.notify_all();
  host_->wakeMaker();
  fetching_->wakeMapper();
  // The process's end may come beside a context's: threads are joined once, and who comes second
  // waits for that.
  while (life_.stopping) pool_.changed.wait_for(lock, std::chrono::milliseconds(1));
  life_.stopping = true;
  std::thread thread = std::move(life_.thread), mapper = std::move(fetching_->mapper);
  std::thread maker = std::move(host_->maker);
  lock.unlock();
  if (thread.joinable()) thread.join();
  if (mapper.joinable()) mapper.join();
  if (maker.joinable()) maker.join();
  pool_.streams.polls(device_, false);
  lock.lock();
  life_.stopping = false;
  pool_.changed.notify_all();
  for (auto& batch : eviction_->batches())  // passes that nobody will finish
    if (batch->stage == VictimBatch::Stage::kPass) scanner_.abandon(batch->scan);
}

void Engine::abandon() noexcept {
  // The threads exist in the parent only.
  if (life_.thread.joinable()) life_.thread.detach();
  if (fetching_->mapper.joinable()) fetching_->mapper.detach();
  if (host_->maker.joinable()) host_->maker.detach();
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
  if (leavesHere(before, state)) {
    for (const auto& engine : pool_.devices.engines)
      if (!engine->wants_.empty()) engine->wants_.roomCame(nowNs());
  }
  if (before == ExtentState::kLost) counts_.held += bytes;
  if (state == ExtentState::kLost) counts_.held -= bytes;
  if (region.away != nullptr) {
    // An extent that other executors have is not held here. Nor does it lack a host chunk.
    if (before == ExtentState::kAbsent) {
      counts_.held += bytes;
      if (extent.host == nullptr) host_->lacksChunk(extent);
    }
    if (state == ExtentState::kAbsent) counts_.held -= bytes;
  }
  if (before == ExtentState::kRemote) --region.remote;
  if (state == ExtentState::kRemote) ++region.remote;
  if (before == ExtentState::kInPlace) --region.in_place;
  if (state == ExtentState::kInPlace) ++region.in_place;
  if (state != ExtentState::kInPlace && state != ExtentState::kRetiring &&
      state != ExtentState::kMoving)
    extent.sealed = false;  // that mapping is gone
  if (usable(before) && !usable(state)) ++region.unusable;
  if (!usable(before) && usable(state)) --region.unusable;
  extent.state = state;
  const bool was = before == ExtentState::kVram, is = state == ExtentState::kVram;
  if (was && !is)
    region.blocked.fetch_add(1, std::memory_order_seq_cst);
  else if (!was && is)
    region.blocked.fetch_sub(1, std::memory_order_seq_cst);
  if (region.published && isOutside(region, before) != isOutside(region, state)) {
    isOutside(region, state) ? ++pool_.outside : --pool_.outside;
    pool_.updateSlow();
  }
  // Waiters for an extent have said so of its region, but for regions with waiters of other kinds.
  // To wake the others each time would cost them the mutex, and whoever moves extents the time.
  const bool awaited = region.wanted > 0 || region.dead || region.by_pieces ||
                       region.shared() != nullptr || region.kind != RegionKind::kAllocation;
  if (awaited && (extent.mapped() || !moving(state))) pool_.changed.notify_all();
}

/// A pass takes its event where the mutex can't be released.
void Engine::stockEvents(Lock& lock) {
  while (events_.empty() && !life_.broken) {
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

/// True if an event of the engine's has come; a lost context ends everything.
bool Engine::reached(CUevent event, Lock& lock) {
  const CUresult result =
      outside(TraceStep::kPoll, nullptr, lock, [&] { return pool_.driver.cuEventQuery(event); });
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result != CUDA_SUCCESS) lost(result);
  return true;
}

/// Asks which launches have ended.
void Engine::pollStreams(Lock& lock) {
  outside(TraceStep::kPoll, nullptr, lock, [&] {
    pool_.streams.poll(device_);
    return true;
  });
}

void Engine::lost(CUresult result) {
  if (life_.broken) return;
  life_.broken = true;
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS && tellUnmapped(pool_, context_)) return;
  base::logError("device %d: the context is lost (CUDA error %d); paging on it has stopped",
                 device_, static_cast<int>(result));
}

bool Engine::isCopyingAhead() const { return arenas_->isCopying(); }

/// The limit that launches wait for while the engine's thread sleeps.
Limit Engine::sleepsFor() const {
  if (!fetching_->mapperIsIdle()) return Limit::kMapping;
  if (!pool_.lower.under_way.empty()) return Limit::kMemservers;
  if (!flight_.writing.empty() || !flight_.packing.empty()) return Limit::kLinkOut;
  for (const auto& batch : eviction_->batches())
    if (batch->stage == VictimBatch::Stage::kPass) return Limit::kHash;
  if (!eviction_->batches().empty()) return Limit::kKernels;
  if (host_->shortBytes() > 0) return Limit::kHostMemory;
  if (pool_.away != nullptr || leaving_->any()) return Limit::kOthers;
  return Limit::kUnknown;
}

void Engine::lookAtGpu(Lock& lock) {
  if (life_.broken || !pool_.slow.load(std::memory_order_relaxed)) {
    look_ = {};
    return;
  }
  const uint64_t now = nowNs();
  if (look_.last_ns == 0) {
    look_.last_ns = now;
    look_.waited_ns = valueOf(counters().whyOf(static_cast<unsigned>(device_)).waited_ns);
  }
  if (look_.number == 0) {
    if (now < look_.next_ns) return;
    look_.number = pool_.launch_number.load();
    pollStreams(lock);
    look_.marked_ns = nowNs();
    look_.next_ns = look_.marked_ns + kLookEveryNs;
    return;
  }
  const uint64_t since = now - look_.marked_ns;
  if (since < kLookNs) return;
  pollStreams(lock);
  const bool idle = pool_.streams.quiet(look_.number);
  if (!idle && since < kLookMostNs) return;
  look_.number = 0;
  // Nobody knows any more if the GPU was idle at the mark already, or only since.
  if (idle && since > kLookLateNs) return;
  DeviceWhy& why = counters().whyOf(static_cast<unsigned>(device_));
  add(why.looks);
  const uint64_t span = now - std::exchange(look_.last_ns, now);
  // A look comes when this thread has nothing better to do, which may be just when the launches
  // that waited have gone: what they waited since the last look is not the host's time.
  const uint64_t waited = valueOf(why.waited_ns);
  const uint64_t by_launches = waited - std::exchange(look_.waited_ns, waited);
  const uint64_t pages = idle ? std::min(span, by_launches) : 0;
  add(why.idle_pages_ns, pages);
  add(isAt(why, idle), span - pages);
}

/// The counter of what the GPU is at.
status::Counter& Engine::isAt(DeviceWhy& why, bool idle) const {
  if (!idle) return why.busy_ns;
  if (!wants_.empty() || leaving_->any()) return why.idle_pages_ns;
  // An executor of a unified view: operations run elsewhere, or are on their way here.
  if (pool_.away != nullptr) return why.idle_hop_ns;
  // The engine's own copies are no launches of the program.
  if (!flight_.none()) return why.idle_other_ns;
  return why.idle_host_ns;
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
  while (!life_.stop) {
    if (asked_.poll) {
      asked_.poll = false;
      pollStreams(lock);
    }
    if (chunks_.restoreBudget()) ahead_->lookAgain();
    stockEvents(lock);
    bool progress = fetching_->takeNews();
    progress |= RemoteMoves::finishRemote(pool_);
    if (direct_ != nullptr) progress |= direct_->step(lock);
    progress |= fetching_->finishFetches(lock);
    progress |= arenas_->pollStaged(lock);
    progress |= fetching_->finishLate(lock);
    progress |= fetching_->finishPacking(lock);
    progress |= eviction_->finishWrites(lock);
    if (life_.pausing) eviction_->cancelBatches();
    progress |= eviction_->advanceBatches(lock);
    if (!life_.pausing) {
      progress |= leaving_->step(lock);
      sparse_->judgeTimed(lock);
      progress |= serveReliefs(lock);
      progress |= giveSurplus(lock);
      progress |= host_->giveHostSurplus(lock);
      progress |= serveWants(lock);
      progress |= ahead_->bringArrivals(lock);
      progress |= ahead_->bringHome(lock);
      progress |= ahead_->fillFreeVram();
      progress |= ahead_->prefetch(lock);
      progress |= arenas_->swapArenas();
      progress |= arenas_->bringHot();
      progress |= arenas_->stageAhead(lock);
      progress |= remote_->prefetchRemote(lock);
      progress |= remote_->demote();
      if (!progress) progress = fetching_->makeChunkAhead(lock);
    }
    lookAtGpu(lock);
    // The mutex is not fair: a launch that has all it needs must get it too.
    const uint64_t now = nowNs();
    const bool pause = now - paused > kLongestRunNs;
    if (progress) waited_from = now;
    if (life_.stop || (progress && !pause)) continue;
    tellRoom(pool_);
    const TracedStep sleeps = step(TraceStep::kSleep);
    account(Limit::kThread);
    const Limit sleeps_for = sleepsFor();
    const bool gpu_busy = progress || !flight_.none() || isCopyingAhead() ||
                          (!fetching_->mapperIsIdle() && !pool_.stopped) || fetching_->hasNews() ||
                          !eviction_->batches().empty() || !debts_.reliefs.empty();
    if (leaving_->any() && now - waited_from < kOwedNs && !life_.broken) {
      // The CPU waits at a page. To go to sleep and be woken takes as long as it does.
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else if (gpu_busy && !life_.broken) {
      const uint64_t pause_ns =
          std::clamp((now - waited_from) / kPollShare, kShortestPollNs, kLongestPollNs);
      life_.wake.wait_for(lock, std::chrono::nanoseconds(pause_ns));
    } else {
      life_.idle = true;
      if (!wants_.empty() && !life_.broken && !eviction_->hasNoPlace()) {
        life_.wake.wait_for(lock, kWantPause);
      } else if ((!wants_.empty() || !pool_.lower.under_way.empty()) && !life_.broken) {
        life_.wake.wait_for(lock, kRemotePause);
      } else if (look_.number != 0) {
        life_.wake.wait_for(lock, kLookPause);
      } else {
        life_.wake.wait_for(lock, kIdlePause);
      }
      life_.idle = false;
      waited_from = nowNs();
    }
    account(sleeps_for);
    paused = nowNs();
  }
}

}  // namespace olpager::pager
