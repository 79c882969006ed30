// Hashes pages that come from memservers, faster than one core can read memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "pager/tiers/lower_tier.h"

namespace olpager::memserver {

/// Threads that help the callers of hash(). One core reads some 5 to 10 GB/s from memory, which is
/// less than several memservers send.
///
/// Thread-safety: one call of hash() at a time; from any thread.
class Hasher {
 public:
  /// As suits this machine: one helper for each four processors beyond the first, three at most.
  static unsigned helpersHere();

  /// If the system gives no thread, there are fewer helpers.
  explicit Hasher(unsigned helpers = helpersHere());
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  /// As kernels::hashMemory(). Returns when no helper reads `memory` any more.
  pager::ContentHash hash(const void* memory, uint64_t bytes);

 private:
  void help();
  void takePages();

  // State of the call in progress. Written by the caller while no helper is inside.
  const std::byte* memory_ = nullptr;
  std::vector<pager::ContentHash> pages_;
  std::atomic<size_t> next_{0};  // page that nobody has begun: relaxed, the mutex orders the rest

  std::mutex mutex_;  // over what follows; nothing is called under it
  std::condition_variable begun_, ended_;
  uint64_t call_ = 0;
  unsigned inside_ = 0;  // helpers at work
  bool closing_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace olpager::memserver
