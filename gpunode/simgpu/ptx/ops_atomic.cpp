// atom and red. On device memory these are atomic operations of the host: other blocks, other
// kernels and the CPU take part. A block's shared memory is only ever touched by the one thread
// that runs its cluster, but the same code serves it.
#include <bit>
#include <cmath>
#include <type_traits>

#include "gpunode/simgpu/ptx/half.h"
#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

__extension__ typedef unsigned __int128 U128;
using isa_base::BF16Format;
using isa_base::F16Format;

template <typename T>
bool compareExchange(T* p, T& expected, T desired) {
  if constexpr (sizeof(T) == 16) {
    const T seen = __sync_val_compare_and_swap(p, expected, desired);
    const bool done = seen == expected;
    expected = seen;
    return done;
  } else {
    return __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
  }
}

/// old = *p; *p = change(old), as one step.
template <typename T, typename Change>
T update(T* p, Change change) {
  T old;
  if constexpr (sizeof(T) == 16) {
    old = 0;
    compareExchange(p, old, old);
  } else {
    old = __atomic_load_n(p, __ATOMIC_RELAXED);
  }
  while (!compareExchange(p, old, change(old))) {
  }
  return old;
}

/// The operations. U is the unsigned type of the memory word; a, b the operands' bits.
template <Atomic kKind, typename T>
struct Integer {
  static constexpr bool kMaySpin = kKind == Atomic::kCas || kKind == Atomic::kExch;
  using U = std::make_unsigned_t<T>;
  static U apply(U* p, U a, U b) {
    if constexpr (kKind == Atomic::kAdd) return __atomic_fetch_add(p, a, __ATOMIC_SEQ_CST);
    if constexpr (kKind == Atomic::kAnd) return __atomic_fetch_and(p, a, __ATOMIC_SEQ_CST);
    if constexpr (kKind == Atomic::kOr) return __atomic_fetch_or(p, a, __ATOMIC_SEQ_CST);
    if constexpr (kKind == Atomic::kXor) return __atomic_fetch_xor(p, a, __ATOMIC_SEQ_CST);
    if constexpr (kKind == Atomic::kExch) return __atomic_exchange_n(p, a, __ATOMIC_SEQ_CST);
    if constexpr (kKind == Atomic::kCas) {
      compareExchange(p, a, b);
      return a;
    }
    if constexpr (kKind == Atomic::kMin) {
      return update(p, [a](U old) { return static_cast<T>(old) < static_cast<T>(a) ? old : a; });
    }
    if constexpr (kKind == Atomic::kMax) {
      return update(p, [a](U old) { return static_cast<T>(old) > static_cast<T>(a) ? old : a; });
    }
    if constexpr (kKind == Atomic::kInc)
      return update(p, [a](U old) { return old >= a ? U{0} : static_cast<U>(old + 1); });
    if constexpr (kKind == Atomic::kDec) {
      return update(p, [a](U old) { return old == 0 || old > a ? a : static_cast<U>(old - 1); });
    }
  }
};

template <Atomic kKind>
struct Wide {
  static constexpr bool kMaySpin = true;
  using U = U128;
  static U apply(U* p, U a, U b) {
    if constexpr (kKind == Atomic::kCas) {
      compareExchange(p, a, b);
      return a;
    }
    return update(p, [a](U) { return a; });
  }
};

template <Atomic kKind, typename F, typename Bits>
struct Floating {
  static constexpr bool kMaySpin = false;
  using U = Bits;
  static U apply(U* p, U a, U) {
    const F x = std::bit_cast<F>(a);
    return update(p, [x](U old) {
      const F y = std::bit_cast<F>(old);
      if constexpr (kKind == Atomic::kMin) return std::bit_cast<U>(std::fmin(y, x));
      if constexpr (kKind == Atomic::kMax) return std::bit_cast<U>(std::fmax(y, x));
      return std::bit_cast<U>(static_cast<F>(y + x));
    });
  }
};

template <Atomic kKind, typename Format>
std::uint16_t halfChange(std::uint16_t old, std::uint16_t a) {
  const float x = isa_base::halfToFloat<Format>(old);
  const float y = isa_base::halfToFloat<Format>(a);
  if constexpr (kKind == Atomic::kMin) return isa_base::floatToHalf<Format>(std::fmin(x, y));
  if constexpr (kKind == Atomic::kMax) return isa_base::floatToHalf<Format>(std::fmax(x, y));
  return isa_base::floatToHalf<Format>(x + y);
}

template <Atomic kKind, typename Format>
struct HalfWord {
  static constexpr bool kMaySpin = false;
  using U = std::uint16_t;
  static U apply(U* p, U a, U) {
    return update(p, [a](U old) { return halfChange<kKind, Format>(old, a); });
  }
};
template <Atomic kKind, typename Format>
struct HalfPair {
  static constexpr bool kMaySpin = false;
  using U = std::uint32_t;
  static U apply(U* p, U a, U) {
    return update(p, [a](U old) {
      const auto low =
          halfChange<kKind, Format>(static_cast<std::uint16_t>(old), static_cast<std::uint16_t>(a));
      const auto high = halfChange<kKind, Format>(static_cast<std::uint16_t>(old >> 16),
                                                  static_cast<std::uint16_t>(a >> 16));
      return static_cast<U>(low) | static_cast<U>(high) << 16;
    });
  }
};

/// imm: vector length; vectors are updated element by element, as the hardware may.
template <typename F, bool kShared>
Step atomic(Warp& w, const Op& op) {
  using U = typename F::U;
  const auto count = static_cast<std::uint32_t>(op.imm >> 32);
  const std::uint64_t* const wide = w.reg<std::uint64_t>(op.r[8]);
  const std::uint32_t* const narrow = w.reg<std::uint32_t>(op.r[8]);
  // The address offset is signed and has 32 bits.
  const auto offset =
      static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(op.imm)));
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    std::uint64_t address = (op.flags & kAddress32) != 0
                                ? narrow[i] + static_cast<std::uint32_t>(offset)
                                : wide[i] + offset;
    if (kShared) address += kSharedWindow;
    if (address % (sizeof(U) * count) != 0)
      return w.failAddress(LaunchStatus::kMisaligned, address, true, i);
    std::byte* const p = w.resolve(address, i, static_cast<std::uint32_t>(sizeof(U)) * count, true);
    if (p == nullptr) return Step::kFault;
    if (count == 1) {
      const U b = op.r[2] != kNoTarget ? w.reg<U>(op.r[2])[i] : U{0};
      const U old = F::apply(reinterpret_cast<U*>(p), w.reg<U>(op.r[1])[i], b);
      if (op.r[0] != kNoTarget) w.reg<U>(op.r[0])[i] = old;
    } else {
      for (std::uint32_t v = 0; v < count; ++v) {
        const U a = w.reg<U>(op.r[v < 4 ? 4 + v : 5 + v])[i];
        const U old = F::apply(reinterpret_cast<U*>(p) + v, a, U{0});
        if (op.r[0] != kNoTarget && v < 4) w.reg<U>(op.r[v])[i] = old;
      }
    }
  }
  if (F::kMaySpin) w.mayBeSpinning();
  return Step::kNext;
}

template <typename F>
OpFn placed(bool shared) {
  return shared ? atomic<F, true> : atomic<F, false>;
}

template <typename T>
OpFn integer(Atomic kind, bool shared) {
  switch (kind) {
    case Atomic::kAdd:
      return placed<Integer<Atomic::kAdd, T>>(shared);
    case Atomic::kMin:
      return placed<Integer<Atomic::kMin, T>>(shared);
    case Atomic::kMax:
      return placed<Integer<Atomic::kMax, T>>(shared);
    case Atomic::kInc:
      return placed<Integer<Atomic::kInc, T>>(shared);
    case Atomic::kDec:
      return placed<Integer<Atomic::kDec, T>>(shared);
    case Atomic::kAnd:
      return placed<Integer<Atomic::kAnd, T>>(shared);
    case Atomic::kOr:
      return placed<Integer<Atomic::kOr, T>>(shared);
    case Atomic::kXor:
      return placed<Integer<Atomic::kXor, T>>(shared);
    case Atomic::kExch:
      return placed<Integer<Atomic::kExch, T>>(shared);
    case Atomic::kCas:
      return placed<Integer<Atomic::kCas, T>>(shared);
  }
  return nullptr;
}

template <template <Atomic> class F>
OpFn addMinMax(Atomic kind, bool shared) {
  switch (kind) {
    case Atomic::kAdd:
      return placed<F<Atomic::kAdd>>(shared);
    case Atomic::kMin:
      return placed<F<Atomic::kMin>>(shared);
    case Atomic::kMax:
      return placed<F<Atomic::kMax>>(shared);
    default:
      return nullptr;
  }
}

template <Atomic k>
using F32 = Floating<k, float, std::uint32_t>;
template <Atomic k>
using F64 = Floating<k, double, std::uint64_t>;
template <Atomic k>
using F16 = HalfWord<k, F16Format>;
template <Atomic k>
using BF16 = HalfWord<k, BF16Format>;
template <Atomic k>
using F16x2 = HalfPair<k, F16Format>;
template <Atomic k>
using BF16x2 = HalfPair<k, BF16Format>;

}  // namespace

OpFn atomicOp(Atomic kind, Type type, std::uint32_t, bool shared) {
  switch (type) {
    case Type::kU16:
    case Type::kB16:
      return kind == Atomic::kCas || kind == Atomic::kExch ? integer<std::uint16_t>(kind, shared)
                                                           : nullptr;
    case Type::kU32:
    case Type::kB32:
      return integer<std::uint32_t>(kind, shared);
    case Type::kS32:
      return integer<std::int32_t>(kind, shared);
    case Type::kU64:
    case Type::kB64:
      return integer<std::uint64_t>(kind, shared);
    case Type::kS64:
      return integer<std::int64_t>(kind, shared);
    case Type::kB128:
      if (kind == Atomic::kCas) return placed<Wide<Atomic::kCas>>(shared);
      if (kind == Atomic::kExch) return placed<Wide<Atomic::kExch>>(shared);
      return nullptr;
    case Type::kF32:
      return kind == Atomic::kExch ? integer<std::uint32_t>(kind, shared)
                                   : addMinMax<F32>(kind, shared);
    case Type::kF64:
      return kind == Atomic::kExch ? integer<std::uint64_t>(kind, shared)
                                   : addMinMax<F64>(kind, shared);
    case Type::kF16:
      return addMinMax<F16>(kind, shared);
    case Type::kBF16:
      return addMinMax<BF16>(kind, shared);
    case Type::kF16x2:
      return addMinMax<F16x2>(kind, shared);
    case Type::kBF16x2:
      return addMinMax<BF16x2>(kind, shared);
    default:
      return nullptr;
  }
}

}  // namespace olpager::simgpu::ptx
