// Decoding of operations between lanes and threads, of hints, and the table of all instructions.
#include <algorithm>

#include "gpunode/simgpu/ptx/decoder.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {

void FunctionDecoder::shuffle(Modifiers& mods) {
  const bool sync = mods.take("sync");
  WarpOp kind = WarpOp::kShflIdx;
  if (mods.take("up"))
    kind = WarpOp::kShflUp;
  else if (mods.take("down"))
    kind = WarpOp::kShflDown;
  else if (mods.take("bfly"))
    kind = WarpOp::kShflBfly;
  else if (!mods.take("idx"))
    unsupported();
  if (typeSize(mods.takeType()) != 4) unsupported();
  finish(mods);
  expectOperands(sync ? 5 : 4, sync ? 5 : 4);
  std::uint32_t r[6] = {};
  r[1] = kNoTarget;
  r[2] = sourceBytes(operand(1), 4);
  r[3] = sourceBytes(operand(2), 4);
  r[4] = sourceBytes(operand(3), 4);
  if (sync) r[5] = sourceBytes(operand(4), 4);
  r[0] = result(operand(0), Type::kB32);
  if (!operand(0).items.empty()) r[1] = predicateResult(operand(0).items[0]);
  Op& op = emit(warpOp(kind, Type::kB32));
  std::copy(r, r + 6, op.r);
  op.imm = sync ? 0 : 1;
}

void FunctionDecoder::vote(Modifiers& mods) {
  const bool sync = mods.take("sync");
  WarpOp kind = WarpOp::kVoteBallot;
  if (mods.take("all"))
    kind = WarpOp::kVoteAll;
  else if (mods.take("any"))
    kind = WarpOp::kVoteAny;
  else if (mods.take("uni"))
    kind = WarpOp::kVoteUni;
  else if (!mods.take("ballot"))
    unsupported();
  const Type type = mods.takeType();
  if (type != (kind == WarpOp::kVoteBallot ? Type::kB32 : Type::kPred)) unsupported();
  finish(mods);
  expectOperands(sync ? 3 : 2, sync ? 3 : 2);
  bool negated = false;
  const std::uint32_t a = predicateSource(operand(1), negated);
  const std::uint32_t mask = sync ? sourceBytes(operand(2), 4) : 0;
  const std::uint32_t d =
      kind == WarpOp::kVoteBallot ? result(operand(0), Type::kB32) : predicateResult(operand(0));
  Op& op = emit(warpOp(kind, Type::kB32));
  op.r[0] = d;
  op.r[2] = a;
  op.r[5] = mask;
  op.flags = negated ? 1 : 0;
  op.imm = sync ? 0 : 1;
}

void FunctionDecoder::match(Modifiers& mods) {
  const bool all = mods.take("all");
  if (!all && !mods.take("any")) unsupported();
  if (!mods.take("sync")) unsupported();
  const Type type = mods.takeType();
  if (typeSize(type) != 4 && typeSize(type) != 8) unsupported();
  finish(mods);
  expectOperands(3, 3);
  const std::uint32_t a = sourceBytes(operand(1), typeSize(type));
  const std::uint32_t mask = sourceBytes(operand(2), 4);
  const std::uint32_t d = result(operand(0), Type::kB32);
  const std::uint32_t p =
      operand(0).items.empty() ? kNoTarget : predicateResult(operand(0).items[0]);
  Op& op = emit(warpOp(all ? WarpOp::kMatchAll : WarpOp::kMatchAny, type));
  op.r[0] = d;
  op.r[1] = p;
  op.r[2] = a;
  op.r[5] = mask;
}

void FunctionDecoder::activemask(Modifiers& mods) {
  if (mods.takeType() != Type::kB32) unsupported();
  finish(mods);
  expectOperands(1, 1);
  const std::uint32_t d = result(operand(0), Type::kB32);
  emit(warpOp(WarpOp::kActiveMask, Type::kB32)).r[0] = d;
}

void FunctionDecoder::elect(Modifiers& mods) {
  if (!mods.take("sync")) unsupported();
  finish(mods);
  expectOperands(2, 2);
  if (operand(0).items.empty()) fail("predicate expected as destination");
  const std::uint32_t mask = sourceBytes(operand(1), 4);
  const std::uint32_t d =
      operand(0).kind == OperandKind::kSink ? kNoTarget : result(operand(0), Type::kB32);
  const std::uint32_t p = predicateResult(operand(0).items[0]);
  Op& op = emit(warpOp(WarpOp::kElect, Type::kB32));
  op.r[0] = d;
  op.r[1] = p;
  op.r[5] = mask;
}

void FunctionDecoder::redux(Modifiers& mods) {
  static const auto& kKinds = *new std::unordered_map<std::string_view, WarpOp>{
      {"add", WarpOp::kReduxAdd}, {"min", WarpOp::kReduxMin}, {"max", WarpOp::kReduxMax},
      {"and", WarpOp::kReduxAnd}, {"or", WarpOp::kReduxOr},   {"xor", WarpOp::kReduxXor}};
  if (!mods.take("sync")) unsupported();
  const auto kind = kKinds.find(mods.takeFirst());
  if (kind == kKinds.end()) unsupported();
  const Type type = mods.takeType();
  finish(mods);
  if (typeSize(type) != 4) unsupported();
  if (type == Type::kF32 && kind->second != WarpOp::kReduxMin && kind->second != WarpOp::kReduxMax)
    unsupported();
  expectOperands(3, 3);
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t mask = sourceBytes(operand(2), 4);
  const std::uint32_t d = result(operand(0), type);
  Op& op = emit(warpOp(kind->second, type));
  op.r[0] = d;
  op.r[2] = a;
  op.r[5] = mask;
}

// Only doubles: 8 x 4 times 4 x 8.
void FunctionDecoder::mma(Modifiers& mods) {
  if (!mods.take("sync") || !mods.take("aligned") || !mods.take("m8n8k4") || !mods.take("row") ||
      !mods.take("col")) {
    unsupported();
  }
  for (int i = 0; i < 4; ++i) {
    if (mods.takeType() != Type::kF64) unsupported();
  }
  finish(mods);
  expectOperands(4, 4);
  const auto items = [&](std::size_t at, std::size_t count) -> const std::vector<Operand>& {
    if (operand(at).kind != OperandKind::kVector || operand(at).items.size() != count) {
      fail("vector operand of the wrong size");
    }
    return operand(at).items;
  };
  std::uint32_t r[6] = {};
  r[2] = source(items(1, 1)[0], Type::kF64);
  r[3] = source(items(2, 1)[0], Type::kF64);
  for (std::size_t i = 0; i < 2; ++i) r[4 + i] = source(items(3, 2)[i], Type::kF64);
  for (std::size_t i = 0; i < 2; ++i) r[i] = result(items(0, 2)[i], Type::kF64);
  Op& op = emit(warpOp(WarpOp::kMmaF64, Type::kF64));
  std::copy(r, r + 6, op.r);
}

void FunctionDecoder::bar(Modifiers& mods) {
  if (mods.take("warp")) {
    if (!mods.take("sync")) unsupported();
    finish(mods);
    expectOperands(1, 1);
    const std::uint32_t mask = sourceBytes(operand(0), 4);
    emit(controlOp(Control::kSyncWarp)).r[1] = mask;
    return;
  }
  if (mods.take("cluster")) {
    const bool arrive = mods.take("arrive");
    if (!arrive && !mods.take("wait")) unsupported();
    mods.takeAny({"release", "relaxed", "acquire"});
    mods.take("aligned");
    finish(mods);
    emit(controlOp(arrive ? Control::kClusterArrive : Control::kClusterWait));
    return;
  }
  out_.uses_barriers = true;
  mods.take("cta");
  mods.take("aligned");
  if (mods.take("red")) {
    Reduction reduction = Reduction::kNone;
    if (mods.take("popc"))
      reduction = Reduction::kPopc;
    else if (mods.take("and"))
      reduction = Reduction::kAnd;
    else if (mods.take("or"))
      reduction = Reduction::kOr;
    mods.take("aligned");
    const Type type = mods.takeType();
    finish(mods);
    if (reduction == Reduction::kNone ||
        type != (reduction == Reduction::kPopc ? Type::kU32 : Type::kPred))
      unsupported();
    expectOperands(3, 4);
    const std::size_t last = operandCount() - 1;
    const std::uint32_t id = sourceBytes(operand(1), 4);
    const std::uint32_t count = last == 3 ? sourceBytes(operand(2), 4) : kNoTarget;
    bool negated = false;
    const std::uint32_t p = predicateSource(operand(last), negated);
    const std::uint32_t d = reduction == Reduction::kPopc ? result(operand(0), Type::kU32)
                                                          : predicateResult(operand(0));
    Op& op = emit(controlOp(Control::kBarrierRed));
    op.r[0] = d;
    op.r[1] = id;
    op.r[2] = count;
    op.r[3] = p;
    op.flags = (negated ? 1 : 0) | static_cast<std::uint32_t>(reduction) << 1;
    return;
  }
  const bool arrive = mods.take("arrive");
  if (!arrive && !mods.take("sync")) unsupported();
  mods.take("aligned");
  finish(mods);
  expectOperands(arrive ? 2 : 1, 2);
  const std::uint32_t id = sourceBytes(operand(0), 4);
  const std::uint32_t count = operandCount() == 2 ? sourceBytes(operand(1), 4) : kNoTarget;
  Op& op = emit(controlOp(arrive ? Control::kBarrierArrive : Control::kBarrier));
  op.r[1] = id;
  op.r[2] = count;
}

void FunctionDecoder::fence(Modifiers&) {
  // Every variant is the strongest one.
  emit(controlOp(Control::kFence));
}

void FunctionDecoder::hint(Modifiers&) { emit(controlOp(Control::kNop)); }

void FunctionDecoder::createpolicy(Modifiers&) {
  const std::uint32_t d = result(operand(0), Type::kB64);
  const std::uint32_t zero = context_.pool.value(0, 8);
  Op& op = emit(isaOps().integer(Alu::kMov, Type::kB64, 0));
  op.r[0] = d;
  op.r[1] = zero;
}

void FunctionDecoder::nanosleep(Modifiers&) { emit(controlOp(Control::kNanosleep)); }

const std::unordered_map<std::string_view, FunctionDecoder::Handler>& FunctionDecoder::handlers() {
  using F = FunctionDecoder;
  static const auto& kHandlers = *new std::unordered_map<std::string_view, Handler>{
      {"add", &F::add},
      {"sub", &F::sub},
      {"addc", &F::addc},
      {"subc", &F::subc},
      {"mul", &F::mul},
      {"mad", &F::mad},
      {"madc", &F::madc},
      {"mul24", &F::mul24},
      {"mad24", &F::mul24},
      {"fma", &F::fma},
      {"div", &F::div},
      {"rem", &F::rem},
      {"min", &F::minMax},
      {"max", &F::minMax},
      {"abs", &F::unaryMath},
      {"neg", &F::unaryMath},
      {"sqrt", &F::unaryMath},
      {"rcp", &F::unaryMath},
      {"rsqrt", &F::unaryMath},
      {"sin", &F::unaryMath},
      {"cos", &F::unaryMath},
      {"ex2", &F::unaryMath},
      {"lg2", &F::unaryMath},
      {"tanh", &F::unaryMath},
      {"brev", &F::unaryMath},
      {"and", &F::logic},
      {"or", &F::logic},
      {"xor", &F::logic},
      {"not", &F::logic},
      {"cnot", &F::logic},
      {"shl", &F::shift},
      {"shr", &F::shift},
      {"popc", &F::bitCount},
      {"clz", &F::bitCount},
      {"bfind", &F::bitCount},
      {"bfe", &F::bitField},
      {"bfi", &F::bitField},
      {"bmsk", &F::bitField},
      {"szext", &F::bitField},
      {"prmt", &F::prmt},
      {"lop3", &F::lop3},
      {"shf", &F::funnel},
      {"sad", &F::sad},
      {"dp4a", &F::dotProduct},
      {"dp2a", &F::dotProduct},
      {"vadd2", &F::video},
      {"vadd4", &F::video},
      {"vsub2", &F::video},
      {"vsub4", &F::video},
      {"vavrg2", &F::video},
      {"vavrg4", &F::video},
      {"vabsdiff2", &F::video},
      {"vabsdiff4", &F::video},
      {"vmin2", &F::video},
      {"vmin4", &F::video},
      {"vmax2", &F::video},
      {"vmax4", &F::video},
      {"vset2", &F::video},
      {"vset4", &F::video},
      {"fns", &F::fns},
      {"copysign", &F::copysign},
      {"testp", &F::testp},
      {"selp", &F::select},
      {"slct", &F::select},
      {"setp", &F::setp},
      {"set", &F::set},
      {"mov", &F::mov},
      {"cvt", &F::cvt},
      {"cvta", &F::cvta},
      {"isspacep", &F::isspacep},
      {"ld", &F::load},
      {"ldu", &F::load},
      {"st", &F::store},
      {"atom", &F::atomic},
      {"red", &F::atomic},
      {"cp", &F::copyAsync},
      {"mbarrier", &F::mbarrier},
      {"alloca", &F::stack},
      {"stacksave", &F::stack},
      {"stackrestore", &F::stack},
      {"mapa", &F::mapa},
      {"getctarank", &F::mapa},
      {"tex", &F::texture},
      {"tld4", &F::texture},
      {"suld", &F::surface},
      {"sust", &F::surface},
      {"shfl", &F::shuffle},
      {"vote", &F::vote},
      {"match", &F::match},
      {"activemask", &F::activemask},
      {"elect", &F::elect},
      {"redux", &F::redux},
      {"mma", &F::mma},
      {"bar", &F::bar},
      {"barrier", &F::bar},
      {"membar", &F::fence},
      {"fence", &F::fence},
      {"prefetch", &F::hint},
      {"prefetchu", &F::hint},
      {"discard", &F::hint},
      {"applypriority", &F::hint},
      {"pmevent", &F::hint},
      {"griddepcontrol", &F::hint},
      {"setmaxnreg", &F::hint},
      {"createpolicy", &F::createpolicy},
      {"nanosleep", &F::nanosleep},
      {"trap", &F::trap},
      {"exit", &F::exitThread},
      {"ret", &F::ret},
      {"call", &F::call},
      {"bra", &F::bra},
      {"brx", &F::brx},
  };
  return kHandlers;
}

}  // namespace olpager::simgpu::ptx
