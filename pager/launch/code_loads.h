// Code that the driver loads or unloads while there is managed memory.
//
// Some drivers wait for all that runs on a device before they load code, and answer no call there
// meanwhile that copies, launches or records. Kernels that run may wait for the CPU, and a touch of
// a page that is in VRAM needs such calls. So before the driver is called the pages are where a
// touch needs none (Streams::codeLoadBegins):
//
//   draining   no launch begins on the device. Launches that have begun may end
//   alone      nothing runs there, and nothing begins: the load waits for nobody. Pages stay
//   beside     something runs on and does not come nearer to its end: it may wait for the CPU, or
//              for a launch. So launches go on, but for those that reach managed memory: these wait
//              until the load is over, as the driver has them wait. The device's managed memory
//              goes to the CPU
//
// One load at a time for each device. Under PoolState::mutex, but for any().
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace olpager::pager {

class CodeLoads {
 public:
  bool on(CUdevice device) const { return find(device) != loads_.end(); }
  void begins(CUdevice device) {
    loads_.push_back({device, true});
    count_.store(loads_.size());
  }
  void goesOnBeside(CUdevice device) { find(device)->holds_all = false; }
  void ended(CUdevice device) {
    loads_.erase(find(device));
    count_.store(loads_.size());
  }
  /// True if a launch on the device has to wait. `managed`: it reaches managed memory.
  bool hold(CUdevice device, bool managed) const {
    const auto load = find(device);
    return load != loads_.end() && (load->holds_all || managed);
  }
  /// True if a load has begun and is not over. Any thread.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  /// How things were when a load had waited in vain. The next one does not wait for the same.
  uint64_t in_vain = 0;

 private:
  struct Load {
    CUdevice device;
    bool holds_all;
  };
  using Loads = std::vector<Load>;
  Loads::iterator find(CUdevice device) {
    return std::find_if(loads_.begin(), loads_.end(),
                        [device](const Load& load) { return load.device == device; });
  }
  Loads::const_iterator find(CUdevice device) const {
    return std::find_if(loads_.begin(), loads_.end(),
                        [device](const Load& load) { return load.device == device; });
  }

  Loads loads_;
  std::atomic<size_t> count_{0};  // of loads_
};

}  // namespace olpager::pager
