// Integer and bit operations: which function an instruction of a type is.
#include "gpunode/simgpu/ptx/integer.h"

namespace olpager::simgpu::ptx::PTX_ISA {
namespace {

template <typename T>
OpFn arithmetic(Alu kind, std::uint32_t flags) {
  const bool carry = (flags & (kFlagCarryIn | kFlagCarryOut)) != 0;
  if constexpr (sizeof(T) >= 4) {
    if (carry) {
      switch (kind) {
        case Alu::kAdd:
          return carryOp<T, Alu::kAddCc>;
        case Alu::kSub:
          return carryOp<T, Alu::kSubCc>;
        case Alu::kMadLo:
          return carryOp<T, Alu::kMadLoCc>;
        case Alu::kMadHi:
          return carryOp<T, Alu::kMadHiCc>;
        default:
          return nullptr;
      }
    }
  }
  if (carry) return nullptr;
  if ((flags & (kFlagSat | kFlagRelu)) != 0) {
    if constexpr (std::is_same_v<T, S32>) {
      if (kind == Alu::kMin) return binary<MinRelu<S32>, S32, S32>;
      if (kind == Alu::kMax) return binary<MaxRelu<S32>, S32, S32>;
      if ((flags & kFlagRelu) != 0) return nullptr;
      if (kind == Alu::kAdd) return binary<AddSat, S32, S32>;
      if (kind == Alu::kSub) return binary<SubSat, S32, S32>;
      if (kind == Alu::kMadHi) return ternary<MadHiSat, S32, S32>;
    }
    return nullptr;
  }
  switch (kind) {
    case Alu::kAdd:
      return binary<Add<T>, T, T>;
    case Alu::kSub:
      return binary<Sub<T>, T, T>;
    case Alu::kMulLo:
      return binary<MulLo<T>, T, T>;
    case Alu::kMulHi:
      return binary<MulHi<T>, T, T>;
    case Alu::kMadLo:
      return ternary<MadLo<T>, T, T>;
    case Alu::kMadHi:
      return ternary<MadHi<T>, T, T>;
    case Alu::kDiv:
      return binary<Div<T>, T, T>;
    case Alu::kRem:
      return binary<Rem<T>, T, T>;
    case Alu::kMin:
      return binary<Min<T>, T, T>;
    case Alu::kMax:
      return binary<Max<T>, T, T>;
    case Alu::kShr:
      return binary<Shr<T>, T, T, U32>;
    case Alu::kSad:
      return ternary<Sad<T>, T, T>;
    case Alu::kSlct:
      return ternary<Slct<T>, T, T, T, S32>;
    case Alu::kSlctF32:
      return ternary<SlctF<T>, T, T, T, float>;
    default:
      break;
  }
  if constexpr (std::is_signed_v<T>) {
    if (kind == Alu::kAbs) return unary<Abs<T>, T, T>;
    if (kind == Alu::kNeg) return unary<Neg<T>, T, T>;
  }
  if constexpr (sizeof(T) < 8) {
    using W = typename Wider<T>::type;
    if (kind == Alu::kMulWide) return binary<MulWide<T>, W, T>;
    if (kind == Alu::kMadWide) return ternary<MadWide<T>, W, T>;
  } else {
    using W = typename Wider<T>::type;
    if (kind == Alu::kMulWide) return binary<MulWide<T>, W, T>;
  }
  if constexpr (sizeof(T) >= 4) {
    if (kind == Alu::kBfind) return unary<Bfind<T, false>, U32, T>;
    if (kind == Alu::kBfindShift) return unary<Bfind<T, true>, U32, T>;
    if (kind == Alu::kBfe) return ternary<Bfe<T>, T, T, U32, U32>;
  }
  if constexpr (sizeof(T) == 4) {
    switch (kind) {
      case Alu::kMul24Lo:
        return binary<Mul24Lo<T>, T, T>;
      case Alu::kMul24Hi:
        return binary<Mul24Hi<T>, T, T>;
      case Alu::kMad24Lo:
        return ternary<Mad24Lo<T>, T, T>;
      case Alu::kMad24Hi:
        return ternary<Mad24Hi<T>, T, T>;
      case Alu::kSzextClamp:
        return binary<Szext<T, false>, T, T, U32>;
      case Alu::kSzextWrap:
        return binary<Szext<T, true>, T, T, U32>;
      case Alu::kMin3:
        return ternary<Twice<T, Min>, T, T>;
      case Alu::kMax3:
        return ternary<Twice<T, Max>, T, T>;
      default:
        break;
    }
  }
  return nullptr;
}

template <typename T>
OpFn bits(Alu kind) {
  switch (kind) {
    case Alu::kMov:
      return unary<Mov<T>, T, T>;
    case Alu::kAnd:
      return binary<And<T>, T, T>;
    case Alu::kOr:
      return binary<Or<T>, T, T>;
    case Alu::kXor:
      return binary<Xor<T>, T, T>;
    case Alu::kNot:
      return unary<Not<T>, T, T>;
    case Alu::kCnot:
      return unary<Cnot<T>, T, T>;
    case Alu::kShl:
      return binary<Shl<T>, T, T, U32>;
    case Alu::kSelp:
      return selp<T>;
    default:
      break;
  }
  if constexpr (sizeof(T) >= 4) {
    if (kind == Alu::kPopc) return unary<Popc<T>, U32, T>;
    if (kind == Alu::kClz) return unary<Clz<T>, U32, T>;
    if (kind == Alu::kBfi) return bfi<T>;
    if (kind == Alu::kBrev) {
      if constexpr (sizeof(T) == 4)
        return unary<Brev32, U32, U32>;
      else
        return unary<Brev64, U64, U64>;
    }
  }
  return nullptr;
}

OpFn bits32(Alu kind) {
  switch (kind) {
    case Alu::kBmskClamp:
      return binary<Bmsk<false>, U32, U32>;
    case Alu::kBmskWrap:
      return binary<Bmsk<true>, U32, U32>;
    case Alu::kPrmt:
      return ternary<Prmt, U32, U32>;
    case Alu::kPrmtF4e:
      return ternary<PrmtMode<Alu::kPrmtF4e>, U32, U32>;
    case Alu::kPrmtB4e:
      return ternary<PrmtMode<Alu::kPrmtB4e>, U32, U32>;
    case Alu::kPrmtRc8:
      return ternary<PrmtMode<Alu::kPrmtRc8>, U32, U32>;
    case Alu::kPrmtEcl:
      return ternary<PrmtMode<Alu::kPrmtEcl>, U32, U32>;
    case Alu::kPrmtEcr:
      return ternary<PrmtMode<Alu::kPrmtEcr>, U32, U32>;
    case Alu::kPrmtRc16:
      return ternary<PrmtMode<Alu::kPrmtRc16>, U32, U32>;
    case Alu::kLop3:
      return lop3;
    case Alu::kShfLClamp:
      return ternary<Shf<true, false>, U32, U32>;
    case Alu::kShfLWrap:
      return ternary<Shf<true, true>, U32, U32>;
    case Alu::kShfRClamp:
      return ternary<Shf<false, false>, U32, U32>;
    case Alu::kShfRWrap:
      return ternary<Shf<false, true>, U32, U32>;
    case Alu::kDp4aUU:
      return ternary<Dp4a<U8, U8>, U32, U32>;
    case Alu::kDp4aUS:
      return ternary<Dp4a<U8, S8>, U32, U32>;
    case Alu::kDp4aSU:
      return ternary<Dp4a<S8, U8>, U32, U32>;
    case Alu::kDp4aSS:
      return ternary<Dp4a<S8, S8>, U32, U32>;
    case Alu::kDp2aLoUU:
      return ternary<Dp2a<U16, U8, false>, U32, U32>;
    case Alu::kDp2aLoUS:
      return ternary<Dp2a<U16, S8, false>, U32, U32>;
    case Alu::kDp2aLoSU:
      return ternary<Dp2a<S16, U8, false>, U32, U32>;
    case Alu::kDp2aLoSS:
      return ternary<Dp2a<S16, S8, false>, U32, U32>;
    case Alu::kDp2aHiUU:
      return ternary<Dp2a<U16, U8, true>, U32, U32>;
    case Alu::kDp2aHiUS:
      return ternary<Dp2a<U16, S8, true>, U32, U32>;
    case Alu::kDp2aHiSU:
      return ternary<Dp2a<S16, U8, true>, U32, U32>;
    case Alu::kDp2aHiSS:
      return ternary<Dp2a<S16, S8, true>, U32, U32>;
    case Alu::kFns:
      return ternary<Fns, U32, U32, U32, S32>;
    default:
      return nullptr;
  }
}

template <typename T>
OpFn pair(Alu kind, std::uint32_t flags) {
  if (flags != 0) {
    if constexpr (std::is_same_v<T, S16>) {
      if (flags == kFlagRelu && kind == Alu::kMin) return binary<Pair16<S16, MinRelu>, U32, U32>;
      if (flags == kFlagRelu && kind == Alu::kMax) return binary<Pair16<S16, MaxRelu>, U32, U32>;
    }
    return nullptr;
  }
  switch (kind) {
    case Alu::kAdd:
      return binary<Pair16<T, Add>, U32, U32>;
    case Alu::kSub:
      return binary<Pair16<T, Sub>, U32, U32>;
    case Alu::kMin:
      return binary<Pair16<T, Min>, U32, U32>;
    case Alu::kMax:
      return binary<Pair16<T, Max>, U32, U32>;
    default:
      return nullptr;
  }
}

}  // namespace

OpFn integerOp(Alu kind, Type type, std::uint32_t flags) {
  OpFn fn = nullptr;
  switch (type) {
    case Type::kU16:
      fn = arithmetic<U16>(kind, flags);
      break;
    case Type::kS16:
      fn = arithmetic<S16>(kind, flags);
      break;
    case Type::kU32:
      fn = arithmetic<U32>(kind, flags);
      break;
    case Type::kS32:
      fn = arithmetic<S32>(kind, flags);
      break;
    case Type::kU64:
      fn = arithmetic<U64>(kind, flags);
      break;
    case Type::kS64:
      fn = arithmetic<S64>(kind, flags);
      break;
    case Type::kB16:
      fn = kind == Alu::kShr || kind == Alu::kSlct ? arithmetic<U16>(kind, flags) : nullptr;
      break;
    case Type::kB32:
      fn = kind == Alu::kShr || kind == Alu::kSlct ? arithmetic<U32>(kind, flags) : nullptr;
      break;
    case Type::kB64:
      fn = kind == Alu::kShr || kind == Alu::kSlct ? arithmetic<U64>(kind, flags) : nullptr;
      break;
    case Type::kU16x2:
      return pair<U16>(kind, flags);
    case Type::kS16x2:
      return pair<S16>(kind, flags);
    default:
      break;
  }
  if (fn != nullptr || flags != 0) return fn;
  switch (typeSize(type)) {
    case 2:
      return bits<U16>(kind);
    case 4:
      fn = bits<U32>(kind);
      return fn != nullptr ? fn : bits32(kind);
    case 8:
      return bits<U64>(kind);
    case 16:
      return kind == Alu::kMov ? unary<Mov<U128>, U128, U128> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace olpager::simgpu::ptx::PTX_ISA
