#include "pager/residency/fetches.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/managed/managed.h"
#include "pager/pool_state.h"
#include "pager/residency/direct_moves.h"
#include "pager/residency/give_away.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/in_place.h"
#include "pager/residency/prefetcher.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kRefusalBytes = 16ull << 20;  // of free chunks that the driver then gets back
}  // namespace

void Fetching::refused(const char* what, CUresult result) {
  if (endsContext(result)) return engine_.lost(result);
  engine_.pauses_.refused_until_ns = nowNs() + Engine::kRefusalPauseNs;
  ++engine_.pauses_.refusals;
  base::warnOnce(
      "fetch refused",
      "device %d: the driver refused to %s memory in VRAM (CUDA error %d); until it can, launches "
      "use host memory in place",
      engine_.device_, what, static_cast<int>(result));
}

std::span<const CUdevice> Fetching::sharersOf(const Extent& extent) const {
  if (extent.region->managed == nullptr) return {};
  return pool_.managed->devices();
}

/// Maps a chunk where its extent is. Short of memory, the driver gets free chunks back before the
/// second try.
CUresult Fetching::mapVram(const Extent& extent, const VramChunk& chunk, Lock& lock) {
  CUresult result = CUDA_SUCCESS;
  const bool read_only = extent.read_only;
  for (int tries = 0; tries < 2; ++tries) {
    result = engine_.outside(TraceStep::kMap, &extent, lock, [&] {
      return chunks_.mapAt(extent.address, extent.bytes(), chunk.handle, read_only,
                           sharersOf(extent));
    });
    if (result == CUDA_SUCCESS) engine_.pauses_.refusals = 0;
    if (result == CUDA_SUCCESS || endsContext(result) ||
        chunks_.releaseFreeVram(kRefusalBytes, lock) == 0)
      break;
  }
  return result;
}

CUresult Fetching::mapNew(Region& region, Lock& lock) {
  for (auto& extent : region.extents) engine_.host_->lacksChunk(*extent);
  engine_.host_->wakeMaker();
  for (auto& extent : region.extents)
    if (!mapEmpty(*extent, lock)) break;
  return CUDA_SUCCESS;
}

/// Memory that is being exported comes back into chunks of its own.
VramChunk* Fetching::takeVram(const Extent& extent, Lock& lock) {
  const TracedStep traced = engine_.step(TraceStep::kTake, &extent);
  const Region& region = *extent.region;
  engine_.account(Limit::kThread);
  VramChunk* const chunk = region.exporting
                               ? chunks_.makeExported(extent.order, region.exports_lent, lock)
                               : chunks_.takeVram(extent.order, lock);
  engine_.account(Limit::kMapping);
  return chunk;
}

bool Fetching::mapEmpty(Extent& extent, Lock& lock) {
  if (extent.state != ExtentState::kEmpty) return false;
  engine_.setState(extent, ExtentState::kMapping);
  VramChunk* chunk = takeVram(extent, lock);
  if (chunk == nullptr) {
    engine_.setState(extent, ExtentState::kEmpty);
    return false;
  }
  if (const CUresult result = mapVram(extent, *chunk, lock); result != CUDA_SUCCESS) {
    if (endsContext(result)) engine_.lost(result);
    chunks_.giveVram(chunk);
    engine_.setState(extent, ExtentState::kEmpty);
    return false;
  }
  extent.vram = chunk;
  engine_.setState(extent, ExtentState::kVram);
  return true;
}

bool Fetching::startFetch(Extent& extent, Engine::Fetch why, Lock& lock) {
  if (extent.state != ExtentState::kParked || extent.leaving || engine_.life_.broken ||
      nowNs() < engine_.pauses_.refused_until_ns)
    return false;
  engine_.setState(extent, ExtentState::kFetching);
  // The chunk that the page left behind when the CPU got the page, if the CPU has only read it.
  ManagedRegion* const managed = extent.region->managed.get();
  VramChunk* chunk = managed != nullptr ? chunks_.takeKept(managed->pageOf(extent).copy) : nullptr;
  const bool kept = chunk != nullptr;
  if (!kept) chunk = takeVram(extent, lock);
  if (chunk == nullptr) {
    engine_.setState(extent, ExtentState::kParked);
    return false;
  }
  extent.vram = chunk;
  const CUevent event = engine_.takeEvent(lock);
  const HostChunk* image =
      engine_.flight_.late.empty() && packed_.isReady(extent) ? &packed_.imageOf(extent) : nullptr;
  const bool hashed = image != nullptr ? !packed_.isChecked(extent)
                                       : extent.region->by_pieces && !extent.hash_valid;
  const int slot = hashed ? engine_.kernels_.takeHashSlot() : -1;
  if (hashed && slot < 0) image = nullptr;
  bool copying = false;
  int hash = slot;
  engine_.account_.copyBegins(engine_.flight_.fetching.empty());
  const CUresult result = engine_.outside(TraceStep::kCopyIn, &extent, lock, [&] {
    const DriverApi& driver = pool_.driver;
    CUresult queued = CUDA_SUCCESS;
    if (image != nullptr) {
      queued = packed_.fetch(extent, *image, chunk->alias, event, copying);
      if (queued != CUDA_SUCCESS && !copying && !endsContext(queued)) image = nullptr;
    }
    if (image == nullptr) {
      if (kept)
        queued = CUDA_SUCCESS;
      else if (extent.blank)
        queued = driver.cuMemsetD8Async(chunk->alias, 0, extent.bytes(), engine_.streams_.in);
      else
        queued = driver.cuMemcpyHtoDAsync_v2(chunk->alias,
                                             reinterpret_cast<const void*>(extent.host->alias),
                                             extent.bytes(), engine_.streams_.in);
      copying = queued == CUDA_SUCCESS;
      if (copying) queued = driver.cuEventRecord(event, engine_.streams_.in);
    }
    // Not hashed, it will be written down, or compared the next time. The kernel may have been
    // launched: the slot is not used again.
    if (slot >= 0 && queued == CUDA_SUCCESS && !engine_.kernels_.launchHash(extent, event, slot))
      hash = -1;
    return queued;
  });
  const bool unchecked = image != nullptr && hashed && hash < 0;
  if (result != CUDA_SUCCESS) {
    copying ? engine_.lost(result)
            : refused("copy", result);  // nobody would know when the chunk is free again
    engine_.events_.push_back(event);
    if (hash >= 0) engine_.kernels_.giveHashSlot(hash);
    chunks_.giveVram(chunk);
    extent.vram = nullptr;
    engine_.setState(extent, ExtentState::kParked);
    return false;
  }
  // Nothing crosses the bus for what VRAM had still: it has begun at no time.
  engine_.flight_.fetching.push_back(
      {&extent, event, hash, image != nullptr, unchecked, kept ? 0 : nowNs()});
  engine_.flight_.fetching_bytes += extent.bytes();
  if (kept) {
    add(engine_.figures_->kept_bytes, extent.bytes());
  } else {
    if (!extent.blank)
      add(engine_.figures_->bytes_in,
          image != nullptr ? PackedImages::bytesOf(extent) : extent.bytes());
    add(engine_.figures_->fetched_bytes, extent.bytes());
  }
  if (why == Engine::Fetch::kAhead) {
    engine_.ahead_->broughtAhead(extent);
  } else if (why == Engine::Fetch::kDemand) {
    add(engine_.figures_->demand_faults);
  }
  return true;
}

bool Fetching::finishFetches(Lock& lock) {
  if (!mapper.joinable())
    while (!arrivals_.empty()) mapArrivals(lock);
  if (engine_.flight_.fetching.empty()) {
    if (engine_.flight_.late.empty() && engine_.flight_.packing.empty())
      packed_.trimSlots(engine_.unallocated());
    return false;
  }
  std::array<Engine::Copy, Engine::kMostAtOnce> copies;
  size_t count = 0;
  const auto take = [&] {
    copies[count] = engine_.flight_.fetching.front();
    engine_.flight_.fetching.pop_front();
    engine_.flight_.fetching_bytes -= copies[count++].extent->bytes();
  };
  const Engine::Copy& first = engine_.flight_.fetching.front();
  if (!engine_.reached(first.event, lock)) {
    engine_.account_.noCopyEnded();
    if (!first.packed || nowNs() - first.since_ns < Engine::kLateNs) return false;
    take();
    makeLate(*copies[0].extent, copies[0]);
    parkAgain(*copies[0].extent);
    return true;
  }
  take();
  while (count < copies.size() && !engine_.flight_.fetching.empty() &&
         isNext(*copies[count - 1].extent, *engine_.flight_.fetching.front().extent) &&
         engine_.reached(engine_.flight_.fetching.front().event, lock))
    take();
  for (const Engine::Copy& copy : std::span(copies).first(count)) {
    engine_.events_.push_back(copy.event);
    const Extent& extent = *copy.extent;
    const bool crossed = copy.since_ns != 0 && !extent.blank;
    engine_.account_.copyEnds(!crossed      ? 0
                              : copy.packed ? PackedImages::bytesOf(extent)
                                            : extent.bytes());
    if (isAsExpected(copy))
      arrivals_.push_back(copy.extent);
    else
      arrived(*copy.extent, false);
  }
  if (engine_.flight_.fetching.empty()) engine_.account_.noCopyEnded();
  if (mapper.joinable())
    wake_.notify_one();
  else
    while (!arrivals_.empty()) mapArrivals(lock);
  return true;
}

// A thread of its own maps what has come. While copies are under way the driver takes for that
// about as long as they do, and whoever asks waits: the engine's thread has other things to do.
void Fetching::runMapper() {
  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  pool_.driver.cuThreadExchangeStreamCaptureMode(&relaxed);
  pool_.driver.cuCtxPushCurrent_v2(engine_.context_);
  Lock lock(pool_.mutex);
  while (!engine_.life_.stop) {
    if (arrivals_.empty())
      wake_.wait(lock);
    else
      mapArrivals(lock);
  }
}

// Maps the first that have come, as far as they are neighbours.
void Fetching::mapArrivals(Lock& lock) {
  std::array<Extent*, Engine::kMostAtOnce> extents;
  size_t count = 0;
  auto& arrivals = arrivals_;
  while (count < extents.size() && !arrivals.empty() &&
         (count == 0 || isNext(*extents[count - 1], *arrivals.front()))) {
    extents[count++] = arrivals.front();
    arrivals.pop_front();
  }
  busy_ = true;
  if (count == 1 || !mapTogether({extents.data(), count}, lock)) {
    for (Extent* const extent : std::span(extents).first(count)) {
      // Nobody uses it any more.
      if (engine_.life_.broken || extent->region->dead) {
        arrived(*extent, false);
        continue;
      }
      const CUresult result = mapVram(*extent, *extent->vram, lock);
      if (result == CUDA_SUCCESS) {
        arrivedMapped(*extent, lock);
        continue;
      }
      if (!engine_.life_.broken) refused("map", result);
      arrived(*extent, false);
    }
  }
  busy_ = false;
  news_ = true;
  if (engine_.life_.idle || engine_.life_.pausing) engine_.wake();
}

// Neighbours are mapped one by one and given to the device together. The device takes small ones
// together in the time of one. False: nothing is mapped.
bool Fetching::mapTogether(std::span<Extent* const> extents, Lock& lock) {
  if (engine_.life_.broken) return false;
  const DriverApi& driver = pool_.driver;
  const Extent& first = *extents.front();
  const Extent& last = *extents.back();
  const uint64_t bytes = last.address + last.bytes() - first.address;
  // The value as of now holds for all of them. A thread that changes it for one extent meanwhile
  // waits until that one is mapped, and changes it then.
  const bool read_only = first.read_only;
  const CUresult result = engine_.outside(TraceStep::kMap, &first, lock, [&] {
    size_t mapped = 0;
    CUresult done = CUDA_SUCCESS;
    for (const Extent* const extent : extents) {
      done = driver.cuMemMap(extent->address, extent->bytes(), 0, extent->vram->handle, 0);
      if (done != CUDA_SUCCESS) break;
      ++mapped;
    }
    if (done == CUDA_SUCCESS)
      done = chunks_.protectAt(first.address, bytes, read_only, sharersOf(first));
    if (done != CUDA_SUCCESS)
      for (const Extent* const extent : extents.first(mapped))
        chunks_.unmapAt(extent->address, extent->bytes());
    return done;
  });
  if (result != CUDA_SUCCESS) return false;
  engine_.pauses_.refusals = 0;
  for (Extent* const extent : extents) arrivedMapped(*extent, lock);
  return true;
}

// A context that was lost meanwhile has no use for it: a chunk that is free is not mapped.
void Fetching::arrivedMapped(Extent& extent, Lock& lock) {
  const bool usable = !engine_.life_.broken;
  if (!usable)
    (void)engine_.outside(TraceStep::kUnmap, &extent, lock,
                          [&] { return chunks_.unmapAt(extent.address, extent.bytes()); });
  arrived(extent, usable);
}

// A fetched extent is used from its chunk from now on, or is parked as before.
void Fetching::arrived(Extent& extent, bool usable) {
  if (usable) {
    if (ManagedRegion* const managed = extent.region->managed.get(); managed != nullptr) {
      // A number of its own: whatever may use the page has a higher one.
      managed->pageOf(extent).came =
          extent.blank ? std::nullopt : std::optional(pool_.launch_number.fetch_add(1) + 1);
    }
    extent.blank = false;
    if (extent.host == nullptr) extent.hash_valid = false;  // it came from memservers
    return engine_.setState(extent, ExtentState::kVram);
  }
  if (extent.host == nullptr && engine_.direct_ != nullptr && engine_.direct_->keep(extent)) return;
  chunks_.giveVram(extent.vram);
  engine_.ahead_->lookAgain();
  parkAgain(extent);
}

void Fetching::parkAgain(Extent& extent) {
  engine_.ahead_->noteUsed(extent, false);
  extent.vram = nullptr;
  engine_.setState(extent, extent.host != nullptr ? ExtentState::kParked : ExtentState::kRemote);
}

// Bytes that came are hashed if that was asked for. False: they are not what they should be.
bool Fetching::isAsExpected(const Engine::Copy& copy) {
  Extent& extent = *copy.extent;
  bool good = !copy.unchecked || engine_.life_.broken;
  if (copy.hash < 0) return good;
  const ContentHash hash = engine_.kernels_.takeHash(extent, copy.hash);
  if (copy.packed) {
    good = engine_.life_.broken || hash == extent.hash;
    packed_.checked(extent, good);
    if (!good)
      base::logError(
          "device %d: what was unpacked is not what was packed; 0x%llx is fetched as it is from "
          "now on",
          engine_.device_, static_cast<unsigned long long>(extent.address));
  } else {
    extent.hash = hash;
    extent.hash_valid = extent.host_valid;
  }
  return good;
}

bool Fetching::finishLate(Lock& lock) {
  if (engine_.flight_.late.empty() || !engine_.reached(engine_.flight_.late.front().event, lock))
    return false;
  const Engine::Late late = engine_.flight_.late.front();
  engine_.flight_.late.pop_front();
  engine_.events_.push_back(late.event);
  if (late.hash >= 0) engine_.kernels_.giveHashSlot(late.hash);
  chunks_.giveVram(late.chunk);
  if (late.image != nullptr) chunks_.giveHost(late.image);
  return true;
}

bool Fetching::mapInPlace(Extent& extent, Lock& lock) {
  if (!mayBeInPlace(extent) || extent.leaving || engine_.life_.broken) return false;
  if (extent.state != ExtentState::kParked && extent.state != ExtentState::kEmpty) return false;
  const ExtentState before = extent.state;
  engine_.setState(extent, ExtentState::kMoving);
  if (extent.region->managed != nullptr ? !engine_.leaving_->toMappableChunk(extent, lock)
                                        : !engine_.host_->takeHost(extent, lock)) {
    engine_.setState(extent, before);
    return false;
  }
  const CUresult result = engine_.outside(TraceStep::kMap, &extent, lock, [&] {
    return chunks_.mapAt(extent.address, extent.bytes(), extent.host->handle, extent.read_only,
                         sharersOf(extent));
  });
  if (result != CUDA_SUCCESS) {
    engine_.setState(extent, before);
    return false;
  }
  extent.host_valid = true;
  extent.blank = false;
  extent.hash_valid = false;  // the GPU may write it where it is
  engine_.setState(extent, ExtentState::kInPlace);
  return true;
}

void Fetching::expectPages(uint64_t pages) {
  engine_.flight_.expected_pages += pages;
  engine_.wake();
}

void Fetching::expectNot(uint64_t pages) {
  engine_.flight_.expected_pages -= std::min(engine_.flight_.expected_pages, pages);
}

// Only where VRAM is to spare for others, too: they need some in which nothing is made.
bool Fetching::makeChunkAhead(Lock& lock) {
  if (engine_.flight_.expected_pages == 0 || engine_.life_.broken || !engine_.wants_.empty() ||
      engine_.debts_.any() || engine_.flight_.freesSoon() > 0)
    return false;
  const uint64_t most = std::min(Engine::kMostAheadBytes, chunks_.vramBudget() / 4);
  if (chunks_.vramMade() - chunks_.vramInUse() - chunks_.keptBytes() + kPageBytes > most)
    return false;
  --engine_.flight_.expected_pages;
  if (chunks_.makeVramAhead(0, lock)) return true;
  engine_.flight_.expected_pages = 0;
  return false;
}

void Fetching::handToMapper(Extent& extent) {
  arrivals_.push_back(&extent);
  wake_.notify_one();
}

}  // namespace olpager::pager
