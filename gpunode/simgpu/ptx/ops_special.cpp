// Special registers, parameters, conversions between address spaces and register sizes, memory from
// the stack.
#include <chrono>
#include <cstring>

#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

std::uint64_t nanoseconds(bool wall) {
  const auto now = wall ? std::chrono::system_clock::now().time_since_epoch()
                        : std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::uint64_t uniformValue(Warp& w, Special which, std::uint64_t imm) {
  const Block& block = *w.block;
  const LaunchConfig& config = *block.launch->config;
  const Dim3& cluster = config.cluster;
  switch (which) {
    case Special::kNtidX:
      return config.block.x;
    case Special::kNtidY:
      return config.block.y;
    case Special::kNtidZ:
      return config.block.z;
    case Special::kCtaidX:
      return block.index.x;
    case Special::kCtaidY:
      return block.index.y;
    case Special::kCtaidZ:
      return block.index.z;
    case Special::kNctaidX:
      return config.grid.x;
    case Special::kNctaidY:
      return config.grid.y;
    case Special::kNctaidZ:
      return config.grid.z;
    case Special::kWarpid:
      return w.id;
    case Special::kNwarpid:
      return 64;
    case Special::kSmid:
      return w.worker->id % std::max(1U, config.sm_count);
    case Special::kNsmid:
      return config.sm_count;
    case Special::kGridid:
      return config.grid_id;
    // About a GHz, as the hardware's; never the same twice in a row is not promised there either.
    case Special::kClock:
    case Special::kClock64:
      return nanoseconds(false);
    case Special::kClockHi:
      return nanoseconds(false) >> 32;
    case Special::kGlobaltimer:
    case Special::kGlobaltimerLo:
      return nanoseconds(true);
    case Special::kGlobaltimerHi:
      return nanoseconds(true) >> 32;
    case Special::kDynamicSmemSize:
      return config.dynamic_shared_bytes;
    case Special::kTotalSmemSize:
    case Special::kAggrSmemSize:
      return block.shared_size;
    case Special::kClusteridX:
      return block.cluster->index.x;
    case Special::kClusteridY:
      return block.cluster->index.y;
    case Special::kClusteridZ:
      return block.cluster->index.z;
    case Special::kNclusteridX:
      return config.grid.x / cluster.x;
    case Special::kNclusteridY:
      return config.grid.y / cluster.y;
    case Special::kNclusteridZ:
      return config.grid.z / cluster.z;
    case Special::kClusterCtaidX:
      return block.rank % cluster.x;
    case Special::kClusterCtaidY:
      return block.rank / cluster.x % cluster.y;
    case Special::kClusterCtaidZ:
      return block.rank / cluster.x / cluster.y;
    case Special::kClusterNctaidX:
      return cluster.x;
    case Special::kClusterNctaidY:
      return cluster.y;
    case Special::kClusterNctaidZ:
      return cluster.z;
    case Special::kClusterCtarank:
      return block.rank;
    case Special::kClusterNctarank:
      return std::uint64_t{cluster.x} * cluster.y * cluster.z;
    case Special::kEnvreg:
      if (imm == 1) return config.grid_workspace >> 32;
      if (imm == 2) return config.grid_workspace & 0xFFFFFFFF;
      return 0;
    case Special::kReservedSharedBase:
      return block.shared_size - kReservedSharedBytes + imm;
    case Special::kDynamicSharedBase:
      return block.dynamic_offset + imm;
    case Special::kLocalBase:
      return w.frame->local_base + imm;
    default:
      return 0;
  }
}

template <Special kWhich, typename T>
Step special(Warp& w, const Op& op) {
  T* const d = w.reg<T>(op.r[0]);
  if constexpr (kWhich == Special::kTidX || kWhich == Special::kTidY || kWhich == Special::kTidZ) {
    constexpr auto kAxis =
        static_cast<std::size_t>(kWhich) - static_cast<std::size_t>(Special::kTidX);
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<T>(w.tid[kAxis][lane]); });
  } else if constexpr (kWhich == Special::kLaneid) {
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<T>(lane); });
  } else if constexpr (kWhich == Special::kLanemaskEq) {
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<T>(1U << lane); });
  } else if constexpr (kWhich == Special::kLanemaskLt) {
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<T>((1U << lane) - 1); });
  } else if constexpr (kWhich == Special::kLanemaskLe) {
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<T>((2U << lane) - 1); });
  } else if constexpr (kWhich == Special::kLanemaskGe) {
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<T>(kFullMask << lane); });
  } else if constexpr (kWhich == Special::kLanemaskGt) {
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<T>(~((2U << lane) - 1)); });
  } else {
    const T value = static_cast<T>(uniformValue(w, kWhich, op.imm));
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = value; });
  }
  return Step::kNext;
}

template <typename M, typename R>
Step broadcastParam(Warp& w, const Op& op) {
  M value;
  std::memcpy(&value, w.block->launch->config->params.data() + op.imm, sizeof value);
  R* const d = w.reg<R>(op.r[0]);
  const R wide = static_cast<R>(value);
  if (w.full()) {
    for (std::uint32_t i = 0; i < kWarpSize; ++i) d[i] = wide;
  } else {
    forEach(w.mask, [&](std::uint32_t lane) { d[lane] = wide; });
  }
  return Step::kNext;
}

template <typename M, typename R, bool kStore>
Step param(Warp& w, const Op& op) {
  const std::size_t stride = w.frame->function->param_bytes;
  std::byte* const area = w.frame->params + op.imm;
  R* const d = w.reg<R>(op.r[0]);
  forEach(w.mask, [&](std::uint32_t lane) {
    if constexpr (kStore) {
      const M value = static_cast<M>(d[lane]);
      std::memcpy(area + lane * stride, &value, sizeof value);
    } else {
      M value;
      std::memcpy(&value, area + lane * stride, sizeof value);
      d[lane] = static_cast<R>(value);
    }
  });
  return Step::kNext;
}

__extension__ typedef unsigned __int128 U128;

template <typename M, typename R>
OpFn paramForm(int form) {
  if (form == 0) return broadcastParam<M, R>;
  return form == 1 ? param<M, R, false> : param<M, R, true>;
}
template <typename U, typename S>
OpFn paramReg(int form, bool sign, std::uint32_t reg_bytes) {
  switch (reg_bytes) {
    case 2:
      if constexpr (sizeof(U) <= 2)
        return sign ? paramForm<S, std::uint16_t>(form) : paramForm<U, std::uint16_t>(form);
      break;
    case 4:
      if constexpr (sizeof(U) <= 4)
        return sign ? paramForm<S, std::uint32_t>(form) : paramForm<U, std::uint32_t>(form);
      break;
    case 8:
      return sign ? paramForm<S, std::uint64_t>(form) : paramForm<U, std::uint64_t>(form);
    default:
      break;
  }
  return nullptr;
}
OpFn paramAny(int form, std::uint32_t mem_bytes, bool sign, std::uint32_t reg_bytes) {
  switch (mem_bytes) {
    case 1:
      return paramReg<std::uint8_t, std::int8_t>(form, sign, reg_bytes);
    case 2:
      return paramReg<std::uint16_t, std::int16_t>(form, sign, reg_bytes);
    case 4:
      return paramReg<std::uint32_t, std::int32_t>(form, sign, reg_bytes);
    case 8:
      return paramReg<std::uint64_t, std::int64_t>(form, sign, reg_bytes);
    case 16:
      return reg_bytes == 16 ? paramForm<U128, U128>(form) : nullptr;
    default:
      return nullptr;
  }
}

/// r[0..n-1] pieces, lowest first (kNoTarget: dropped), r[8] the whole.
template <std::uint32_t kPiece, std::uint32_t kPieces, bool kUnpack>
Step pack(Warp& w, const Op& op) {
  std::byte* const whole = w.reg<std::byte>(op.r[8]);
  std::byte
      copy[kWarpSize * kPiece * kPieces];  // a piece may be the same register as the whole's half
  if constexpr (kUnpack) {
    std::memcpy(copy, whole, sizeof copy);
  }
  forEach(w.mask, [&](std::uint32_t lane) {
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      const std::size_t at = (std::size_t{lane} * kPieces + i) * kPiece;
      if constexpr (kUnpack) {
        if (op.r[i] != kNoTarget)
          std::memcpy(w.reg<std::byte>(op.r[i]) + std::size_t{lane} * kPiece, copy + at, kPiece);
      } else {
        std::memcpy(copy + at, w.reg<std::byte>(op.r[i]) + std::size_t{lane} * kPiece, kPiece);
      }
    }
    if constexpr (!kUnpack) {
      const std::size_t size = std::size_t{kPiece} * kPieces;
      std::memcpy(whole + lane * size, copy + lane * size, size);
    }
  });
  return Step::kNext;
}

template <typename D, typename S>
Step resize(Warp& w, const Op& op) {
  D* const d = w.reg<D>(op.r[0]);
  const S* const s = w.reg<S>(op.r[1]);
  forEach(w.mask, [&](std::uint32_t lane) { d[lane] = static_cast<D>(s[lane]); });
  return Step::kNext;
}

template <typename D, typename S, Convert kKind>
Step cvta(Warp& w, const Op& op) {
  D* const d = w.reg<D>(op.r[0]);
  const S* const s = w.reg<S>(op.r[1]);
  const std::uint32_t* const rank =
      kKind == Convert::kMapa ? w.reg<std::uint32_t>(op.r[2]) : nullptr;
  const std::uint64_t own = std::uint64_t{w.block->rank + 1} << 24;
  forEach(w.mask, [&](std::uint32_t lane) {
    const std::uint64_t x = s[lane];
    std::uint64_t y = x;
    if constexpr (kKind == Convert::kFromShared) y = x + kSharedWindow;
    if constexpr (kKind == Convert::kFromLocal) y = x + kLocalWindow;
    if constexpr (kKind == Convert::kFromParam) y = x + kParamWindow;
    if constexpr (kKind == Convert::kToShared) y = x - kSharedWindow;
    if constexpr (kKind == Convert::kToLocal) y = x - kLocalWindow;
    if constexpr (kKind == Convert::kToParam) y = x - kParamWindow;
    if constexpr (kKind == Convert::kMapa)
      y = (x & ~std::uint64_t{0xFF000000}) + (std::uint64_t{rank[lane]} + 1) * 0x1000000;
    if constexpr (kKind == Convert::kGetCtaRank) {
      const std::uint64_t of = x & 0xFF000000;
      y = ((of != 0 ? of : own) >> 24) - 1;
    }
    d[lane] = static_cast<D>(y);
  });
  return Step::kNext;
}

template <typename D, typename S>
OpFn cvtaSized(Convert kind) {
  switch (kind) {
    case Convert::kToShared:
      return cvta<D, S, Convert::kToShared>;
    case Convert::kToLocal:
      return cvta<D, S, Convert::kToLocal>;
    case Convert::kToParam:
      return cvta<D, S, Convert::kToParam>;
    case Convert::kToGlobal:
      return cvta<D, S, Convert::kToGlobal>;
    case Convert::kFromShared:
      return cvta<D, S, Convert::kFromShared>;
    case Convert::kFromLocal:
      return cvta<D, S, Convert::kFromLocal>;
    case Convert::kFromParam:
      return cvta<D, S, Convert::kFromParam>;
    case Convert::kMapa:
      return cvta<D, S, Convert::kMapa>;
    case Convert::kGetCtaRank:
      return cvta<D, S, Convert::kGetCtaRank>;
  }
  return nullptr;
}

template <Space kSpace>
Step isspacep(Warp& w, const Op& op) {
  const std::uint64_t* const a = w.reg<std::uint64_t>(op.r[1]);
  std::uint32_t lanes = 0;
  forEach(w.mask, [&](std::uint32_t lane) {
    const std::uint64_t x = a[lane];
    bool in = x < kSharedWindow;  // global and const
    if constexpr (kSpace == Space::kShared) in = x - kSharedWindow < kWindowSize;
    if constexpr (kSpace == Space::kLocal) in = x - kLocalWindow < kWindowSize;
    if constexpr (kSpace == Space::kParam) in = x - kParamWindow < kWindowSize;
    lanes |= static_cast<std::uint32_t>(in) << lane;
  });
  w.setPredicate(op.r[0], lanes);
  return Step::kNext;
}

/// r[0] address in the thread's stack, r[1] bytes, imm alignment.
template <typename D>
Step allocate(Warp& w, const Op& op) {
  D* const d = w.reg<D>(op.r[0]);
  const D* const bytes = w.reg<D>(op.r[1]);
  Frame& frame = *w.frame;
  const std::uint64_t base = std::uint64_t{frame.local_base} + frame.function->local_bytes;
  const std::uint64_t room = w.block->stack_bytes;
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::uint64_t at = (base + frame.allocated[i] + op.imm - 1) & ~(op.imm - 1);
    if (at > room || bytes[i] > room - at) {
      return w.fail(LaunchStatus::kStackOverflow,
                    "alloca of " + std::to_string(bytes[i]) + " bytes does not fit the stack");
    }
    frame.allocated[i] = static_cast<std::uint32_t>(at + bytes[i] - base);
    d[i] = static_cast<D>(at);
  }
  return Step::kNext;
}
/// r[0] where the thread's stack ends.
template <typename D>
Step stackSave(Warp& w, const Op& op) {
  D* const d = w.reg<D>(op.r[0]);
  const Frame& frame = *w.frame;
  forEach(w.mask, [&](std::uint32_t lane) {
    d[lane] =
        static_cast<D>(frame.local_base + frame.function->local_bytes + frame.allocated[lane]);
  });
  return Step::kNext;
}
/// r[1] what stackSave() gave.
template <typename D>
Step stackRestore(Warp& w, const Op& op) {
  const D* const saved = w.reg<D>(op.r[1]);
  Frame& frame = *w.frame;
  const std::uint64_t base = std::uint64_t{frame.local_base} + frame.function->local_bytes;
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::uint64_t bytes = saved[i] - base;
    if (bytes > frame.allocated[i])
      return w.fail(LaunchStatus::kIllegalInstruction, "stackrestore of what was not saved");
    frame.allocated[i] = static_cast<std::uint32_t>(bytes);
  }
  return Step::kNext;
}

template <std::size_t kIndex = 0>
OpFn specialAt(Special which, std::uint32_t bytes) {
  if constexpr (kIndex <= static_cast<std::size_t>(Special::kZero)) {
    constexpr auto kWhich = static_cast<Special>(kIndex);
    if (which == kWhich)
      return bytes == 8 ? special<kWhich, std::uint64_t> : special<kWhich, std::uint32_t>;
    return specialAt<kIndex + 1>(which, bytes);
  } else {
    return nullptr;
  }
}

}  // namespace

OpFn specialOp(Special which, std::uint32_t bytes) { return specialAt(which, bytes); }

OpFn broadcastParamOp(std::uint32_t mem_bytes, bool sign, std::uint32_t reg_bytes) {
  return paramAny(0, mem_bytes, sign, reg_bytes);
}
OpFn paramOp(bool store, std::uint32_t mem_bytes, bool sign, std::uint32_t reg_bytes) {
  return paramAny(store ? 2 : 1, mem_bytes, sign, reg_bytes);
}

OpFn packOp(std::uint32_t piece, std::uint32_t pieces, bool unpack) {
  if (piece == 1 && pieces == 2) return unpack ? pack<1, 2, true> : pack<1, 2, false>;
  if (piece == 1 && pieces == 4) return unpack ? pack<1, 4, true> : pack<1, 4, false>;
  if (piece == 2 && pieces == 2) return unpack ? pack<2, 2, true> : pack<2, 2, false>;
  if (piece == 2 && pieces == 4) return unpack ? pack<2, 4, true> : pack<2, 4, false>;
  if (piece == 4 && pieces == 2) return unpack ? pack<4, 2, true> : pack<4, 2, false>;
  if (piece == 4 && pieces == 4) return unpack ? pack<4, 4, true> : pack<4, 4, false>;
  if (piece == 8 && pieces == 2) return unpack ? pack<8, 2, true> : pack<8, 2, false>;
  return nullptr;
}

OpFn resizeOp(std::uint32_t to, std::uint32_t from, bool sign) {
  const auto pick = [&]<typename D>() -> OpFn {
    switch (from) {
      case 2:
        return sign ? resize<D, std::int16_t> : resize<D, std::uint16_t>;
      case 4:
        return sign ? resize<D, std::int32_t> : resize<D, std::uint32_t>;
      case 8:
        return resize<D, std::uint64_t>;
      default:
        return nullptr;
    }
  };
  switch (to) {
    case 2:
      return pick.operator()<std::uint16_t>();
    case 4:
      return pick.operator()<std::uint32_t>();
    case 8:
      return pick.operator()<std::uint64_t>();
    default:
      return nullptr;
  }
}

OpFn cvtaOp(Convert kind, std::uint32_t to_bytes, std::uint32_t from_bytes) {
  if (to_bytes == 8)
    return from_bytes == 8 ? cvtaSized<std::uint64_t, std::uint64_t>(kind)
                           : cvtaSized<std::uint64_t, std::uint32_t>(kind);
  return from_bytes == 8 ? cvtaSized<std::uint32_t, std::uint64_t>(kind)
                         : cvtaSized<std::uint32_t, std::uint32_t>(kind);
}

OpFn stackOp(Stack kind, std::uint32_t bytes) {
  switch (kind) {
    case Stack::kAlloca:
      return bytes == 8 ? allocate<std::uint64_t> : allocate<std::uint32_t>;
    case Stack::kSave:
      return bytes == 8 ? stackSave<std::uint64_t> : stackSave<std::uint32_t>;
    case Stack::kRestore:
      return bytes == 8 ? stackRestore<std::uint64_t> : stackRestore<std::uint32_t>;
  }
  return nullptr;
}

OpFn isspacepOp(Space space) {
  switch (space) {
    case Space::kShared:
      return isspacep<Space::kShared>;
    case Space::kLocal:
      return isspacep<Space::kLocal>;
    case Space::kParam:
      return isspacep<Space::kParam>;
    default:
      return isspacep<Space::kGlobal>;
  }
}

}  // namespace olpager::simgpu::ptx
