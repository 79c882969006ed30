// The node's GPUs as the daemon knows them: their properties (asked of the driver once, in a
// process of its own) and their state (asked of the node's own NVML, where there is one, without a
// context on any of them). Thread-safety: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/status/status.h"
#include "gpunode/worker/setup.h"

namespace olpager::gpunode {

class NvmlSource;

class Devices {
 public:
  Devices();
  ~Devices();

  /// Starts the driver in a worker that ends again, and waits for its answer, half a minute at
  /// most. `chosen`: indices (--device), in the order in which sessions see them; none: all.
  /// `ends`: looked at now and then: true gives up. The Error is one line.
  Status find(const std::string& worker, const std::vector<std::string>& environment,
              const std::string& driver, const std::vector<uint32_t>& chosen,
              const std::function<bool()>& ends);
  bool known() const { return !devices_.empty(); }
  /// The last find() found no driver, but something else or nothing at all at `driver`.
  bool noDriver() const { return no_driver_; }
  size_t size() const { return devices_.size(); }
  const status::Device& at(size_t i) const { return devices_[i]; }
  const std::vector<status::Device>& all() const { return devices_; }
  std::vector<std::string> uuids() const;
  /// "2 x NVIDIA H200, NVIDIA L4": for people.
  std::string names() const;
  uint32_t cudaVersion() const { return cuda_version_; }
  const std::string& driverVersion() const { return driver_version_; }

  /// Asks NVML anew, when the last time is longer ago than `age`. False: it has nothing to say,
  /// `used` and `free` are the caller's to work out.
  bool refresh(std::chrono::milliseconds age);
  void setMemory(size_t i, uint64_t used);

 private:
  std::vector<status::Device> devices_;
  bool no_driver_ = false;
  uint32_t cuda_version_ = 0;
  std::string driver_version_;
  std::unique_ptr<NvmlSource> nvml_;
  bool measured_ = false;
  std::chrono::steady_clock::time_point asked_{};
};

}  // namespace olpager::gpunode
