#include "pager/launch/refusal.h"

#include <algorithm>

#include "base/log.h"
#include "base/size.h"
#include "pager/residency/engine.h"
#include "pager/residency/in_place.h"

namespace olpager::pager {

namespace {

// The engine whose VRAM can never hold at once what the closure needs of memory that can't be used
// in place; nullptr: none.
const Engine* tooSmallFor(const PoolState& state, const Closure& closure) {
  if (closure.everything) return nullptr;  // which lists some twice
  for (const auto& engine : state.devices.engines) {
    uint64_t bytes = 0;
    for (const Extent* extent : closure.needed)
      if (extent->region->engine == engine.get() && extent->state != ExtentState::kDetached &&
          !mayBeInPlace(*extent))
        bytes += extent->bytes();
    if (bytes > engine->mostVram()) return engine.get();
  }
  return nullptr;
}

// Bytes of the engine's that have to be mapped at once.
uint64_t mappedAtOnce(const Engine& engine, const Closure& closure) {
  uint64_t bytes = 0;
  const auto addExtent = [&](const Extent& extent) {
    if (extent.region->engine == &engine && extent.state != ExtentState::kDetached)
      bytes += extent.bytes();
  };
  if (!closure.follows()) {
    for (const Extent* extent : closure.needed) addExtent(*extent);
    return bytes;
  }
  for (const Region* region : closure.regions) {
    if (region->engine != &engine || (region->by_pieces && !closure.everything)) continue;
    if (region->kind != RegionKind::kReservation) {
      bytes += region->pages * kPageBytes;
    } else {
      for (const auto& extent : region->extents) addExtent(*extent);
    }
  }
  if (!closure.everything)
    for (const Extent* extent : closure.used.extents())
      if (extent->region->by_pieces) addExtent(*extent);
  return bytes;
}

}  // namespace

bool neverFits(const PoolState& state, const Closure& closure) {
  if (tooSmallFor(state, closure) != nullptr) return true;
  uint64_t beyond = 0;  // VRAM
  for (const auto& engine : state.devices.engines) {
    if (engine->broken()) continue;
    const uint64_t bytes = mappedAtOnce(*engine, closure);
    beyond += bytes - std::min(bytes, engine->mostVram());
  }
  return beyond > state.devices.host.most;
}

bool allFits(const PoolState& state) {
  uint64_t beyond = 0;  // VRAM
  for (const auto& engine : state.devices.engines) {
    uint64_t mapped = 0, in_vram = 0;
    for (uint32_t id = 1; id < state.book.regions.end(); ++id) {
      const Region* const region = state.book.regions.at(id);
      if (region->dead || !region->published || region->engine != engine.get()) continue;
      for (const auto& extent : region->extents) {
        if (extent->state == ExtentState::kDetached) continue;
        mapped += extent->bytes();
        if (!mayBeInPlace(*extent)) in_vram += extent->bytes();
      }
    }
    if (engine->broken()) continue;
    if (in_vram > engine->mostVram()) return false;
    beyond += mapped - std::min(mapped, engine->mostVram());
  }
  return beyond <= state.devices.host.most;
}

void tellRefused(const PoolState& state, const Closure& closure) {
  uint64_t bytes = 0, vram = 0, vram_used = 0, host_used = 0;
  for (const Region* region : closure.regions) bytes += region->pages * kPageBytes;
  for (const auto& engine : state.devices.engines) {
    host_used += engine->chunks().hostInUse();
    if (std::none_of(closure.regions.begin(), closure.regions.end(),
                     [&](const Region* region) { return region->engine == engine.get(); }))
      continue;
    vram += engine->chunks().vramBudget();
    vram_used += engine->chunks().vramBudget() - engine->chunks().vramAvailable();
  }
  const unsigned long long reached = bytes >> 20;
  if (const Engine* const engine = tooSmallFor(state, closure); engine != nullptr) {
    base::warnOnce("reach does not fit VRAM",
                   "device %d: a launch or copy that reaches %llu MiB is refused (out of memory): "
                   "the GPU can't use "
                   "host memory in place "
                   "here (olrun --check), so what it reaches has to fit the budget of %llu MiB of "
                   "VRAM (OL_VRAM)",
                   engine->device(), reached,
                   static_cast<unsigned long long>(engine->mostVram() >> 20));
    return;
  }
  if (bytes > vram + state.devices.host.limit) {
    base::warnOnce(
        "reach does not fit",
        "a launch or copy that reaches %llu MiB is refused (out of memory): what it reaches has to "
        "fit VRAM "
        "and host RAM of this machine together, however much memservers or disks have (OL_VRAM, "
        "OL_HOST)",
        reached);
    return;
  }
  const auto ofAll = [](uint64_t used, uint64_t all) {
    return base::formatSize(std::min(used, all)) + " of " + base::formatSize(all);
  };
  std::string remote;
  if (state.lower.tier != nullptr) {
    const TierFigures figures = state.lower.tier->figures();
    remote = std::string(", ") + lowerName(state) + " " +
             ofAll(figures.held_bytes, figures.capacity_bytes);
  }
  base::warnOnce("no room for reach",
                 "a launch or copy that reaches %llu MiB is refused (out of memory): it waited in "
                 "vain for room. In use: "
                 "VRAM %s, host RAM %s%s (OL_VRAM, OL_HOST, OL_DISK; olmemserver --memory)",
                 reached, ofAll(vram_used, vram).c_str(),
                 ofAll(host_used, state.devices.host.limit).c_str(), remote.c_str());
}

void tellNoScan() {
  base::warnOnce("no scan of reach",
                 "a launch or copy is refused (out of memory): it reaches memory that the host or "
                 "another executor wrote, which could not be looked through for pointers within a "
                 "minute (a kernel or copy that does not end uses it?), and all of memory does not "
                 "fit VRAM and host RAM of this machine (OL_VRAM, OL_HOST)");
}

}  // namespace olpager::pager
