// Video instructions: arithmetic on the two halves or four bytes of a word.
#include <algorithm>

#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

std::int32_t apply(Video what, std::int32_t a, std::int32_t b) {
  switch (what) {
    case Video::kAdd:
      return a + b;
    case Video::kSub:
      return a - b;
    case Video::kAverage:  // rounds away from zero
      return a + b >= 0 ? (a + b + 1) >> 1 : (a + b) >> 1;
    case Video::kAbsDiff:
      return a < b ? b - a : a - b;
    case Video::kMin:
      return std::min(a, b);
    case Video::kMax:
      return std::max(a, b);
    case Video::kEq:
      return a == b ? 1 : 0;
    case Video::kNe:
      return a != b ? 1 : 0;
    case Video::kLt:
      return a < b ? 1 : 0;
    case Video::kLe:
      return a <= b ? 1 : 0;
    case Video::kGt:
      return a > b ? 1 : 0;
    case Video::kGe:
      return a >= b ? 1 : 0;
  }
  return 0;
}

Step video(Warp& w, const Op& op) {
  const VideoKind kind = VideoKind::unpack(op.imm);
  const std::uint32_t bits = 32 / kind.parts;
  const std::uint32_t field = (1U << bits) - 1;
  const auto part = [&](std::uint32_t word, std::uint32_t at, bool sign) {
    const std::uint32_t value = word >> at << (32 - bits);
    return sign ? static_cast<std::int32_t>(value) >> (32 - bits)
                : static_cast<std::int32_t>(value >> (32 - bits));
  };
  const std::int32_t lowest = kind.signed_result ? -(1 << (bits - 1)) : 0;
  const std::int32_t highest =
      kind.signed_result ? (1 << (bits - 1)) - 1 : static_cast<std::int32_t>(field);
  std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
  const std::uint32_t* const a = w.reg<std::uint32_t>(op.r[1]);
  const std::uint32_t* const b = w.reg<std::uint32_t>(op.r[2]);
  const std::uint32_t* const c = w.reg<std::uint32_t>(op.r[3]);
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(left));
    std::uint32_t out = kind.accumulate ? c[lane] : 0;
    for (std::uint32_t at = 0; at < 32; at += bits) {
      std::int32_t value =
          apply(kind.what, part(a[lane], at, kind.signed_a), part(b[lane], at, kind.signed_b));
      if (kind.saturate) value = std::clamp(value, lowest, highest);
      if (kind.accumulate)
        out += static_cast<std::uint32_t>(value);
      else
        out |= (static_cast<std::uint32_t>(value) & field) << at;
    }
    d[lane] = out;
  }
  return Step::kNext;
}

}  // namespace

OpFn videoOp() { return video; }

}  // namespace olpager::simgpu::ptx
