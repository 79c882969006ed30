// Predicts from faults: which extents a thread of the program touches next, and which ones it needs
// together. Pure; thread-safety: none.
//
//   ahead     a thread that faults at one page after the other is asked for the next ones: 2, then
//             4, up to kMostAhead. The first of each such run is the mark: it is not published
//             before it is touched, so that this touch is a fault, which asks for the run after it
//   together  one access may need several pages (it straddles two, copies from one to another,
//             gathers). If others take the first while the second comes, the thread faults at the
//             first again, and so on. So a thread that faults at a page that it had and lost at
//             once gets it together with all that it has faulted at since
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <vector>

#include "coherence/directory/types.h"

namespace olpager::cpu {

class Touches {
 public:
  static constexpr uint32_t kMostAhead = 16;
  static constexpr size_t kRemembered = 32;  // a gather of 16 words, each of which straddles
  static constexpr size_t kThreads = 64;

  Touches() { threads_.reserve(kThreads); }

  struct Run {
    directory::ExtentId first = 0;
    uint32_t count = 0;
  };
  using Pages = std::array<directory::ExtentId, kRemembered>;

  /// The thread faults at that extent of a region that ends before `end`. Returns the extents to
  /// ask for beside it; the run's first extent is the mark.
  Run fault(pid_t thread, directory::ExtentId extent, directory::ExtentId end);
  /// Before fault(): what the thread has faulted at since it last did at that extent, newest last;
  /// nothing if it never has. Returns how many.
  size_t since(pid_t thread, directory::ExtentId extent, Pages& pages) const;
  /// These extents are others' from now on.
  void forget(directory::ExtentId first, uint32_t count);

 private:
  struct Thread {
    pid_t id = 0;
    uint64_t used = 0;
    directory::ExtentId last = directory::kNone;
    directory::ExtentId asked = 0;  // the run's end
    directory::ExtentId mark = directory::kNone;
    uint32_t window = 0;
    Pages recent{};  // oldest first, each once
    size_t count = 0;
  };
  Thread& of(pid_t thread);
  const Thread* find(pid_t thread) const;

  std::vector<Thread> threads_;
  uint64_t clock_ = 0;
};

}  // namespace olpager::cpu
