// Memory of which a launch touches little (an embedding table: some rows of gigabytes) is better
// read in place, over the link, than fetched. The pager learns by time which memory that is:
// launches that name a large region are timed on the GPU.
//
//   kUnknown   timed: a launch that is over in half the time that VRAM (the link, for a region that
//              happens to be in place) needs to move the region once did not use it all. Several in
//              a row: kSparse. Several that took longer: kDense.
//   kSparse    stays in host memory in place and gives up its VRAM. Timed now and then: several in
//              a row that took more than half of what a fetch takes: kDense.
//   kDense     fetched, as everything else; no longer timed. So is what the learned order calls
//              hot: launches may have written it, and each pass looks through it for pointers.
//
// In place or in VRAM is a matter of speed only (docs/internals/architecture.md, The rule), so a
// wrong verdict is never wrong data.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "pager/driver_api.h"
#include "pager/space/density.h"

namespace olpager::pager {

struct Region;
struct StreamKey;

/// Regions below this are never timed.
inline constexpr uint64_t kLeastSparseBytes = 32ull << 20;
/// An in-place use of a sparse region in this many is timed, after the first few.
inline constexpr uint16_t kTimedUses = 64;

/// Takes one timed launch into account; true when the verdict changed. `ns`: duration on the GPU;
/// `bytes`: of the region. `vram_bytes_per_second`: what the device can read at most. No lock, no
/// driver.
bool judge(DensityRecord& record, uint64_t bytes, uint64_t ns, bool in_place,
           uint64_t vram_bytes_per_second);

/// Bytes per second that the device reads of its own memory at most, from its attributes.
uint64_t vramBandwidth(const DriverApi& driver, CUdevice device);

/// A launch between two events. Each entry is owned by whoever moved it out of its state: kFree ->
/// kTaken (launching thread, under PoolState::mutex) -> kDone (the same thread, without it) ->
/// kFree (engine).
struct TimedLaunch {
  enum class State : uint8_t { kFree, kTaken, kDone };
  std::atomic<State> state{
      State::kFree};  // release by the owner that leaves it, acquire by the next
  CUevent start = nullptr;
  CUevent end = nullptr;
  Region* region = nullptr;
  uint64_t buffer_id = 0;
  uint64_t tensor = 0;  // address; of an arena that is streamed. 0: all of the region
  uint64_t bytes = 0;   // of the tensor
  bool in_place = false;
  bool recorded = false;  // both events are, around this launch: without them it has no time

  /// Before and after the driver call, on the stream that it goes to. Neither waits.
  void begin(const DriverApi& driver, const StreamKey& stream);
  void finish(const DriverApi& driver, CUstream stream);
  void dropEvents(const DriverApi& driver);
};

/// The timed launches of one device's engine. Few at a time: what is not timed now is timed the
/// next time.
class LaunchTimer {
 public:
  /// Under PoolState::mutex; nullptr when all are in use.
  TimedLaunch* take(Region& region, bool in_place);
  /// Engine's thread: calls `visit(entry, ns)` for each that has ended, then frees it. Asks the
  /// driver, waits for nothing.
  template <typename Visitor>
  void collect(const DriverApi& driver, Visitor&& visit);
  bool busy() const;
  /// The context goes, and the events with it.
  void drop(const DriverApi& driver);

 private:
  static bool elapsed(const DriverApi& driver, const TimedLaunch& launch, uint64_t* ns,
                      bool* known);
  std::array<TimedLaunch, 8> launches_;
};

template <typename Visitor>
void LaunchTimer::collect(const DriverApi& driver, Visitor&& visit) {
  for (TimedLaunch& launch : launches_) {
    uint64_t ns = 0;
    bool known = false;
    if (launch.state.load(std::memory_order_acquire) != TimedLaunch::State::kDone) continue;
    if (!elapsed(driver, launch, &ns, &known)) continue;
    if (known) visit(launch, ns);
    launch.state.store(TimedLaunch::State::kFree, std::memory_order_release);
  }
}

}  // namespace olpager::pager
