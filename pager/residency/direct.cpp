// Extents between VRAM and memservers with no host memory between, where cards know VRAM chunks
// (direct_memory.h). Under PoolState::mutex; the states are those of moves by host memory, with a
// VRAM chunk in the place of the host chunk:
//
//   down  kRetiring, unmapped -> kSending -> kRemote, the VRAM chunk is free. For victims that
//         changed while host RAM is as full as it is to be: else demote() would send another one.
//         Not sent, or wanted meanwhile: takenBack -> written to host RAM, or mapped again.
//   up    kRemote -> kReceiving, into a VRAM chunk that is mapped nowhere -> unchecked -> checking
//         (the GPU hashes it) -> kFetching (the mapper's) -> kVram. For a launch that waits.
//         Not mapped: kRemote, or takenBack where no memserver has it any more.
//
// What comes ahead of need comes to host RAM: VRAM has no room to spare for it.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/engine.h"

namespace olpager::pager {
namespace {

// NOLINTNEXTLINE(performance-no-int-to-ptr): names the memory, and nobody follows it
void* nameOf(const VramChunk& chunk) { return reinterpret_cast<void*>(chunk.alias); }

}  // namespace

bool Engine::mayGoDirect(const Extent& extent) const {
  const Region& region = *extent.region;
  return chunks_.direct().on() && pool_.lower.tier != nullptr && !extent.leaving &&
         region.shared() == nullptr && !region.by_pieces && !region.exporting &&
         flight_.late.empty() && nowNs() >= pauses_.direct_until_ns;
}

// Before threads, in the current context.
CUresult Engine::startDirect() {
  const std::shared_ptr<LowerTier>& lower = pool_.devices.host.lower;
  if (lower == nullptr) return CUDA_SUCCESS;
  std::string why;
  if (pool_.options.require_direct) {
    why = chunks_.probeDirect(lower);
  } else {
    why = lower->whyNotDirect();
    if (why.empty()) why = whyNoDmaBufs(pool_.driver, device_);
    if (why.empty()) why = "they could go straight where that is required (--require gpudirect)";
  }
  if (why.empty()) {
    base::logInfo("device %d: pages go straight between VRAM and memservers", device_);
    return CUDA_SUCCESS;
  }
  if (pool_.options.require_direct) {
    base::logError("%s", requireDirectError(why).c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  base::logInfo("device %d: pages go between VRAM and memservers by host memory: %s", device_,
                why.c_str());
  return CUDA_SUCCESS;
}

void Engine::pauseDirect() {
  pauses_.direct_until_ns = nowNs() + pool_.options.packing.late_pause_ns;
}

// ---- down

bool Engine::maySendDirect(const Extent& extent) const {
  return extent.vram->direct && mayGoDirect(extent) && extent.region->wanted == 0 &&
         !flight_.sendsHang() && nowNs() >= pool_.lower.retry_ns &&
         pool_.lower.direct_sending_bytes < LowerMoves::kMostSending &&
         hostRoom() < std::max(reserveOf(chunks_.hostLimit()), extent.bytes());
}

// The victim is unmapped.
void Engine::sendDirect(Extent& extent, const ContentHash& hash) {
  giveHost(extent);
  extent.hash = hash;
  extent.hash_valid = true;
  setState(extent, ExtentState::kSending);
  pool_.lower.under_way[pool_.programs.tierAddress(extent)] = &extent;
  pool_.lower.direct_sending_bytes += extent.bytes();
  flight_.sends(extent);
  pool_.lower.tier->send(pool_.programs.tierAddress(extent), nameOf(*extent.vram), extent.bytes(),
                         &extent.hash);
}

void Engine::finishSendDirect(Extent& extent, const LowerTier::Finished& finished) {
  pool_.lower.direct_sending_bytes -= extent.bytes();
  flight_.sent(extent);
  const bool sent = finished.outcome == LowerTier::Outcome::kDone;
  if (sent) {
    add(figures_->remote_out, extent.bytes());
    add(figures_->evictions_written);
  } else if (!pool_.lower.tier->whyNotDirect().empty()) {
    pauseDirect();  // by host memory, until cards move what they know again
  } else if (extent.region->wanted == 0 && !extent.leaving &&
             dropRemoteCopies(extent.bytes()) == 0) {
    pool_.lower.retry_ns = nowNs() + LowerMoves::kRetryNs;
  }
  if (!sent || extent.region->wanted > 0 || extent.leaving) {
    flight_.taken_back.push_back(&extent);
    return wake();
  }
  leaveDirect(extent);
  setState(extent, ExtentState::kRemote);
}

// The chunk is free; the hash stays.
void Engine::leaveDirect(Extent& extent) {
  flight_.left(extent);
  chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  prefetch_.again = true;
}

// What was not sent, or is wanted: to host RAM or where it was, whichever is better and can be had.
bool Engine::takeBack(Lock& lock) {
  if (flight_.taken_back.empty() || life_.pausing) return false;
  Extent& extent = *flight_.taken_back.front();
  flight_.taken_back.pop_front();
  setState(extent, ExtentState::kMoving);
  const bool wanted = extent.region->wanted > 0 && !extent.leaving;
  if (!life_.broken && (wanted ? mapBack(extent, lock) || writeDown(extent, lock)
                               : writeDown(extent, lock) || mapBack(extent, lock)))
    return true;
  // With the context the contents are gone. Else they are at memservers, or stay where they are
  // until the driver maps them or host RAM has room.
  if (life_.broken || pool_.lower.tier->holds(pool_.programs.tierAddress(extent), extent.hash)) {
    leaveDirect(extent);
    setState(extent, ExtentState::kRemote);
    return true;
  }
  setState(extent, ExtentState::kSending);
  flight_.taken_back.push_back(&extent);
  return false;
}

bool Engine::mapBack(Extent& extent, Lock& lock) {
  if (nowNs() < pauses_.taken_back_ns) return false;
  if (const CUresult result = mapVram(extent, *extent.vram, lock); result != CUDA_SUCCESS) {
    refused("map", result);
    pauses_.taken_back_ns = nowNs() + kRefusalPauseNs;
    return false;
  }
  extent.hash_valid = false;
  flight_.left(extent);
  setState(extent, ExtentState::kVram);
  return true;
}

bool Engine::writeDown(Extent& extent, Lock& lock) {
  const ContentHash hash = extent.hash;
  if (!takeHost(extent, lock)) return false;
  startWrite(extent, hash, lock);
  return true;
}

// ---- up

// False: by host memory, where the extent is still kRemote.
bool Engine::receiveDirect(Extent& extent, Lock& lock) {
  if (!mayGoDirect(extent) || !chunks_.hasVram(extent.order)) return false;
  setState(extent, ExtentState::kMoving);  // the mutex may be released for a chunk
  VramChunk* const chunk = takeVram(extent, lock);
  if (chunk == nullptr || !chunk->direct || extent.region->dead || life_.broken) {
    if (chunk != nullptr) chunks_.giveVram(chunk);
    setState(extent, ExtentState::kRemote);
    return false;
  }
  extent.vram = chunk;
  setState(extent, ExtentState::kReceiving);
  pool_.lower.under_way[pool_.programs.tierAddress(extent)] = &extent;
  add(figures_->demand_faults);
  pool_.lower.tier->receive(pool_.programs.tierAddress(extent), nameOf(*chunk), extent.bytes(),
                            true);
  return true;
}

// The bytes are in the chunk, whatever they are. The extent stays on its way: the tier says again
// that it is over, when it has been told what these are.
void Engine::cameDirect(Extent& extent) {
  if (extent.region->dead || life_.broken)
    tellChecked(extent, false);
  else
    flight_.unchecked.push_back(&extent);
  wake();  // another engine's thread may be here
}

void Engine::tellChecked(const Extent& extent, bool right) {
  pool_.lower.tier->checked(pool_.programs.tierAddress(extent), right);
}

// Of regions that are freed, in whatever thread: none of the engine's may be left.
void Engine::dropDirect() {
  std::erase_if(flight_.unchecked, [this](const Extent* extent) {
    if (!extent->region->dead) return false;
    tellChecked(*extent, false);
    return true;
  });
  std::erase_if(flight_.taken_back, [this](Extent* extent) {
    if (!extent->region->dead) return false;
    leaveDirect(*extent);
    setState(*extent, ExtentState::kRemote);
    return true;
  });
}

bool Engine::startChecks(Lock& lock) {
  bool progress = false;
  while (!flight_.unchecked.empty() && !life_.pausing) {
    Extent& extent = *flight_.unchecked.front();
    const int slot = life_.broken ? -1 : kernels_.takeHashSlot();
    // One comes free with what is fetched, but for those whose kernels have not begun: the GPU is
    // held, perhaps by a kernel that waits for this.
    if (slot < 0 && !life_.broken && flight_.late.empty()) return progress;
    flight_.unchecked.pop_front();
    progress = true;
    CUevent event = nullptr;
    CUresult result = CUDA_ERROR_UNKNOWN;
    bool launched = false;
    if (slot >= 0) {
      event = takeEvent(lock);
      result = outside(TraceStep::kPass, &extent, lock, [&] {
        CUresult recorded = chunks_.direct().flush();
        if (recorded == CUDA_SUCCESS) recorded = pool_.driver.cuEventRecord(event, streams_.in);
        if (recorded == CUDA_SUCCESS) launched = kernels_.launchHash(extent, event, slot);
        return recorded;
      });
    }
    if (launched) {
      flight_.checking.push_back({&extent, event, slot, false, false, nowNs()});
      continue;
    }
    if (event != nullptr) events_.push_back(event);
    // Where the kernel may have been launched the slot is not used again.
    if (slot >= 0 && result != CUDA_SUCCESS) kernels_.giveHashSlot(slot);
    if (slot >= 0 && endsContext(result)) lost(result);
    pauseDirect();
    tellChecked(extent, false);
  }
  return progress;
}

bool Engine::finishChecks(Lock& lock) {
  if (flight_.checking.empty()) return false;
  const Copy copy = flight_.checking.front();
  Extent& extent = *copy.extent;
  const bool done = reached(copy.event, lock);
  if (!done && nowNs() - copy.since_ns < kLateNs) return false;
  flight_.checking.pop_front();
  if (!done) {
    // A kernel of the program's holds the GPU, and may wait for this. By host memory a processor
    // checks.
    pauseDirect();
    flight_.late.push_back({extent.vram, nullptr, copy.event, copy.hash});
    extent.vram = nullptr;
    tellChecked(extent, false);
    return true;
  }
  events_.push_back(copy.event);
  const ContentHash hash = kernels_.takeHash(extent, copy.hash);
  const bool right = !life_.broken && hash == extent.hash;
  // Whether the memserver's bytes or the way to VRAM are at fault, the CPU finds out, which gets
  // them by host memory: else a machine whose cards can't write VRAM would lose all that it sent.
  if (!right && !life_.broken) {
    base::warnOnce("wrong bytes in VRAM",
                   "device %d: %llu MiB that a network card has written to VRAM are not what they "
                   "were; pages go by host memory for a while",
                   device_, static_cast<unsigned long long>(extent.bytes() >> 20));
    pauseDirect();
  }
  tellChecked(extent, right);
  return true;
}

// What has come straight and could not be mapped. It is at memservers still: false. But those that
// had it may be lost since: then nobody else has it, and it is taken back.
bool Engine::keepDirect(Extent& extent) {
  if (life_.broken || extent.region->dead ||
      pool_.lower.tier->holds(pool_.programs.tierAddress(extent), extent.hash))
    return false;
  noteUsed(extent, false);
  flight_.leaves(extent);
  setState(extent, ExtentState::kSending);
  flight_.taken_back.push_back(&extent);
  wake();
  return true;
}

void Engine::finishReceiveDirect(Extent& extent, const LowerTier::Finished& finished) {
  if (finished.outcome == LowerTier::Outcome::kDone) {
    add(figures_->remote_in, extent.bytes());
    setState(extent, ExtentState::kFetching);
    mapper_.arrivals.push_back(&extent);
    mapper_.wake.notify_one();
    return;
  }
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  if (finished.outcome == LowerTier::Outcome::kNotNow) {
    extent.hash = finished.hash;
    extent.hash_valid = true;
    // By host memory, until cards move what they know again.
    if (!extent.region->dead && !pool_.lower.tier->whyNotDirect().empty()) pauseDirect();
    setState(extent, ExtentState::kRemote);
  } else {
    setState(extent, ExtentState::kLost);
  }
}

}  // namespace olpager::pager
