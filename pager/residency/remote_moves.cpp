#include "pager/residency/remote_moves.h"

#include <algorithm>
#include <utility>

#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/direct_moves.h"
#include "pager/residency/eviction.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/prefetcher.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kMostReserve = 1ull << 30;  // host RAM kept free for what comes in, at most
constexpr uint64_t kNoHostNs =
    2'000'000;                   // after a receive found no host chunk, unless one was given back
constexpr size_t kLooks = 4096;  // extents
constexpr unsigned kUpcoming = 1024;  // touches
}  // namespace

uint64_t RemoteMoves::reserveOf(uint64_t limit) { return std::min(kMostReserve, limit / 8); }

// Of the host tier, what no device uses.
uint64_t RemoteMoves::hostRoom() const {
  return chunks_.hostLimit() - std::min(chunks_.hostLimit(), chunks_.hostInUseOfAll());
}

// As the extent is in host RAM.
bool RemoteMoves::remoteHolds(const Extent& extent) const {
  return extent.hash_valid &&
         pool_.lower.tier->holds(pool_.programs.tierAddress(extent), extent.hash);
}

// The host chunk goes; `hash` is what memservers hold.
void RemoteMoves::leaveHost(Extent& extent, const ContentHash& hash) {
  engine_.host_->giveHost(extent);
  extent.hash = hash;
  extent.hash_valid = true;
  engine_.setState(extent, ExtentState::kRemote);
}

bool RemoteMoves::finishRemote(PoolState& pool) {
  LowerMoves& lower = pool.lower;
  if (lower.tier == nullptr) return false;
  for (const auto& engine : pool.devices.engines)
    if (engine->direct_ != nullptr) engine->direct_->drop();
  if (lower.under_way.empty()) return false;
  const std::vector<LowerTier::Finished> finished = lower.tier->take();
  for (const LowerTier::Finished& one : finished) {
    const auto found = lower.under_way.find(one.address);
    if (found == lower.under_way.end()) continue;  // nobody began it
    Extent& extent = *found->second;               // in a transitional state: nobody frees it
    Engine& engine = *extent.region->engine;
    if (one.outcome == LowerTier::Outcome::kUnchecked) {
      engine.direct_->came(extent);
      continue;
    }
    lower.under_way.erase(found);
    one.sent ? engine.remote().finishSend(extent, one) : engine.remote().finishReceive(extent, one);
  }
  return !finished.empty();
}

void RemoteMoves::finishSend(Extent& extent, const LowerTier::Finished& finished) {
  if (extent.vram != nullptr) return engine_.direct_->sent(extent, finished);
  pool_.lower.sending_bytes -= extent.bytes();
  if (finished.outcome != LowerTier::Outcome::kDone) {
    engine_.setState(extent, ExtentState::kParked);
    // Where a launch came for it, or its region was freed, it may have been given up.
    if (extent.region->wanted == 0 && !extent.leaving && !extent.region->dead &&
        dropRemoteCopies(extent.bytes()) == 0)
      pool_.lower.retry_ns = nowNs() + LowerMoves::kRetryNs;
    return;
  }
  add(engine_.figures_->remote_out, extent.bytes());
  extent.hash = finished.hash;
  extent.hash_valid = true;
  // A launch came for it meanwhile, or another executor.
  if (extent.region->wanted > 0 || extent.leaving)
    return engine_.setState(extent, ExtentState::kParked);
  leaveHost(extent, finished.hash);
}

// Memservers are full: their copies of what is here or at other executors, of any engine, are a
// convenience only. Outdated ones go first. What is parked as it is there keeps its copy: it can
// leave host RAM at once. Returns the bytes.
uint64_t RemoteMoves::dropRemoteCopies(uint64_t bytes) {
  uint64_t dropped = 0;
  std::vector<std::pair<uint64_t, Extent*>> held;  // by the address that the tier knows
  for (const uint64_t at : pool_.lower.tier->heldAddresses())
    if (Extent* const extent = pool_.book.extentAt(pool_.programs.addressOf(at)); extent != nullptr)
      held.emplace_back(at, extent);
  for (const ExtentState where :
       {ExtentState::kAbsent, ExtentState::kParked, ExtentState::kInPlace, ExtentState::kVram}) {
    for (const auto& [at, extent] : held) {
      if (dropped >= bytes) return dropped;
      if (extent->state != where) continue;
      if (where == ExtentState::kParked && remoteHolds(*extent)) continue;
      if (pool_.lower.tier->drop(at)) dropped += extent->bytes();
    }
  }
  return dropped;
}

void RemoteMoves::finishReceive(Extent& extent, const LowerTier::Finished& finished) {
  if (extent.host == nullptr) return engine_.direct_->received(extent, finished);
  pool_.lower.receiving_bytes -= extent.bytes();
  if (finished.outcome == LowerTier::Outcome::kNotNow) {
    if (!extent.region->dead) {  // else nobody wants it any more
      engine_.pauses_.refused_until_ns = nowNs() + Engine::kRefusalPauseNs;
      ++engine_.pauses_.refusals;
    }
    return leaveHost(extent, finished.hash);
  }
  if (finished.outcome != LowerTier::Outcome::kDone) {
    engine_.host_->giveHost(extent);
    return engine_.setState(extent, ExtentState::kLost);
  }
  add(engine_.figures_->remote_in, extent.bytes());
  extent.host_valid = extent.hash_valid = true;
  extent.hash = finished.hash;
  engine_.ahead_->lookAgain();
  engine_.setState(extent, ExtentState::kParked);
}

void RemoteMoves::hurry(const Extent& extent) {
  if (extent.state != ExtentState::kSending && extent.state != ExtentState::kReceiving) return;
  const bool unwanted = extent.state == ExtentState::kReceiving && extent.region->dead;
  unwanted ? pool_.lower.tier->giveUp(pool_.programs.tierAddress(extent))
           : pool_.lower.tier->raise(pool_.programs.tierAddress(extent));
}

bool RemoteMoves::startReceive(Extent& extent, bool urgent, Lock& lock) {
  if (extent.state != ExtentState::kRemote || engine_.life_.pausing ||
      nowNs() < engine_.pauses_.refused_until_ns)
    return false;
  if (urgent && engine_.direct_ != nullptr && engine_.direct_->receive(extent, lock)) return true;
  if (extent.state != ExtentState::kRemote || extent.region->dead) return false;
  const bool short_of_host = pool_.devices.host.given == none_given_ && nowNs() < none_until_ns_;
  if (short_of_host && extent.bytes() >= none_bytes_) return false;
  const ContentHash hash = extent.hash;
  if (!pool_.lower.tier->holds(pool_.programs.tierAddress(extent),
                               hash)) {  // lost meanwhile: no host memory is needed to find out
    engine_.setState(extent, ExtentState::kLost);
    return true;
  }
  engine_.setState(extent, ExtentState::kMoving);  // the mutex may be released for a chunk
  const uint64_t given = pool_.devices.host.given;
  if (!engine_.host_->takeHost(extent, lock)) {
    none_bytes_ = short_of_host ? std::min(none_bytes_, extent.bytes()) : extent.bytes();
    none_given_ = given;
    none_until_ns_ = nowNs() + kNoHostNs;
    extent.hash = hash;
    extent.hash_valid = true;
    engine_.setState(extent, ExtentState::kRemote);
    return false;
  }
  if (extent.region->dead) {  // nobody wants it any more
    leaveHost(extent, hash);
    return false;
  }
  engine_.setState(extent, ExtentState::kReceiving);
  pool_.lower.under_way[pool_.programs.tierAddress(extent)] = &extent;
  pool_.lower.receiving_bytes += extent.bytes();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's address of the chunk
  pool_.lower.tier->receive(pool_.programs.tierAddress(extent),
                            reinterpret_cast<void*>(extent.host->alias), extent.bytes(), urgent);
  return true;
}

// What is used next comes to host RAM before it is fetched to VRAM, a part of host RAM ahead.
bool RemoteMoves::prefetchRemote(Lock& lock) {
  if (pool_.lower.tier == nullptr || engine_.life_.broken || engine_.life_.pausing ||
      engine_.wants_.short_bytes > 0 || engine_.host_->shortBytes() > 0)
    return false;
  const uint64_t window = reserveOf(chunks_.hostLimit());
  if (pool_.lower.receiving_bytes >= window) return false;
  std::vector<Region*> upcoming;
  uint64_t bytes = 0;
  pool_.predictor.upcoming(kUpcoming, [&](uint32_t unit, uint64_t) {
    Region* const region = pool_.book.unitAt(unit).region;
    if (region == nullptr || region->dead || region->engine != &engine_ || region->unusable == 0)
      return true;
    bytes += region->pages * kPageBytes;
    if (region->remote > 0) upcoming.push_back(region);
    return bytes < window;
  });
  bool progress = false;
  for (Region* region : upcoming) {
    if (region->dead) continue;
    for (size_t e = 0; e < region->extents.size() && pool_.lower.receiving_bytes < window; ++e) {
      Extent& extent = *region->extents[e];
      if (extent.state != ExtentState::kRemote) continue;
      if (!startReceive(extent, false, lock)) return progress;
      progress = true;
      if (region->dead) break;
    }
  }
  return progress;
}

// Keeps some of host RAM free for what comes in, from memservers and from VRAM.
bool RemoteMoves::demote() {
  if (pool_.lower.tier == nullptr || engine_.life_.broken || engine_.life_.pausing ||
      chunks_.hostLimit() == 0)
    return false;
  uint64_t room = hostRoom();
  const uint64_t wanted = std::max(reserveOf(chunks_.hostLimit()), engine_.host_->shortBytes());
  if (room >= wanted) engine_.host_->metShortage();
  if (room < wanted) room += engine_.host_->dropSpareCopies(wanted - room);
  if (room + pool_.lower.sending_bytes >= wanted) return false;
  struct Candidate {
    Extent* extent;
    uint64_t distance;  // to its next use, in touches
  };
  const bool may_send = nowNs() >= pool_.lower.retry_ns;
  std::vector<Candidate> candidates;
  uint64_t leaving_place = 0;  // unmapped from their place in host memory soon, and then parked
  for (uint32_t id = 1; id < pool_.book.regions.end() && candidates.size() < kLooks; ++id) {
    Region* const region = pool_.book.regions.at(id);
    if (region->dead || region->engine != &engine_ || region->by_pieces || region->wanted > 0 ||
        region->pins > 0 || region->managed != nullptr ||
        (region->unusable == 0 && region->in_place == 0))
      continue;
    using Kind = predict::Predictor::NextUse::Kind;
    const auto next = pool_.predictor.nextUse(unitOf(*region));
    const uint64_t distance = next.kind == Kind::kNever         ? UINT64_MAX
                              : next.kind == Kind::kUnpredicted ? UINT64_MAX / 2
                                                                : next.distance;
    for (auto& extent : region->extents) {
      if (extent->leaving) continue;
      const bool parked =
          extent->state == ExtentState::kParked && extent->host != nullptr && extent->host_valid;
      const bool in_place = extent->state == ExtentState::kInPlace &&
                            engine_.host_->shortBytes() > 0 && may_send && !region->swapping;
      if (parked || in_place) {
        candidates.push_back({extent.get(), distance});
      } else if (extent->state == ExtentState::kRetiring && extent->vram == nullptr) {
        leaving_place += extent->bytes();
      }
    }
  }
  // In place: only where nothing else is left to send.
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    const bool a_in_place = a.extent->state == ExtentState::kInPlace,
               b_in_place = b.extent->state == ExtentState::kInPlace;
    return a_in_place != b_in_place ? b_in_place : a.distance > b.distance;
  });
  bool progress = false;
  uint64_t coming = room + pool_.lower.sending_bytes + leaving_place;
  std::vector<Extent*> leaving;
  for (const Candidate& candidate : candidates) {
    if (coming >= wanted) break;
    Extent& extent = *candidate.extent;
    if (extent.state == ExtentState::kInPlace) {
      leaving.push_back(&extent);
      coming += extent.bytes();
      continue;
    }
    if (remoteHolds(extent)) {
      const ContentHash hash = extent.hash;
      add(engine_.figures_->remote_dropped, extent.bytes());
      leaveHost(extent, hash);
    } else {
      if (!may_send || pool_.lower.sending_bytes >= LowerMoves::kMostSending) continue;
      engine_.setState(extent, ExtentState::kSending);
      pool_.lower.under_way[pool_.programs.tierAddress(extent)] = &extent;
      pool_.lower.sending_bytes += extent.bytes();
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's address of the chunk
      pool_.lower.tier->send(pool_.programs.tierAddress(extent),
                             reinterpret_cast<const void*>(extent.host->alias), extent.bytes(),
                             extent.hash_valid ? &extent.hash : nullptr);
    }
    coming += extent.bytes();
    progress = true;
  }
  return engine_.eviction_->promote(leaving) || progress;
}

}  // namespace olpager::pager
