// Operations between the lanes of a warp. Each waits until all lanes that its member mask names
// have come to it.
#include <bit>
#include <cmath>
#include <cstring>

#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

std::uint32_t members(Warp& w, const Op& op) { return w.members(op.r[5]); }

/// body(lanes) for each set of active lanes that name the same members: tiles of a warp vote each
/// by themselves in one instruction.
template <typename Body>
void forTeams(Warp& w, const Op& op, Body body) {
  if ((op.r[5] & kConstantBit) != 0) return body(w.mask);
  const std::uint32_t* const named = w.reg<std::uint32_t>(op.r[5]);
  for (std::uint32_t left = w.mask; left != 0;) {
    const std::uint32_t first = named[std::countr_zero(left)];
    std::uint32_t team = 0;
    forEach(left, [&](std::uint32_t lane) {
      team |= static_cast<std::uint32_t>(named[lane] == first) << lane;
    });
    body(team);
    left &= ~team;
  }
}

/// r: d, p or kNoTarget, a, b (lane or distance), c (clamp and segment mask), member mask. imm 1:
/// without .sync.
template <WarpOp kKind>
Step shuffle(Warp& w, const Op& op) {
  const bool sync = op.imm == 0;
  if (sync && !w.arriveSync(op, members(w, op))) return Step::kSwitch;
  std::uint32_t source[kWarpSize];
  std::memcpy(source, w.reg<std::uint32_t>(op.r[2]), sizeof source);
  const std::uint32_t* const b = w.reg<std::uint32_t>(op.r[3]);
  const std::uint32_t* const c = w.reg<std::uint32_t>(op.r[4]);
  std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
  std::uint32_t in_range = 0;
  std::uint32_t result[kWarpSize];
  forEach(w.mask, [&](std::uint32_t lane) {
    const std::uint32_t clamp = c[lane] & 31;
    const std::uint32_t segment = c[lane] >> 8 & 31;
    const std::uint32_t amount = b[lane] & 31;
    const std::uint32_t max = (lane & segment) | (clamp & ~segment);
    const std::uint32_t min = lane & segment;
    std::int32_t j = 0;
    bool good = false;
    if constexpr (kKind == WarpOp::kShflUp) {
      j = static_cast<std::int32_t>(lane) - static_cast<std::int32_t>(amount);
      good = j >= static_cast<std::int32_t>(max);
    } else if constexpr (kKind == WarpOp::kShflDown) {
      j = static_cast<std::int32_t>(lane + amount);
      good = j <= static_cast<std::int32_t>(max);
    } else if constexpr (kKind == WarpOp::kShflBfly) {
      j = static_cast<std::int32_t>(lane ^ amount);
      good = j <= static_cast<std::int32_t>(max);
    } else {
      j = static_cast<std::int32_t>(min | (amount & ~segment));
      good = j <= static_cast<std::int32_t>(max);
    }
    result[lane] = source[good ? j & 31 : static_cast<std::int32_t>(lane)];
    in_range |= static_cast<std::uint32_t>(good) << lane;
  });
  forEach(w.mask, [&](std::uint32_t lane) { d[lane] = result[lane]; });
  if (op.r[1] != kNoTarget) w.setPredicate(op.r[1], in_range);
  if (sync) w.finishSync();
  return Step::kNext;
}

/// r: d, -, a (predicate), member mask in r[5]; flags 1: negated a. imm 1: without .sync.
template <WarpOp kKind>
Step vote(Warp& w, const Op& op) {
  const bool sync = op.imm == 0;
  if (sync && !w.arriveSync(op, members(w, op))) return Step::kSwitch;
  std::uint32_t a = w.predicate(op.r[2]);
  if ((op.flags & 1) != 0) a = ~a;
  std::uint32_t holds = 0;
  const auto count = [&](std::uint32_t team) {
    const std::uint32_t yes = a & team;
    if constexpr (kKind == WarpOp::kVoteBallot) {
      std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
      forEach(team, [&](std::uint32_t lane) { d[lane] = yes; });
    } else {
      const bool agreed = kKind == WarpOp::kVoteAll   ? yes == team
                          : kKind == WarpOp::kVoteAny ? yes != 0
                                                      : yes == 0 || yes == team;
      if (agreed) holds |= team;
    }
  };
  if (sync)
    forTeams(w, op, count);
  else
    count(w.mask);
  if constexpr (kKind != WarpOp::kVoteBallot) w.setPredicate(op.r[0], holds);
  if (sync) w.finishSync();
  return Step::kNext;
}

template <typename T, bool kAll>
Step match(Warp& w, const Op& op) {
  if (!w.arriveSync(op, members(w, op))) return Step::kSwitch;
  const T* const a = w.reg<T>(op.r[2]);
  std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
  std::uint32_t result[kWarpSize] = {};
  std::uint32_t agreed = 0;
  forTeams(w, op, [&](std::uint32_t team) {
    forEach(team, [&](std::uint32_t lane) {
      forEach(team, [&](std::uint32_t other) {
        result[lane] |= static_cast<std::uint32_t>(a[lane] == a[other]) << other;
      });
    });
    const bool all = result[std::countr_zero(team)] == team;
    if (all) agreed |= team;
    forEach(team, [&](std::uint32_t lane) { d[lane] = kAll && !all ? 0 : result[lane]; });
  });
  if (kAll && op.r[1] != kNoTarget) w.setPredicate(op.r[1], agreed);
  w.finishSync();
  return Step::kNext;
}

Step activeMask(Warp& w, const Op& op) {
  std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
  forEach(w.mask, [&](std::uint32_t lane) { d[lane] = w.mask; });
  return Step::kNext;
}

Step elect(Warp& w, const Op& op) {
  if (!w.arriveSync(op, members(w, op))) return Step::kSwitch;
  std::uint32_t leaders = 0;
  forTeams(w, op, [&](std::uint32_t team) {
    const auto leader = static_cast<std::uint32_t>(std::countr_zero(team));
    leaders |= 1U << leader;
    if (op.r[0] == kNoTarget) return;
    std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
    forEach(team, [&](std::uint32_t lane) { d[lane] = leader; });
  });
  w.setPredicate(op.r[1], leaders);
  w.finishSync();
  return Step::kNext;
}

template <WarpOp kKind, typename T>
Step redux(Warp& w, const Op& op) {
  if (!w.arriveSync(op, members(w, op))) return Step::kSwitch;
  const T* const a = w.reg<T>(op.r[2]);
  T* const d = w.reg<T>(op.r[0]);
  forTeams(w, op, [&](std::uint32_t team) {
    bool first = true;
    T result{};
    forEach(team, [&](std::uint32_t lane) {
      const T x = a[lane];
      if (first) {
        result = x;
        first = false;
        return;
      }
      if constexpr (kKind == WarpOp::kReduxMin) {
        result = x < result || result != result ? x : result;
      } else if constexpr (kKind == WarpOp::kReduxMax) {
        result = x > result || result != result ? x : result;
      } else {
        const auto u = static_cast<std::uint32_t>(x);
        const auto r = static_cast<std::uint32_t>(result);
        if constexpr (kKind == WarpOp::kReduxAdd) result = static_cast<T>(r + u);
        if constexpr (kKind == WarpOp::kReduxAnd) result = static_cast<T>(r & u);
        if constexpr (kKind == WarpOp::kReduxOr) result = static_cast<T>(r | u);
        if constexpr (kKind == WarpOp::kReduxXor) result = static_cast<T>(r ^ u);
      }
    });
    forEach(team, [&](std::uint32_t lane) { d[lane] = result; });
  });
  w.finishSync();
  return Step::kNext;
}

// A lane holds a[lane / 4][lane % 4], b[lane % 4][lane / 4], and of c and d row lane / 4, columns 2
// * (lane % 4) and the next.
Step mmaF64(Warp& w, const Op& op) {
  if (!w.arriveSync(op, kFullMask)) return Step::kSwitch;
  double a[kWarpSize], b[kWarpSize], d[2][kWarpSize];
  std::memcpy(a, w.reg<double>(op.r[2]), sizeof a);
  std::memcpy(b, w.reg<double>(op.r[3]), sizeof b);
  for (std::uint32_t i = 0; i < 2; ++i) std::memcpy(d[i], w.reg<double>(op.r[4 + i]), sizeof d[i]);
  forEach(w.mask, [&](std::uint32_t lane) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t column = 2 * (lane % 4) + i;
      for (std::uint32_t k = 0; k < 4; ++k) {
        d[i][lane] = std::fma(a[lane / 4 * 4 + k], b[column * 4 + k], d[i][lane]);
      }
    }
  });
  for (std::uint32_t i = 0; i < 2; ++i) {
    double* const to = w.reg<double>(op.r[i]);
    forEach(w.mask, [&](std::uint32_t lane) { to[lane] = d[i][lane]; });
  }
  w.finishSync();
  return Step::kNext;
}

}  // namespace

OpFn warpOp(WarpOp kind, Type type) {
  switch (kind) {
    case WarpOp::kShflUp:
      return shuffle<WarpOp::kShflUp>;
    case WarpOp::kShflDown:
      return shuffle<WarpOp::kShflDown>;
    case WarpOp::kShflBfly:
      return shuffle<WarpOp::kShflBfly>;
    case WarpOp::kShflIdx:
      return shuffle<WarpOp::kShflIdx>;
    case WarpOp::kVoteAll:
      return vote<WarpOp::kVoteAll>;
    case WarpOp::kVoteAny:
      return vote<WarpOp::kVoteAny>;
    case WarpOp::kVoteUni:
      return vote<WarpOp::kVoteUni>;
    case WarpOp::kVoteBallot:
      return vote<WarpOp::kVoteBallot>;
    case WarpOp::kMatchAny:
      return typeSize(type) == 8 ? match<std::uint64_t, false> : match<std::uint32_t, false>;
    case WarpOp::kMatchAll:
      return typeSize(type) == 8 ? match<std::uint64_t, true> : match<std::uint32_t, true>;
    case WarpOp::kActiveMask:
      return activeMask;
    case WarpOp::kElect:
      return elect;
    case WarpOp::kReduxAdd:
      return redux<WarpOp::kReduxAdd, std::uint32_t>;
    case WarpOp::kReduxAnd:
      return redux<WarpOp::kReduxAnd, std::uint32_t>;
    case WarpOp::kReduxOr:
      return redux<WarpOp::kReduxOr, std::uint32_t>;
    case WarpOp::kReduxXor:
      return redux<WarpOp::kReduxXor, std::uint32_t>;
    case WarpOp::kReduxMin:
      if (type == Type::kF32) return redux<WarpOp::kReduxMin, float>;
      return type == Type::kS32 ? redux<WarpOp::kReduxMin, std::int32_t>
                                : redux<WarpOp::kReduxMin, std::uint32_t>;
    case WarpOp::kReduxMax:
      if (type == Type::kF32) return redux<WarpOp::kReduxMax, float>;
      return type == Type::kS32 ? redux<WarpOp::kReduxMax, std::int32_t>
                                : redux<WarpOp::kReduxMax, std::uint32_t>;
    case WarpOp::kMmaF64:
      return mmaF64;
  }
  return nullptr;
}

}  // namespace olpager::simgpu::ptx
