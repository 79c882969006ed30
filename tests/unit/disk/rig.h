// A tier over files in folders of a test's own, a caller of it, and disks that fail as they are
// told.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "disk/open.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

namespace olpager::disk::test {

using pager::LowerTier;
using Outcome = LowerTier::Outcome;
using olpager::test::TemporaryFolder;

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr std::chrono::seconds kLong{20};  // what has to happen happens within

/// Memory of its own, with a pattern by seed.
class Bytes {
 public:
  explicit Bytes(uint64_t bytes) : words_(bytes / 8) {}
  void fill(uint64_t seed);
  bool holds(uint64_t seed) const;
  void clear() { words_.assign(words_.size(), 0); }
  void* base() { return words_.data(); }
  const void* base() const { return words_.data(); }
  uint64_t length() const { return words_.size() * 8; }
  pager::ContentHash hash() const { return kernels::hashMemory(words_.data(), length()); }

 private:
  std::vector<uint64_t> words_;
};

/// Faults that the next requests meet. Each is a number of requests that are left, over all queues.
struct Faults {
  std::atomic<int> failing_reads{0}, failing_writes{0};  // with `error`
  std::atomic<int> error{EIO};
  std::atomic<int> short_ones{0};   // end after a part, which is no multiple of a sector
  std::atomic<int> wrong_reads{0};  // a bit is another one
  std::atomic<int> interrupted{0};  // EINTR and EAGAIN in turns
  std::atomic<int> ended{0};        // of the file: 0 bytes are read
  std::atomic<int> throwing{0};     // the thread gets no memory
  std::atomic<bool> held{false};    // nothing ends
  std::atomic<uint64_t> begun{0};
};

/// Queues of `under`, with faults. `faults` outlives them.
QueueMaker faulty(Faults& faults, QueueMaker under = makeQueue);

/// The tier and its caller: one thread.
class Caller {
 public:
  explicit Caller(TierOptions options);
  explicit Caller(std::unique_ptr<LowerTier> given);
  ~Caller() { tier.reset(); }

  LowerTier::Finished await(uint64_t address);
  Outcome sent(uint64_t address, const Bytes& bytes, const pager::ContentHash* hash = nullptr);
  Outcome received(uint64_t address, Bytes& bytes);

  std::unique_ptr<LowerTier> tier;
  std::atomic<uint64_t> wakes{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, LowerTier::Finished> finished_;
};

/// Files of `bytes` in each of `folders`.
TierOptions optionsFor(const std::vector<const TemporaryFolder*>& folders, uint64_t bytes);

}  // namespace olpager::disk::test
