// Memory of a session's driver that is in no range that is set aside for the pool: variables of
// modules, what a stream allocates while it captures, what comes from some pools. Thread-safety:
// any thread. Lock: one of each session's own, a leaf.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace olpager::forward {

class Session;

/// A session's.
class DriverMemory {
 public:
  void note(uint64_t address, uint64_t bytes);
  bool has(uint64_t address) const;

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> all_;  // bytes, by address
};

/// The session that has the driver memory: the current context's is asked before others; null:
/// none.
Session* sessionOfDriverMemory(uint64_t address);
/// True if an address that may be either is device memory: in the range of a pool, a driver's own,
/// or nothing of this process's.
bool isDeviceMemory(uint64_t address);

}  // namespace olpager::forward
