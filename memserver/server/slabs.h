// The memory that a memserver donates, in slabs of one size: made, lent, cleaned, lent again, given
// back to the system.
//
// A slab is free (all zeros) -> lent (take) -> being cleaned (giveBack) -> free, or given back to
// the system when there is more than the target. Cleaning is zeroing; a slab whose memfd a session
// has got is not cleaned but replaced: its memory goes back to the system, and what the session may
// still write to it harms nobody.
//
// Slabs are private memory (huge pages where the system has them), or memfds for sessions on this
// host; a free slab of the other kind is made anew when it is wanted.
//
// Thread-safety: any thread. take() may make memory: fractions of a second. Lock:
// SlabStore::mutex_, a leaf.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include <oneapi/tbb/task_arena.h>

#include "base/fd.h"
#include "base/result.h"
#include "coherence/transport/regions.h"

namespace olpager::memserver {

inline constexpr uint64_t kFramePageBytes = 2ull << 20;

enum class SlabKind : uint8_t { kPrivate, kShared };

struct SlabOptions {
  uint64_t bytes = 256ull << 20;  // of each slab; a multiple of 2 MiB
  int numa_node = -1;             // preferred; -1: as the system likes
  bool huge = true;               // ask for transparent huge pages
  bool lock = true;               // keep it from being swapped, as far as the limits allow
  /// The domain where slabs are registered; sessions' domains are within it.
  transport::DomainPtr domain = transport::makeDomain();
};

/// Mapped and touched; unmapped with it. Memory of a memfd goes back to the system even while
/// others map it.
class SlabMemory {
 public:
  /// `touched` is told the bytes that have been touched since it was told last.
  static Result<std::unique_ptr<SlabMemory>> make(
      const SlabOptions& options, SlabKind kind, const std::function<void(uint64_t)>& touched = {});
  ~SlabMemory();
  SlabMemory(const SlabMemory&) = delete;
  SlabMemory& operator=(const SlabMemory&) = delete;

  SlabKind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }
  transport::Memory memory() const { return {base_, bytes_, fd_.get(), 0}; }
  /// All of it, to be lent.
  const transport::Region& region() const { return *region_; }
  std::byte* base() const { return base_; }

 private:
  SlabMemory() = default;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  SlabKind kind_ = SlabKind::kPrivate;
  base::UniqueFd fd_;
  transport::RegionPtr region_;
};
using SlabPtr = std::unique_ptr<SlabMemory>;

class SlabStore {
 public:
  struct Figures {  // bytes
    uint64_t target = 0;
    uint64_t free = 0, lent = 0, cleaning = 0;
    uint64_t zeroed = 0;    // in all
    uint64_t replaced = 0;  // in all: memfds that were handed out
    uint64_t returned = 0;  // in all: given back to the system because of the target
    uint64_t donated() const { return free + lent + cleaning; }
  };

  /// Cleans on the arena's threads. `freed`: called after a slab has become free or has gone, on
  /// any thread.
  SlabStore(const SlabOptions& options, tbb::task_arena& arena, std::function<void()> freed);
  ~SlabStore();

  /// Makes slabs up to the target, in parallel. Before each of them `more` is told the bytes that
  /// are there, from several threads, one at a time; where it says false no more are begun. Stops
  /// at the first that can't be made: the Error says why. Slabs made before stay.
  Status fill(SlabKind kind, const std::function<bool(uint64_t)>& more);
  /// Bytes begun by fill() that are not touched yet: the system counts them as available.
  uint64_t untouched() const { return untouched_.load(); }
  /// Makes one more if there are fewer than the target; false when there aren't or none can be
  /// made.
  bool grow(SlabKind kind);

  /// A slab of zeros, or none.
  SlabPtr take(SlabKind kind);
  /// `handed_out`: a session has its memfd. Returns at once.
  void giveBack(SlabPtr slab, bool handed_out);
  /// The most bytes of slabs. Free slabs beyond it go at once, others when they become free.
  void setTarget(uint64_t bytes);
  Figures figures() const;
  uint64_t slabBytes() const { return options_.bytes; }
  const transport::DomainPtr& domain() const { return options_.domain; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  void clean(SlabPtr slab, bool handed_out);
  void put(SlabPtr slab);

  const SlabOptions options_;
  tbb::task_arena& arena_;
  const std::function<void()> freed_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<SlabPtr> free_;
  Figures figures_;  // free is counted from free_
  uint64_t making_ = 0;
  std::atomic<uint64_t> untouched_{0};
  uint64_t tasks_ = 0;
};

}  // namespace olpager::memserver
