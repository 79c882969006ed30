#include "pager/pool_state.h"

#include <algorithm>
#include <thread>

#include "pager/clock.h"

namespace olpager::pager {

bool tellUnmapped(PoolState& state, CUcontext context) {
  const bool ever_paged = state.reach.floor.epoch > 0;
  if (state.options.reach == Reach::kAll || !ever_paged) return false;
  const Engine* const engine = state.devices.engineIn(context);
  state.lost.tellUnmapped(context, engine != nullptr ? engine->device() : -1, state.options.reach,
                          state.options.stream_arenas);
  return true;
}

void makeArena(PoolState& state, Region& region) {
  state.predictor.forget(unitOf(region));
  region.arena = std::make_unique<Arena>(state.book.pieces, &region, region.base, region.end());
  region.tiny = false;
  if (state.options.reach != Reach::kLearned) return;
  region.by_pieces = region.whole_due = true;
  region.whole_stamp = region.stamp.load();
}

void drainUnmarked(PoolState& state, uint64_t number) {
  for (const CUcontext context : state.streams.contextsToDrain())
    static_cast<void>(state.streams.synchronize(context, number));
}

void settleFloor(PoolState& state) {
  constexpr uint64_t kGraceNs = 20'000'000;  // a driver call may wait for room in a queue
  Hazards::Snapshot launching;
  uint64_t epoch = 0;
  {
    Lock lock(state.mutex);
    epoch = state.reach.floor.epoch;
    hazards().snapshot(launching);
  }
  for (const uint64_t until = nowNs() + kGraceNs; !Hazards::passed(launching);) {
    if (nowNs() > until) return;
    std::this_thread::yield();
  }
  Lock lock(state.mutex);
  ReachFloor& floor = state.reach.floor;
  if (!floor.pending || floor.epoch != epoch) return;
  floor.settle(state.launch_number.load());
}

uint64_t lowerCapacity(const PoolState& state) {
  return state.lower.tier == nullptr || state.options.reach == Reach::kAll
             ? 0
             : state.lower.tier->figures().capacity_bytes;
}

const char* lowerName(const PoolState& state) {
  const TierFigures figures =
      state.lower.tier == nullptr ? TierFigures{} : state.lower.tier->figures();
  if (figures.disk_bytes == 0) return "memservers";
  return figures.memservers == 0 ? "disks" : "memservers and disks";
}

void tellRoom(const PoolState& state) {
  const uint64_t lower = lowerCapacity(state);
  const uint64_t disks = lower == 0 ? 0 : state.lower.tier->figures().disk_bytes;
  uint64_t all = state.devices.host.limit + lower;
  for (const auto& engine : state.devices.engines) all += engine->chunks().vramBudget();
  set(counters().memserver_bytes, lower - std::min(lower, disks));
  set(counters().pool_bytes, all);
}

void PoolState::updateSlow() {
  // With memory that other agents have in turns launches come to be recorded once and for all. Else
  // each page that those have and give back would make everything be looked at anew.
  const bool now =
      outside != 0 || options.reach == Reach::kAll || managed != nullptr || away != nullptr;
  if (now == slow.load(std::memory_order_relaxed)) return;
  slow.store(now, std::memory_order_seq_cst);
  // Nobody recorded what launches reached up to here, nor looked for pointers.
  if (!now) return;
  reach.floor.found = std::max(reach.floor.found, launch_number.load());
  reach.everythingIsDirty();
}

}  // namespace olpager::pager
