// The rounding mode of the host's floating-point unit, set for a while. Built once for each of the
// instruction sets that the operation families are built for.
#pragma once

#include <cfenv>

#include "gpunode/simgpu/ptx/ops.h"

namespace olpager::simgpu::ptx::PTX_ISA {

/// `mode` for the life of the object, to nearest afterwards. The mode is the calling thread's.
class HostRound {
 public:
  explicit HostRound(Round mode) : changed_(mode != Round::kNearest) {
    if (changed_)
      std::fesetround(mode == Round::kZero   ? FE_TOWARDZERO
                      : mode == Round::kDown ? FE_DOWNWARD
                                             : FE_UPWARD);
  }
  ~HostRound() {
    if (changed_) std::fesetround(FE_TONEAREST);
  }
  HostRound(const HostRound&) = delete;
  HostRound& operator=(const HostRound&) = delete;

 private:
  bool changed_;
};

}  // namespace olpager::simgpu::ptx::PTX_ISA
