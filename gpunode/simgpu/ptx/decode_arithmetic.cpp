// Decoding of arithmetic, logic, comparison, selection and conversion.
#include <algorithm>

#include "gpunode/simgpu/ptx/decoder.h"

namespace olpager::simgpu::ptx {
namespace {

bool isHalf(Type type) {
  return type == Type::kF16 || type == Type::kBF16 || type == Type::kF16x2 || type == Type::kBF16x2;
}

OpFn find(Alu kind, Type type, std::uint32_t flags) {
  const IsaOps& ops = isaOps();
  if (isHalf(type)) return ops.half(kind, type, flags);
  if (isFloat(type)) return ops.floating(kind, type, flags);
  return ops.integer(kind, type, flags);
}

Type widened(Type type) {
  switch (type) {
    case Type::kU16:
      return Type::kU32;
    case Type::kS16:
      return Type::kS32;
    case Type::kU32:
      return Type::kU64;
    case Type::kS32:
      return Type::kS64;
    default:
      return Type::kB128;
  }
}

struct CompareName {
  std::string_view name;
  Compare compare;
};
constexpr CompareName kCompares[] = {
    {"eq", Compare::kEq},   {"ne", Compare::kNe},   {"lt", Compare::kLt},   {"le", Compare::kLe},
    {"gt", Compare::kGt},   {"ge", Compare::kGe},   {"lo", Compare::kLt},   {"ls", Compare::kLe},
    {"hi", Compare::kGt},   {"hs", Compare::kGe},   {"equ", Compare::kEqu}, {"neu", Compare::kNeu},
    {"ltu", Compare::kLtu}, {"leu", Compare::kLeu}, {"gtu", Compare::kGtu}, {"geu", Compare::kGeu},
    {"num", Compare::kNum}, {"nan", Compare::kNan},
};

}  // namespace

void FunctionDecoder::arithmetic(Modifiers& mods, Alu kind) {
  std::uint32_t flags = roundFlags(mods);
  if (mods.take("ftz")) flags |= kFlagFtz;
  if (mods.take("sat")) flags |= kFlagSat;
  if (mods.take("relu")) flags |= kFlagRelu;
  if (mods.take("NaN")) flags |= kFlagNaN;
  if (mods.take("cc")) flags |= kFlagCarryOut;
  if (mods.take("xorsign")) {
    mods.take("abs");
    flags |= kFlagXorSign;
  }
  if (instr_->parts[0] == "addc" || instr_->parts[0] == "subc" || instr_->parts[0] == "madc")
    flags |= kFlagCarryIn;
  // For f32 results the flush also applies to halves as sources only; `.ftz` of a pair is that of
  // its elements.
  const Type type = mods.takeType();
  finish(mods);
  if (type == Type::kNone) unsupported();
  if ((flags & kFlagSat) != 0 && (kind == Alu::kMin || kind == Alu::kMax)) unsupported();
  const bool wide = kind == Alu::kMulWide || kind == Alu::kMadWide;
  const bool three = kind == Alu::kFma || kind == Alu::kMadLo || kind == Alu::kMadHi ||
                     kind == Alu::kMadWide || kind == Alu::kMin3 || kind == Alu::kMax3;
  expectOperands(three ? 4 : 3, three ? 4 : 3);
  const bool count = kind == Alu::kShr || kind == Alu::kShl;
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t b = source(operand(2), count ? Type::kU32 : type);
  const std::uint32_t c =
      three ? source(operand(3), kind == Alu::kMadWide ? widened(type) : type) : 0;
  const std::uint32_t d = result(operand(0), wide ? widened(type) : type);
  if ((flags & (kFlagCarryIn | kFlagCarryOut)) != 0 && carry_ == kNoTarget) {
    carry_ = out_.frame_bytes;
    out_.frame_bytes += 64;
  }
  emit(find(kind, type, flags), {d, a, b, c, carry_}, flags);
  finishResult();
}

void FunctionDecoder::add(Modifiers& mods) { arithmetic(mods, Alu::kAdd); }
void FunctionDecoder::sub(Modifiers& mods) { arithmetic(mods, Alu::kSub); }
void FunctionDecoder::addc(Modifiers& mods) { arithmetic(mods, Alu::kAdd); }
void FunctionDecoder::subc(Modifiers& mods) { arithmetic(mods, Alu::kSub); }

void FunctionDecoder::mul(Modifiers& mods) {
  Alu kind = Alu::kMulLo;
  if (mods.take("hi"))
    kind = Alu::kMulHi;
  else if (mods.take("wide"))
    kind = Alu::kMulWide;
  else
    mods.take("lo");
  arithmetic(mods, kind);
}

void FunctionDecoder::mad(Modifiers& mods) {
  Alu kind = Alu::kMadLo;
  if (mods.take("hi")) {
    kind = Alu::kMadHi;
  } else if (mods.take("wide")) {
    kind = Alu::kMadWide;
  } else if (!mods.take("lo")) {
    kind = Alu::kFma;
  }
  arithmetic(mods, kind);
}
void FunctionDecoder::madc(Modifiers& mods) { mad(mods); }

void FunctionDecoder::mul24(Modifiers& mods) {
  const bool high = mods.take("hi");
  mods.take("lo");
  const bool multiply_only = instr_->parts[0] == "mul24";
  const Type type = mods.takeType();
  finish(mods);
  if (type != Type::kU32 && type != Type::kS32) unsupported();
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t b = source(operand(2), type);
  const std::uint32_t c = multiply_only ? 0 : source(operand(3), type);
  const std::uint32_t d = result(operand(0), type);
  const Alu kind = multiply_only ? (high ? Alu::kMul24Hi : Alu::kMul24Lo)
                                 : (high ? Alu::kMad24Hi : Alu::kMad24Lo);
  emit(find(kind, type, 0), {d, a, b, c});
}

void FunctionDecoder::fma(Modifiers& mods) { arithmetic(mods, Alu::kFma); }

void FunctionDecoder::div(Modifiers& mods) {
  // The approximate forms may be as exact as one likes.
  mods.takeAny({"approx", "full"});
  arithmetic(mods, Alu::kDiv);
}
void FunctionDecoder::rem(Modifiers& mods) { arithmetic(mods, Alu::kRem); }

void FunctionDecoder::minMax(Modifiers& mods) {
  const bool min = instr_->parts[0] == "min";
  if (operandCount() == 4) {
    std::uint32_t flags = 0;
    if (mods.take("ftz")) flags |= kFlagFtz;
    if (mods.take("NaN")) flags |= kFlagNaN;
    if (mods.take("abs")) flags |= kFlagAbs;
    const Type type = mods.takeType();
    finish(mods);
    const std::uint32_t a = source(operand(1), type);
    const std::uint32_t b = source(operand(2), type);
    const std::uint32_t c = source(operand(3), type);
    const std::uint32_t d = result(operand(0), type);
    emit(find(min ? Alu::kMin3 : Alu::kMax3, type, flags), {d, a, b, c}, flags);
    return;
  }
  arithmetic(mods, min ? Alu::kMin : Alu::kMax);
}

void FunctionDecoder::unaryMath(Modifiers& mods) {
  static const auto& kKinds = *new std::unordered_map<std::string_view, Alu>{
      {"abs", Alu::kAbs},     {"neg", Alu::kNeg},   {"sqrt", Alu::kSqrt}, {"rcp", Alu::kRcp},
      {"rsqrt", Alu::kRsqrt}, {"sin", Alu::kSin},   {"cos", Alu::kCos},   {"ex2", Alu::kEx2},
      {"lg2", Alu::kLg2},     {"tanh", Alu::kTanh}, {"brev", Alu::kBrev},
  };
  const Alu kind = kKinds.at(instr_->parts[0]);
  mods.take("approx");
  std::uint32_t flags = roundFlags(mods);
  if (mods.take("ftz")) flags |= kFlagFtz;
  const Type type = mods.takeType();
  finish(mods);
  if (type == Type::kNone) unsupported();
  expectOperands(2, 2);
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t d = result(operand(0), type);
  emit(find(kind, type, flags), {d, a}, flags);
}

void FunctionDecoder::logic(Modifiers& mods) {
  static const auto& kKinds = *new std::unordered_map<std::string_view, Alu>{{"and", Alu::kAnd},
                                                                             {"or", Alu::kOr},
                                                                             {"xor", Alu::kXor},
                                                                             {"not", Alu::kNot},
                                                                             {"cnot", Alu::kCnot}};
  const Alu kind = kKinds.at(instr_->parts[0]);
  const bool one = kind == Alu::kNot || kind == Alu::kCnot;
  const Type type = mods.takeType();
  finish(mods);
  expectOperands(one ? 2 : 3, one ? 2 : 3);
  if (type == Type::kPred) {
    const auto take = [&](const Operand& op) {
      bool negated = false;
      const std::uint32_t p = predicateSource(op, negated);
      if (!negated) return p;
      const std::uint32_t to = predicateSlot();
      emit(predicateOp(Alu::kNot), {to, p});
      return to;
    };
    const std::uint32_t a = take(operand(1));
    const std::uint32_t b = one ? 0 : take(operand(2));
    const std::uint32_t d = predicateResult(operand(0));
    emit(predicateOp(kind), {d, a, b});
    return;
  }
  if (type == Type::kNone || isFloat(type)) unsupported();
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t b = one ? 0 : source(operand(2), type);
  const std::uint32_t d = result(operand(0), type);
  emit(find(kind, type, 0), {d, a, b});
}

void FunctionDecoder::shift(Modifiers& mods) {
  arithmetic(mods, instr_->parts[0] == "shl" ? Alu::kShl : Alu::kShr);
}

void FunctionDecoder::bitCount(Modifiers& mods) {
  Alu kind = instr_->parts[0] == "popc"  ? Alu::kPopc
             : instr_->parts[0] == "clz" ? Alu::kClz
                                         : Alu::kBfind;
  if (kind == Alu::kBfind && mods.take("shiftamt")) kind = Alu::kBfindShift;
  const Type type = mods.takeType();
  finish(mods);
  expectOperands(2, 2);
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t d = result(operand(0), Type::kU32);
  emit(find(kind, type, 0), {d, a});
  finishResult();
}

void FunctionDecoder::bitField(Modifiers& mods) {
  const std::string_view name = instr_->parts[0];
  Alu kind = Alu::kBfe;
  if (name == "bfi") kind = Alu::kBfi;
  if (name == "bmsk" || name == "szext") {
    const bool wrap = mods.take("wrap");
    if (!wrap && !mods.take("clamp")) unsupported();
    kind = name == "bmsk" ? (wrap ? Alu::kBmskWrap : Alu::kBmskClamp)
                          : (wrap ? Alu::kSzextWrap : Alu::kSzextClamp);
  }
  const Type type = mods.takeType();
  finish(mods);
  if (type == Type::kNone) unsupported();
  const std::size_t count = kind == Alu::kBfi ? 5 : kind == Alu::kBfe ? 4 : 3;
  expectOperands(count, count);
  std::uint32_t r[5] = {};
  for (std::size_t i = 1; i < count; ++i) {
    const bool number = kind == Alu::kBfe ? i >= 2 : kind == Alu::kBfi ? i >= 3 : i == 2;
    r[i] = source(operand(i), number ? Type::kU32 : type);
  }
  r[0] = result(operand(0), type);
  Op& op = emit(find(kind, type, 0));
  std::copy(r, r + 5, op.r);
}

// d, a, b, c of one type.
Op& FunctionDecoder::threeSources(Alu kind, Type type, std::size_t count) {
  expectOperands(count, count);
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t b = source(operand(2), type);
  const std::uint32_t c = source(operand(3), type);
  const std::uint32_t d = result(operand(0), type);
  return emit(find(kind, type, 0), {d, a, b, c});
}

void FunctionDecoder::prmt(Modifiers& mods) {
  if (mods.takeType() != Type::kB32) unsupported();
  Alu kind = Alu::kPrmt;
  const std::string_view mode = mods.takeFirst();
  if (mode == "f4e")
    kind = Alu::kPrmtF4e;
  else if (mode == "b4e")
    kind = Alu::kPrmtB4e;
  else if (mode == "rc8")
    kind = Alu::kPrmtRc8;
  else if (mode == "ecl")
    kind = Alu::kPrmtEcl;
  else if (mode == "ecr")
    kind = Alu::kPrmtEcr;
  else if (mode == "rc16")
    kind = Alu::kPrmtRc16;
  else if (!mode.empty())
    unsupported();
  finish(mods);
  threeSources(kind, Type::kB32);
}

void FunctionDecoder::lop3(Modifiers& mods) {
  if (mods.takeType() != Type::kB32) unsupported();
  finish(mods);
  expectOperands(5, 5);
  if (operand(4).kind != OperandKind::kImmediate) fail("immediate table expected");
  threeSources(Alu::kLop3, Type::kB32, 5).imm = operand(4).value;
}

void FunctionDecoder::funnel(Modifiers& mods) {
  const bool left = mods.take("l");
  if (!left && !mods.take("r")) unsupported();
  const bool wrap = mods.take("wrap");
  if (!wrap && !mods.take("clamp")) unsupported();
  if (mods.takeType() != Type::kB32) unsupported();
  finish(mods);
  const Alu kind =
      left ? (wrap ? Alu::kShfLWrap : Alu::kShfLClamp) : (wrap ? Alu::kShfRWrap : Alu::kShfRClamp);
  threeSources(kind, Type::kB32);
}

void FunctionDecoder::sad(Modifiers& mods) {
  const Type type = mods.takeType();
  finish(mods);
  threeSources(Alu::kSad, type);
}

void FunctionDecoder::dotProduct(Modifiers& mods) {
  int base = static_cast<int>(Alu::kDp4aUU);
  if (instr_->parts[0] == "dp2a") {
    const bool high = mods.take("hi");
    if (!high && !mods.take("lo")) unsupported();
    base = static_cast<int>(high ? Alu::kDp2aHiUU : Alu::kDp2aLoUU);
  }
  const Type a = mods.takeType();
  const Type b = mods.takeType();
  finish(mods);
  const auto kind = static_cast<Alu>(base + 2 * (a == Type::kS32) + (b == Type::kS32));
  threeSources(kind, Type::kB32);
}

// `vadd4.u32.s32.u32.sat d, a, b, c` and the like; masks and selections of parts are not taken
// apart by the parser.
void FunctionDecoder::video(Modifiers& mods) {
  static const auto& kKinds = *new std::unordered_map<std::string_view, Video>{
      {"vadd", Video::kAdd},         {"vsub", Video::kSub}, {"vavrg", Video::kAverage},
      {"vabsdiff", Video::kAbsDiff}, {"vmin", Video::kMin}, {"vmax", Video::kMax},
      {"vset", Video::kEq}};
  static const auto& kComparisons = *new std::unordered_map<std::string_view, Video>{
      {"eq", Video::kEq}, {"ne", Video::kNe}, {"lt", Video::kLt},
      {"le", Video::kLe}, {"gt", Video::kGt}, {"ge", Video::kGe}};
  const std::string_view name = instr_->parts[0];
  const bool set = name.substr(0, 4) == "vset";
  VideoKind kind;
  kind.what = kKinds.at(name.substr(0, name.size() - 1));
  kind.parts = name.back() == '2' ? 2 : 4;
  const Type to = set ? Type::kU32 : mods.takeType();
  const Type a = mods.takeType();
  const Type b = mods.takeType();
  for (const Type type : {to, a, b}) {
    if (type != Type::kU32 && type != Type::kS32) unsupported();
  }
  kind.signed_result = to == Type::kS32;
  kind.signed_a = a == Type::kS32;
  kind.signed_b = b == Type::kS32;
  if (set) {
    const auto comparison = kComparisons.find(mods.takeFirst());
    if (comparison == kComparisons.end()) unsupported();
    kind.what = comparison->second;
  } else {
    kind.saturate = mods.take("sat");
  }
  kind.accumulate = mods.take("add");
  if (kind.saturate && kind.accumulate) unsupported();
  finish(mods);
  expectOperands(4, 4);
  const std::uint32_t x = source(operand(1), a);
  const std::uint32_t y = source(operand(2), b);
  const std::uint32_t z = source(operand(3), Type::kU32);
  const std::uint32_t d = result(operand(0), to);
  emit(videoOp(), {d, x, y, z}).imm = kind.pack();
}

void FunctionDecoder::fns(Modifiers& mods) {
  if (mods.takeType() != Type::kB32) unsupported();
  finish(mods);
  threeSources(Alu::kFns, Type::kB32);
}

void FunctionDecoder::copysign(Modifiers& mods) { arithmetic(mods, Alu::kCopysign); }

void FunctionDecoder::testp(Modifiers& mods) {
  static const auto& kKinds = *new std::unordered_map<std::string_view, Testp>{
      {"finite", Testp::kFinite}, {"infinite", Testp::kInfinite},
      {"number", Testp::kNumber}, {"notanumber", Testp::kNotANumber},
      {"normal", Testp::kNormal}, {"subnormal", Testp::kSubnormal}};
  const auto kind = kKinds.find(mods.takeFirst());
  if (kind == kKinds.end()) unsupported();
  const Type type = mods.takeType();
  finish(mods);
  expectOperands(2, 2);
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t p = predicateResult(operand(0));
  emit(isaOps().floating(Alu::kTestp, type, 0), {p, a}).imm =
      static_cast<std::uint64_t>(kind->second);
}

void FunctionDecoder::select(Modifiers& mods) {
  const bool by_predicate = instr_->parts[0] == "selp";
  const bool ftz = mods.take("ftz");
  Type type = mods.takeType();
  const Type by = by_predicate ? Type::kNone : mods.takeType();
  finish(mods);
  if (type == Type::kNone || type == Type::kPred) unsupported();
  expectOperands(4, 4);
  std::uint32_t a = source(operand(1), type);
  std::uint32_t b = source(operand(2), type);
  // Selection is the same for all types of a size.
  switch (typeSize(type)) {
    case 2:
      type = Type::kB16;
      break;
    case 4:
      type = Type::kB32;
      break;
    case 8:
      type = Type::kB64;
      break;
    default:
      unsupported();
  }
  std::uint32_t c = 0;
  Alu kind = Alu::kSelp;
  if (by_predicate) {
    bool negated = false;
    c = predicateSource(operand(3), negated);
    if (negated) std::swap(a, b);
  } else {
    (void)ftz;  // a subnormal and zero of the same sign compare alike with >= 0 but for -subnormal,
                // flushed below
    c = source(operand(3), by);
    kind = by == Type::kF32 ? Alu::kSlctF32 : Alu::kSlct;
    if (by != Type::kF32 && by != Type::kS32) unsupported();
  }
  const std::uint32_t d = result(operand(0), type);
  if (kind == Alu::kSlctF32 && ftz) {
    const std::uint32_t flushed = temporary(4);
    emit(isaOps().floating(Alu::kAdd, Type::kF32, kFlagFtz),
         {flushed, c, context_.pool.value(0x80000000, 4)}, kFlagFtz);
    c = flushed;
  }
  emit(isaOps().integer(kind, type, 0), {d, a, b, c});
}

// `.cmp{.combine}{.ftz}`, up to the types.
FunctionDecoder::Comparison FunctionDecoder::comparison(Modifiers& mods) {
  const std::string_view name = mods.takeFirst();
  const auto* const compare = std::find_if(std::begin(kCompares), std::end(kCompares),
                                           [&](const CompareName& c) { return c.name == name; });
  if (compare == std::end(kCompares)) unsupported();
  Comparison out;
  out.compare = compare->compare;
  Combine combine = Combine::kNone;
  if (mods.take("and"))
    combine = Combine::kAnd;
  else if (mods.take("or"))
    combine = Combine::kOr;
  else if (mods.take("xor"))
    combine = Combine::kXor;
  out.flags = static_cast<std::uint32_t>(combine);
  if (mods.take("ftz")) out.flags |= kSetpFtz;
  out.combined = combine != Combine::kNone;
  return out;
}

// a, b, and the predicate that the result is combined with.
void FunctionDecoder::compared(Comparison& of, Type type) {
  const std::size_t count = of.combined ? 4 : 3;
  expectOperands(count, count);
  of.a = source(operand(1), type);
  of.b = source(operand(2), type);
  bool negated = false;
  if (of.combined) of.c = predicateSource(operand(3), negated);
  if (negated) of.flags |= kSetpNegate;
}

void FunctionDecoder::setp(Modifiers& mods) {
  Comparison of = comparison(mods);
  const Type type = mods.takeType();
  finish(mods);
  compared(of, type);
  const std::uint32_t p = predicateResult(operand(0));
  const std::uint32_t q =
      operand(0).items.empty() ? kNoTarget : predicateResult(operand(0).items[0]);
  emit(isaOps().compare(of.compare, type), {p, of.a, of.b, of.c, q}, of.flags);
}

void FunctionDecoder::set(Modifiers& mods) {
  Comparison of = comparison(mods);
  const Type to = mods.takeType();
  const Type type = mods.takeType();
  finish(mods);
  if (to == Type::kF32) of.flags |= kSetF32;
  if (to == Type::kF16 || to == Type::kF16x2) of.flags |= kSetF16;
  if (to == Type::kBF16 || to == Type::kBF16x2) of.flags |= kSetBF16;
  compared(of, type);
  const std::uint32_t bytes = typeSize(to);
  if (bytes != 2 && bytes != 4) unsupported();
  const std::uint32_t d = result(operand(0), to);
  emit(isaOps().set(of.compare, type, bytes), {d, of.a, of.b, of.c}, of.flags).imm = bytes;
}

void FunctionDecoder::mov(Modifiers& mods) {
  const Type type = mods.takeType();
  finish(mods);
  expectOperands(2, 2);
  if (type == Type::kPred) {
    bool negated = false;
    const std::uint32_t p = predicateSource(operand(1), negated);
    const std::uint32_t d = predicateResult(operand(0));
    emit(predicateOp(negated ? Alu::kNot : Alu::kMov), {d, p});
    return;
  }
  const std::uint32_t bytes = typeSize(type);
  if (bytes < 2) unsupported();
  const Operand& to = operand(0);
  if (to.kind == OperandKind::kVector) {  // unpack
    const auto pieces = static_cast<std::uint32_t>(to.items.size());
    if (pieces == 0 || bytes % pieces != 0) fail("vector operand of the wrong size");
    const std::uint32_t piece = bytes / pieces;
    const std::uint32_t whole = sourceBytes(operand(1), bytes);
    std::uint32_t parts[8] = {};
    for (std::uint32_t i = 0; i < pieces; ++i) {
      const Operand& item = to.items[i];
      if (item.kind == OperandKind::kSink)
        parts[i] = kNoTarget;
      else if (registerBytes(item) != piece)
        unsupported();
      else
        parts[i] = slot(item.reg);
    }
    Op& op = emit(packOp(piece, pieces, true));
    std::copy(parts, parts + pieces, op.r);
    op.r[8] = whole;
    return;
  }
  const Operand& from = operand(1);
  if (from.kind == OperandKind::kSpecial && bytes >= 4 && registerBytes(to) == bytes) {
    specialRegister(from, slot(to.reg), bytes);
    return;
  }
  const std::uint32_t a = source(from, type);
  const std::uint32_t d = result(to, type);
  const Type same_size = bytes == 2   ? Type::kB16
                         : bytes == 4 ? Type::kB32
                         : bytes == 8 ? Type::kB64
                                      : Type::kB128;
  emit(isaOps().integer(Alu::kMov, same_size, 0), {d, a});
  finishResult();
}

void FunctionDecoder::cvt(Modifiers& mods) {
  std::uint32_t flags = 0;
  if (mods.take("rni"))
    flags = kFlagRoundInt;
  else if (mods.take("rzi"))
    flags = kFlagRoundInt | static_cast<std::uint32_t>(Round::kZero);
  else if (mods.take("rmi"))
    flags = kFlagRoundInt | static_cast<std::uint32_t>(Round::kDown);
  else if (mods.take("rpi"))
    flags = kFlagRoundInt | static_cast<std::uint32_t>(Round::kUp);
  else
    flags = roundFlags(mods);
  if (mods.take("ftz")) flags |= kFlagFtz;
  if (mods.take("satfinite")) flags |= kFlagSatFinite;
  if (mods.take("sat")) flags |= kFlagSat;
  if (mods.take("relu")) flags |= kFlagRelu;
  const Type to = mods.takeType();
  const Type from = mods.takeType();
  finish(mods);
  if (to == Type::kNone || from == Type::kNone) unsupported();
  const bool pair = to == Type::kF16x2 || to == Type::kBF16x2;
  if ((flags & kFlagSatFinite) != 0 && !pair) unsupported();
  expectOperands(pair ? 3 : 2, pair ? 3 : 2);
  // The register may be wider than the type: only its low bits count. Floating-point ones must fit.
  const std::uint32_t a = source(operand(1), from);
  const std::uint32_t b = pair ? source(operand(2), from) : 0;
  const std::uint32_t d = result(operand(0), to);
  emit(isaOps().convert(to, from, flags), {d, a, b}, flags);
  finishResult();
}

}  // namespace olpager::simgpu::ptx
