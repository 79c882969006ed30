// Roots, as the program makes and takes away the memory that they lie in.
#include <chrono>
#include <utility>
#include <vector>

#include "pager/pool.h"
#include "pager/pool_state.h"

namespace olpager::pager {

// A root that is in the table no more.
void dropRoot(PoolState& state, Region& region, Lock& lock) {
  region.dead = true;
  if (Region* const around =
          state.book.map().contains(region.base) ? state.book.find(region.base) : nullptr;
      around != nullptr)
    --around->fixed;
  while (region.wanted > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
  forgetEdges(region);
  state.book.regions.give(&region);
}

namespace {

// True if the CPU may look at managed memory while kernels run.
bool usedAtOnce(const DriverApi& driver) {
  CUdevice device = 0;
  int at_once = 0;
  return driver.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
         driver.cuDeviceGetAttribute(&at_once, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                     device) == CUDA_SUCCESS &&
         at_once != 0;
}

}  // namespace

void Pool::addRoot(CUcontext context, CUdeviceptr address, uint64_t bytes, RootKind kind,
                   bool registered) {
  PoolState& state = *state_;
  if (state.forked.load() || bytes == 0) return;
  const bool of_host = kind == RootKind::kHost || kind == RootKind::kManaged;
  bool scannable = kind != RootKind::kUnknown;
  if (of_host)
    scannable = bytes <= kLargestScanned && (kind == RootKind::kHost || usedAtOnce(state.driver));
  Lock lock(state.mutex);
  Root root{bytes, kind, context, nullptr};
  if (kind == RootKind::kVariable) {
    // Nobody has looked at its present contents.
    if (state.reach.roots.add(address, root, true))
      state.reach.unknown_variables.note(context, state.launch_number.load());
    return;
  }
  root.region = state.book.regions.take();
  if (root.region == nullptr) return;
  Region& region = *root.region;
  if (!state.reach.roots.add(address, root, !contains(address)))
    return state.book.regions.give(&region);
  if (Region* const around = contains(address) ? state.book.find(address) : nullptr;
      around != nullptr)
    ++around->fixed;
  region.kind = RegionKind::kRoot;
  region.base = address;
  region.pages = 0;
  region.requested_bytes = bytes;
  region.buffer_id = state.book.newBufferId();
  region.tiny = true;  // no part of the learned order
  region.root = std::make_unique<RootMemory>(RootMemory{kind, context, scannable, registered, 0});
  state.reach.markDirty(&region);
}

void Pool::removeRoot(CUdeviceptr address) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  Lock lock(state.mutex);
  const Root root = state.reach.roots.remove(address);
  if (root.bytes == 0) return;
  if (root.region != nullptr) dropRoot(state, *root.region, lock);
  // A pass may be reading it: the program takes it away next.
  while (state.reach.scans_of_roots > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
}

}  // namespace olpager::pager
