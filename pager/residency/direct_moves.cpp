#include "pager/residency/direct_moves.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/engine.h"
#include "pager/residency/eviction.h"
#include "pager/residency/fetches.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {
namespace {

// NOLINTNEXTLINE(performance-no-int-to-ptr): names the memory, and nobody follows it

}  // namespace

bool DirectMoves::may(const Extent& extent) const {
  const Region& region = *extent.region;
  return chunks_.direct().on() && pool_.lower.tier != nullptr && !extent.leaving &&
         region.shared() == nullptr && !region.by_pieces && !region.exporting &&
         flight_.late.empty() && nowNs() >= paused_until_ns_;
}

CUresult DirectMoves::start(Engine& engine, std::unique_ptr<DirectMoves>& into) {
  const PoolState& pool = engine.pool_;
  const std::shared_ptr<LowerTier>& lower = pool.devices.host.lower;
  if (lower == nullptr) return CUDA_SUCCESS;
  std::string why;
  if (pool.options.require_direct) {
    why = engine.chunks_.probeDirect(lower);
  } else {
    why = lower->whyNotDirect();
    if (why.empty()) why = whyNoDmaBufs(pool.driver, engine.device_);
    if (why.empty()) why = "they could go straight where that is required (--require gpudirect)";
  }
  if (why.empty()) {
    into = std::make_unique<DirectMoves>(engine);
    base::logInfo("device %d: pages go straight between VRAM and memservers", engine.device_);
    return CUDA_SUCCESS;
  }
  if (pool.options.require_direct) {
    base::logError("%s", requireDirectError(why).c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  base::logInfo("device %d: pages go between VRAM and %s by host memory: %s", engine.device_,
                lowerName(pool), why.c_str());
  return CUDA_SUCCESS;
}

DirectMoves::DirectMoves(Engine& engine)
    : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_), flight_(engine.flight_) {}

bool DirectMoves::step(Lock& lock) {
  bool progress = finishChecks(lock);
  progress |= startChecks(lock);
  progress |= takeBack(lock);
  return progress;
}

void DirectMoves::pause() { paused_until_ns_ = nowNs() + pool_.options.packing.late_pause_ns; }

// ---- down

bool DirectMoves::maySend(const Extent& extent) const {
  return extent.vram->direct && may(extent) && extent.region->wanted == 0 && !flight_.sendsHang() &&
         nowNs() >= pool_.lower.retry_ns &&
         pool_.lower.direct_sending_bytes < LowerMoves::kMostSending &&
         engine_.remote_->hostRoom() <
             std::max(RemoteMoves::reserveOf(chunks_.hostLimit()), extent.bytes());
}

// The victim is unmapped.
void DirectMoves::send(Extent& extent, const ContentHash& hash) {
  engine_.host_->giveHost(extent);
  extent.hash = hash;
  extent.hash_valid = true;
  engine_.setState(extent, ExtentState::kSending);
  pool_.lower.under_way[pool_.programs.tierAddress(extent)] = &extent;
  pool_.lower.direct_sending_bytes += extent.bytes();
  flight_.sends(extent);
  pool_.lower.tier->send(pool_.programs.tierAddress(extent), extent.vram->bytes(), extent.bytes(),
                         &extent.hash);
}

void DirectMoves::sent(Extent& extent, const LowerTier::Finished& finished) {
  pool_.lower.direct_sending_bytes -= extent.bytes();
  flight_.sent(extent);
  const bool sent = finished.outcome == LowerTier::Outcome::kDone;
  if (sent) {
    add(engine_.figures_->remote_out, extent.bytes());
    add(engine_.figures_->evictions_written);
  } else if (!pool_.lower.tier->whyNotDirect().empty()) {
    pause();  // by host memory, until cards move what they know again
  } else if (extent.region->wanted == 0 && !extent.leaving &&
             engine_.remote_->dropRemoteCopies(extent.bytes()) == 0) {
    pool_.lower.retry_ns = nowNs() + LowerMoves::kRetryNs;
  }
  if (!sent || extent.region->wanted > 0 || extent.leaving) {
    taken_back_.push_back(&extent);
    return engine_.wake();
  }
  leave(extent);
  engine_.setState(extent, ExtentState::kRemote);
}

// The chunk is free; the hash stays.
void DirectMoves::leave(Extent& extent) {
  flight_.left(extent);
  chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  engine_.ahead_->lookAgain();
}

// An extent that was not sent, or is wanted, goes to host RAM or where it was, whichever is better
// and can be had.
bool DirectMoves::takeBack(Lock& lock) {
  if (taken_back_.empty() || engine_.life_.pausing) return false;
  Extent& extent = *taken_back_.front();
  taken_back_.pop_front();
  engine_.setState(extent, ExtentState::kMoving);
  const bool wanted = extent.region->wanted > 0 && !extent.leaving;
  if (!engine_.life_.broken && (wanted ? mapBack(extent, lock) || writeDown(extent, lock)
                                       : writeDown(extent, lock) || mapBack(extent, lock)))
    return true;
  // With the context the contents are gone. Else they are at memservers, or stay where they are
  // until the driver maps them or host RAM has room.
  if (engine_.life_.broken ||
      pool_.lower.tier->holds(pool_.programs.tierAddress(extent), extent.hash)) {
    leave(extent);
    engine_.setState(extent, ExtentState::kRemote);
    return true;
  }
  engine_.setState(extent, ExtentState::kSending);
  taken_back_.push_back(&extent);
  return false;
}

bool DirectMoves::mapBack(Extent& extent, Lock& lock) {
  if (nowNs() < map_back_ns_) return false;
  if (const CUresult result = engine_.fetching_->mapVram(extent, *extent.vram, lock);
      result != CUDA_SUCCESS) {
    engine_.fetching_->refused("map", result);
    map_back_ns_ = nowNs() + Engine::kRefusalPauseNs;
    return false;
  }
  extent.hash_valid = false;
  flight_.left(extent);
  engine_.setState(extent, ExtentState::kVram);
  return true;
}

bool DirectMoves::writeDown(Extent& extent, Lock& lock) {
  const ContentHash hash = extent.hash;
  if (!engine_.host_->takeHost(extent, lock)) return false;
  engine_.eviction_->startWrite(extent, hash, lock);
  return true;
}

// ---- up

// False: by host memory, where the extent is still kRemote.
bool DirectMoves::receive(Extent& extent, Lock& lock) {
  if (!may(extent) || !chunks_.hasVram(extent.order)) return false;
  engine_.setState(extent, ExtentState::kMoving);  // the mutex may be released for a chunk
  VramChunk* const chunk = engine_.fetching_->takeVram(extent, lock);
  if (chunk == nullptr || !chunk->direct || extent.region->dead || engine_.life_.broken) {
    if (chunk != nullptr) chunks_.giveVram(chunk);
    engine_.setState(extent, ExtentState::kRemote);
    return false;
  }
  extent.vram = chunk;
  engine_.setState(extent, ExtentState::kReceiving);
  pool_.lower.under_way[pool_.programs.tierAddress(extent)] = &extent;
  add(engine_.figures_->demand_faults);
  pool_.lower.tier->receive(pool_.programs.tierAddress(extent), chunk->bytes(), extent.bytes(),
                            true);
  return true;
}

void DirectMoves::came(Extent& extent) {
  if (extent.region->dead || engine_.life_.broken)
    tellChecked(extent, false);
  else
    unchecked_.push_back(&extent);
  engine_.wake();  // another engine's thread may be here
}

void DirectMoves::tellChecked(const Extent& extent, bool right) {
  pool_.lower.tier->checked(pool_.programs.tierAddress(extent), right);
}

void DirectMoves::drop() {
  std::erase_if(unchecked_, [this](const Extent* extent) {
    if (!extent->region->dead) return false;
    tellChecked(*extent, false);
    return true;
  });
  std::erase_if(taken_back_, [this](Extent* extent) {
    if (!extent->region->dead) return false;
    leave(*extent);
    engine_.setState(*extent, ExtentState::kRemote);
    return true;
  });
}

bool DirectMoves::startChecks(Lock& lock) {
  bool progress = false;
  while (!unchecked_.empty() && !engine_.life_.pausing) {
    Extent& extent = *unchecked_.front();
    const int slot = engine_.life_.broken ? -1 : engine_.kernels_.takeHashSlot();
    // One comes free with what is fetched, but for those whose kernels have not begun: the GPU is
    // held, perhaps by a kernel that waits for this.
    if (slot < 0 && !engine_.life_.broken && flight_.late.empty()) return progress;
    unchecked_.pop_front();
    progress = true;
    CUevent event = nullptr;
    CUresult result = CUDA_ERROR_UNKNOWN;
    bool launched = false;
    if (slot >= 0) {
      event = engine_.takeEvent(lock);
      result = engine_.outside(TraceStep::kPass, &extent, lock, [&] {
        CUresult recorded = chunks_.direct().flush();
        if (recorded == CUDA_SUCCESS)
          recorded = pool_.driver.cuEventRecord(event, engine_.streams_.in);
        if (recorded == CUDA_SUCCESS) launched = engine_.kernels_.launchHash(extent, event, slot);
        return recorded;
      });
    }
    if (launched) {
      flight_.checking.push_back({&extent, event, slot, false, false, nowNs()});
      continue;
    }
    if (event != nullptr) engine_.events_.push_back(event);
    // A slot whose kernel may have been launched is not used again.
    if (slot >= 0 && result != CUDA_SUCCESS) engine_.kernels_.giveHashSlot(slot);
    if (slot >= 0 && endsContext(result)) engine_.lost(result);
    pause();
    tellChecked(extent, false);
  }
  return progress;
}

bool DirectMoves::finishChecks(Lock& lock) {
  if (flight_.checking.empty()) return false;
  const Engine::Copy copy = flight_.checking.front();
  Extent& extent = *copy.extent;
  const bool done = engine_.reached(copy.event, lock);
  if (!done && nowNs() - copy.since_ns < Engine::kLateNs) return false;
  flight_.checking.pop_front();
  if (!done) {
    // A kernel of the program's holds the GPU, and may wait for this. By host memory a processor
    // checks.
    pause();
    flight_.late.push_back({extent.vram, nullptr, copy.event, copy.hash});
    extent.vram = nullptr;
    tellChecked(extent, false);
    return true;
  }
  engine_.events_.push_back(copy.event);
  const ContentHash hash = engine_.kernels_.takeHash(extent, copy.hash);
  const bool right = !engine_.life_.broken && hash == extent.hash;
  // The CPU gets the bytes by host memory, and finds out whether the memserver or the way to VRAM
  // is at fault: else a machine whose cards can't write VRAM would lose all that it sent.
  if (!right && !engine_.life_.broken) {
    base::warnOnce("wrong bytes in VRAM",
                   "device %d: %llu MiB that a network card has written to VRAM are not what they "
                   "were; pages go by host memory for a while",
                   engine_.device_, static_cast<unsigned long long>(extent.bytes() >> 20));
    pause();
  }
  tellChecked(extent, right);
  return true;
}

bool DirectMoves::keep(Extent& extent) {
  if (engine_.life_.broken || extent.region->dead ||
      pool_.lower.tier->holds(pool_.programs.tierAddress(extent), extent.hash))
    return false;
  engine_.ahead_->noteUsed(extent, false);
  flight_.leaves(extent);
  engine_.setState(extent, ExtentState::kSending);
  taken_back_.push_back(&extent);
  engine_.wake();
  return true;
}

void DirectMoves::received(Extent& extent, const LowerTier::Finished& finished) {
  if (finished.outcome == LowerTier::Outcome::kDone) {
    add(engine_.figures_->remote_in, extent.bytes());
    engine_.setState(extent, ExtentState::kFetching);
    engine_.fetching_->handToMapper(extent);
    return;
  }
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  if (finished.outcome == LowerTier::Outcome::kNotNow) {
    extent.hash = finished.hash;
    extent.hash_valid = true;
    // By host memory, until cards move what they know again.
    if (!extent.region->dead && !pool_.lower.tier->whyNotDirect().empty()) pause();
    engine_.setState(extent, ExtentState::kRemote);
  } else {
    engine_.setState(extent, ExtentState::kLost);
  }
}

}  // namespace olpager::pager
