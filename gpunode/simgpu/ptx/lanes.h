// Loops over the lanes of a warp, for the operation families. Included by files that are compiled
// once for each level of the CPU's vector instructions: everything is in a namespace of its own for
// each.
#pragma once

#include <bit>
#include <cstdint>

#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/warp.h"

#ifndef PTX_ISA
#define PTX_ISA isa_base
#endif

// Operands either are the same register or do not overlap at all.
#if defined(__clang__)
#define PTX_LANE_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define PTX_LANE_LOOP _Pragma("GCC ivdep")
#endif

namespace olpager::simgpu::ptx::PTX_ISA {

/// body(lane) for each active lane; all 32 in one vectorisable loop if nobody minds.
template <typename Body>
[[gnu::always_inline]] inline void forLanes(Warp& w, Body body) {
  if (w.full()) [[likely]] {
    PTX_LANE_LOOP
    for (std::uint32_t i = 0; i < kWarpSize; ++i) body(i);
  } else {
    for (std::uint32_t left = w.mask; left != 0; left &= left - 1)
      body(static_cast<std::uint32_t>(std::countr_zero(left)));
  }
}

template <typename F, typename D, typename A>
Step unary(Warp& w, const Op& op) {
  D* const d = w.reg<D>(op.r[0]);
  const A* const a = w.reg<A>(op.r[1]);
  forLanes(w, [&](std::uint32_t i) { d[i] = F::apply(a[i]); });
  return Step::kNext;
}

template <typename F, typename D, typename A, typename B = A>
Step binary(Warp& w, const Op& op) {
  D* const d = w.reg<D>(op.r[0]);
  const A* const a = w.reg<A>(op.r[1]);
  const B* const b = w.reg<B>(op.r[2]);
  forLanes(w, [&](std::uint32_t i) { d[i] = F::apply(a[i], b[i]); });
  return Step::kNext;
}

template <typename F, typename D, typename A, typename B = A, typename C = D>
Step ternary(Warp& w, const Op& op) {
  D* const d = w.reg<D>(op.r[0]);
  const A* const a = w.reg<A>(op.r[1]);
  const B* const b = w.reg<B>(op.r[2]);
  const C* const c = w.reg<C>(op.r[3]);
  forLanes(w, [&](std::uint32_t i) { d[i] = F::apply(a[i], b[i], c[i]); });
  return Step::kNext;
}

OpFn integerOp(Alu kind, Type type, std::uint32_t flags);
OpFn floatingOp(Alu kind, Type type, std::uint32_t flags);
OpFn halfOp(Alu kind, Type type, std::uint32_t flags);
OpFn convertOp(Type destination, Type source, std::uint32_t flags);
OpFn compareOp(Compare compare, Type type);
OpFn setOp(Compare compare, Type type, std::uint32_t bytes);
OpFn memoryOp(const MemoryKind& kind);

}  // namespace olpager::simgpu::ptx::PTX_ISA
