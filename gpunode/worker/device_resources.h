// Device resources that the driver has told of (CUdevResource). A driver keeps what it likes in
// their opaque bytes, pointers too, and takes it back from the caller: so those bytes never leave
// this process. The client gets a number in their place, and what it sends back is looked up whole.
// Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

namespace olpager::gpunode {

class DeviceResources {
 public:
  /// `slot`: of the session, in all numbers.
  explicit DeviceResources(unsigned slot) : slot_(slot) {}

  /// Puts what the client is to see in place of what the driver has told: the same for the same
  /// resource. One of no type is left as it is.
  void hide(CUdevResource* resource);
  /// The driver's own, in place of what hide() has made of it; false: it has made no such thing.
  bool restore(CUdevResource* resource) const;
  size_t size() const;

  /// So many are remembered. Those that were told first go first.
  static constexpr size_t kMost = size_t{1} << 16;

 private:
  const unsigned slot_;
  mutable std::mutex mutex_;
  uint64_t next_ = 1;
  uint64_t oldest_ = 1;
  std::unordered_map<std::string, uint64_t> numbers_;      // by the driver's bytes
  std::unordered_map<uint64_t, CUdevResource> by_number_;  // the driver's
};

}  // namespace olpager::gpunode
