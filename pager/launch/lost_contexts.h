// Reports of contexts that a kernel of theirs has ended. Everything runs under PoolState::mutex.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "pager/types.h"

namespace olpager::pager {

/// Kernels that were launched of late, for the report of a context that was lost.
class RecentKernels {
 public:
  /// The name is copied. One that is there already, at the same address, costs some comparisons.
  void note(const char* name);
  /// "a, b, c", the latest first.
  std::string list() const;

 private:
  std::array<const char*, 8> places_{};  // where the names were; never looked at again
  std::array<std::array<char, 48>, 8> names_{};
  std::array<uint64_t, 8> noted_{};  // when, by `notes_`
  uint64_t notes_ = 0;
};

class LostContexts {
 public:
  RecentKernels recent;

  /// A kernel has touched what is not mapped: its context is lost. Once for each context, a line
  /// that says what may be the reason, with the kernels that were launched of late. `device`: the
  /// one whose engine lives in the context; below 0: none does. `seals`: arenas are streamed.
  void tellUnmapped(CUcontext context, CUdevice device, Reach reach, bool seals);
  /// The context is gone: another one may get its handle.
  void forget(CUcontext context) { told_.erase(context); }

 private:
  std::set<CUcontext> told_;
};

}  // namespace olpager::pager
