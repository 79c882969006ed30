// Launches that wait for extents, and what is to be done for each of them.
//
// A want's states, moved by the engine's thread under PoolState::mutex; the launch's acquisition
// is looked at whenever PoolState::changed rings:
//
//   waiting   it is to get its extents into VRAM
//     -> in place   that took too long, or can't be: what is missing is mapped where it is
//     -> late scan  what the host wrote can't be scanned in time: the launch is taken to reach all,
//                   or waits on for a minute where all can never be usable at once
//     -> failed     neither VRAM nor host memory could be had, or the scan did not end: the launch
//                   is refused
//     -> lost       the lower tier has lost an extent: the launch is refused
// A launch leaves the list when it gets its number, is refused or cancelled (acquisition.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pager/space/region.h"

namespace olpager::pager {

/// A launch that waits for extents. Part of its Acquisition (launch/); listed in Wants meanwhile.
struct Want {
  std::vector<Extent*> extents;  // to be mapped; those of the working set in VRAM
  std::vector<Region*> regions;  // all that the launch reaches here
  std::vector<Region*> to_scan;  // reached, and written by the host since their last scan
  bool scan_roots =
      false;              // it may follow module variables that a copy wrote since their last scan
  uint64_t since_ns = 0;  // when it came nearer to its end last
  // How far from its end it was at its nearest (stepsLeft()), and of how many extents. Others may
  // take back what it got: to get that again brings it no nearer.
  uint64_t nearest = 0;
  size_t counted = 0;
  uint64_t room_ns = 0;        // when room has come free here last, for it or for one before it
  uint64_t scan_since_ns = 0;  // since when a scan is waited for that could begin; 0: it is not
  bool in_place = false;       // the time is over, or it can't fit: map the rest in place
  bool failed = false;         // neither could be had, or `no_scan`
  bool no_scan = false;        // the scan that it waits for does not end
  bool lost = false;           // no memserver has it any more
  bool scan_late = false;      // the scan waits for something that may never end
  bool in_vram = false;        // in place is no help: who uses the addresses does not come by again
  bool fetch = false;  // what of it is in place is to come to VRAM if it does so in time (arenas
                       // by pieces, onlyShow())
};

/// The launches that wait at one engine, oldest first. Under PoolState::mutex.
class Wants {
 public:
  void add(Want* want) { list_.push_back(want); }
  void remove(Want* want) { std::erase(list_, want); }
  /// Pages have left this machine: who waits for room, here or behind others, waits anew.
  void roomCame(uint64_t now_ns) {
    for (Want* const want : list_) want->room_ns = now_ns;
  }
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  Want* at(size_t index) const { return list_[index]; }
  /// True if `want` is still at `index`: the list changes while the mutex is released.
  bool has(size_t index, const Want* want) const {
    return index < list_.size() && list_[index] == want;
  }
  /// True if a launch that waits needs the region: no victim. If it can't be used in place,
  /// launches may fit only one at a time: then the one that is served takes from younger ones,
  /// never from itself or from an older one, which may have all it needs and not have noticed yet.
  bool hold(const Region& region) const;
  bool hold(const Extent& extent) const;
  /// True if a launch that has waited longer than the one at `index` needs the extent: it stays in
  /// place for that launch.
  bool isForOlder(size_t index, const Extent& extent) const;

  /// Extents that this want and older ones need are no victims, if they can't be used in place.
  size_t serving = SIZE_MAX;
  /// Bytes that they wait for and that found no chunk yet.
  uint64_t short_bytes = 0;

 private:
  std::vector<Want*> list_;
};

/// Waiting that is of no use for a while, since the last time was in vain.
struct Patience {
  uint64_t ns = 0;       // how long
  uint64_t from_ns = 0;  // from when on
};

inline constexpr uint64_t kPatienceNs = 200'000'000;  // with what leaves, and with scans

/// The engine's knowledge when it looks at a want's extent.
struct WantTimes {
  uint64_t now_ns = 0;
  bool vram_owed = false;         // VRAM is owed to others (VramDebts)
  uint64_t owed_patience_ns = 0;  // how long launches wait for VRAM that is owed
  uint64_t promoted_from_ns = 0;  // from when on they wait for what leaves its place
  uint64_t vram_available = 0;    // bytes
};

/// The step to take for one extent that a launch waits for.
enum class WantStep : uint8_t {
  kReady,         // nothing: the launch can use it as it is
  kWait,          // nothing: it is on its way
  kLinger,        // nothing: it is on its way, and the launch could go on with what is in place
  kLeavePlace,    // it is in place, and is to come to VRAM
  kTakeBack,      // it is on its way out, and comes back
  kTakeBackLate,  // likewise; it did not leave its place in time
  kHurry,         // the lower tier is to be quick
  kReceive,       // only the lower tier has it
  kLost,          // nobody has it
  kMapInPlace,    // in place, where host memory can be had; else as kBring
  kBring,         // to VRAM
};
/// How many of an extent's moves are left until it is as the want is to have it. A move that is
/// undone adds what it took away.
uint64_t stepsLeft(WantStep step, ExtentState state);
/// `in_pass`: nothing uses it any more, and the GPU is looking at it. Pure.
WantStep stepFor(const Want& want, const Extent& extent, const WantTimes& times, bool in_pass);

}  // namespace olpager::pager
