// Decoding of memory accesses, atomics and conversions between address spaces.
#include <algorithm>
#include <bit>

#include "gpunode/simgpu/ptx/decoder.h"

namespace olpager::simgpu::ptx {
namespace {

// Caching and scope say nothing here: there are no caches, and scopes are all the widest. (For
// loads .cs is kept: ops_memory.cpp.
bool isHint(std::string_view m) {
  static constexpr std::string_view kHints[] = {
      "ca",          "cg",         "cs",          "lu",           "cv",
      "wb",          "wt",         "nc",          "weak",         "cta",
      "cluster",     "gpu",        "sys",         "unified",      "mmio",
      "noftz",       "evict_last", "evict_first", "evict_normal", "evict_unchanged",
      "no_allocate", "ldu"};
  if (m.substr(0, 3) == "L1:" || m.substr(0, 3) == "L2:") return true;
  return std::find(std::begin(kHints), std::end(kHints), m) != std::end(kHints);
}

Space takeSpace(Modifiers& mods) {
  if (mods.take("global")) return Space::kGlobal;
  if (mods.take("const")) return Space::kConst;
  if (mods.takeAny({"shared", "shared::cta", "shared::cluster"})) return Space::kShared;
  if (mods.take("local")) return Space::kLocal;
  if (mods.takeAny({"param", "param::entry", "param::func"})) return Space::kParam;
  return Space::kGeneric;
}

std::uint32_t takeVector(Modifiers& mods) {
  if (mods.take("v2")) return 2;
  if (mods.take("v4")) return 4;
  if (mods.take("v8")) return 8;
  return 1;
}

std::uint32_t takeOrder(Modifiers& mods) {
  if (mods.takeAny({"acquire", "release", "acq_rel"})) return kStrong | kOrdered;
  if (mods.takeAny({"volatile", "relaxed"})) return kStrong;
  return 0;
}

}  // namespace

void FunctionDecoder::load(Modifiers& mods) {
  const std::uint32_t flags = takeOrder(mods) | (mods.take("cs") ? kOnce : 0);
  const Space space = takeSpace(mods);
  const std::uint32_t vector = takeVector(mods);
  mods.drop(isHint);
  const Type type = mods.takeType();
  finish(mods);
  if (type == Type::kNone || type == Type::kPred) unsupported();
  expectOperands(2, 3);  // a cache policy may follow
  if (space == Space::kParam) return parameterAccess(false, type, vector);
  memoryAccess(false, space, type, vector, flags, 0);
}

void FunctionDecoder::store(Modifiers& mods) {
  const std::uint32_t flags = takeOrder(mods);
  const Space space = takeSpace(mods);
  const std::uint32_t vector = takeVector(mods);
  mods.drop(isHint);
  const Type type = mods.takeType();
  finish(mods);
  if (type == Type::kNone || type == Type::kPred || space == Space::kConst) unsupported();
  expectOperands(2, 3);
  if (space == Space::kParam) return parameterAccess(true, type, vector);
  memoryAccess(true, space, type, vector, flags, 0);
}

void FunctionDecoder::parameterAccess(bool is_store, Type type, std::uint32_t vector) {
  const Operand& where = operand(is_store ? 0 : 1);
  const Operand& data = operand(is_store ? 1 : 0);
  if (where.kind != OperandKind::kAddress) fail("address expected");
  if (!where.items.empty()) unsupported();
  if (where.symbol.index < 0) {  // through a register: only a kernel's parameters have addresses
    if (is_store || !function_.is_entry) unsupported();
    return memoryAccess(false, Space::kGeneric, type, vector, 0, kParamWindow);
  }
  const Symbol& symbol = symbolOf(where.symbol);
  if (symbol.space != Space::kParam) fail("'" + symbol.name + "' is no parameter");
  const bool of_entry = function_.is_entry && symbol.is_formal;
  if (of_entry && is_store) unsupported();
  const std::uint32_t bytes = typeSize(type);
  if (where.value > symbol.size || std::uint64_t{bytes} * vector > symbol.size - where.value) {
    fail("access behind the end of '" + symbol.name + "'");
  }
  for (std::uint32_t v = 0; v < vector; ++v) {
    const Operand* item = &data;
    if (vector > 1) {
      if (data.kind != OperandKind::kVector || data.items.size() != vector)
        fail("vector operand of the wrong size");
      item = &data.items[v];
    }
    if (!is_store && item->kind == OperandKind::kSink) continue;
    std::uint32_t reg_bytes =
        item->kind == OperandKind::kRegister ? registerBytes(*item) : std::max(2U, bytes);
    if (reg_bytes < bytes) fail("register is too small");
    std::uint32_t reg = 0;
    if (is_store) {
      reg = item->kind == OperandKind::kRegister ? slot(item->reg) : source(*item, type);
    } else {
      if (item->kind != OperandKind::kRegister) fail("register expected as destination");
      reg = slot(item->reg);
    }
    const bool sign = !is_store && isSigned(type);
    Op& op = emit(of_entry ? broadcastParamOp(bytes, sign, reg_bytes)
                           : paramOp(is_store, bytes, sign, reg_bytes));
    op.r[0] = reg;
    op.imm = symbol.offset + where.value + std::uint64_t{v} * bytes;
  }
}

void FunctionDecoder::memoryAccess(bool is_store, Space space, Type type, std::uint32_t vector,
                                   std::uint32_t flags, std::uint64_t window) {
  const Operand& data = operand(is_store ? 1 : 0);
  if (vector > 1 && (data.kind != OperandKind::kVector || data.items.size() != vector)) {
    fail("vector operand of the wrong size");
  }
  MemoryKind kind;
  kind.store = is_store;
  kind.type = type;
  kind.vector = vector;
  kind.space = space == Space::kShared || space == Space::kLocal ? space : Space::kGeneric;
  kind.reg_bytes = std::max(2U, typeSize(type));
  // All elements are registers of one size as a rule; else the data go through temporaries.
  const auto item = [&](std::uint32_t v) -> const Operand& {
    return vector > 1 ? data.items[v] : data;
  };
  std::uint32_t width = 0;
  bool uniform = true;
  for (std::uint32_t v = 0; v < vector; ++v) {
    const std::uint32_t bytes = item(v).kind == OperandKind::kRegister ? registerBytes(item(v)) : 0;
    if (bytes == 0) continue;
    uniform = uniform && (width == 0 || width == bytes);
    width = std::max(width, bytes);
  }
  if (width != 0) {
    if (width < typeSize(type) || !uniform) unsupported();
    kind.reg_bytes = width;
  }
  std::uint32_t regs[8] = {};
  for (std::uint32_t v = 0; v < vector; ++v) {
    if (is_store) {
      regs[v] = sourceBytes(item(v), kind.reg_bytes);
    } else if (item(v).kind == OperandKind::kSink) {
      regs[v] = temporary(kind.reg_bytes);
    } else {
      if (item(v).kind != OperandKind::kRegister) fail("register expected as destination");
      regs[v] = slot(item(v).reg);
    }
  }
  const Address where = address(operand(is_store ? 0 : 1));
  Op& op = emit(isaOps().memory(kind));
  std::copy(regs, regs + 8, op.r);
  op.r[8] = where.reg;
  op.imm = where.offset + window;
  op.flags = flags | (where.narrow ? kAddress32 : 0);
  if (where.narrow && window != 0) unsupported();
}

void FunctionDecoder::atomic(Modifiers& mods) {
  const bool reduce = instr_->parts[0] == "red";
  if (mods.take("async")) unsupported();
  mods.takeAny({"relaxed", "acquire", "release", "acq_rel"});
  const Space space = takeSpace(mods);
  const std::uint32_t vector = takeVector(mods);
  mods.drop(isHint);
  static const auto& kKinds = *new std::unordered_map<std::string_view, Atomic>{
      {"add", Atomic::kAdd},   {"min", Atomic::kMin}, {"max", Atomic::kMax}, {"inc", Atomic::kInc},
      {"dec", Atomic::kDec},   {"and", Atomic::kAnd}, {"or", Atomic::kOr},   {"xor", Atomic::kXor},
      {"exch", Atomic::kExch}, {"cas", Atomic::kCas}};
  const auto kind = kKinds.find(mods.takeFirst());
  if (kind == kKinds.end() || space == Space::kConst || space == Space::kLocal ||
      space == Space::kParam)
    unsupported();
  const Type type = mods.takeType();
  finish(mods);
  const bool cas = kind->second == Atomic::kCas;
  const std::size_t base = reduce ? 0 : 1;  // of the address
  expectOperands(base + (cas ? 3 : 2), base + (cas ? 4 : 3));
  std::uint32_t regs[13];
  std::fill(std::begin(regs), std::end(regs), kNoTarget);
  if (vector == 1) {
    regs[1] = source(operand(base + 1), type);
    if (cas) regs[2] = source(operand(base + 2), type);
    if (!reduce) regs[0] = result(operand(0), type);
  } else {
    const Operand& data = operand(base + 1);
    if (data.kind != OperandKind::kVector || data.items.size() != vector)
      fail("vector operand of the wrong size");
    for (std::uint32_t v = 0; v < vector; ++v)
      regs[v < 4 ? 4 + v : 5 + v] = source(data.items[v], type);
    if (!reduce) {
      if (vector > 4) unsupported();
      const Operand& old = operand(0);
      if (old.kind != OperandKind::kVector || old.items.size() != vector)
        fail("vector operand of the wrong size");
      for (std::uint32_t v = 0; v < vector; ++v) regs[v] = result(old.items[v], type);
    }
  }
  const Address where = address(operand(base));
  const auto offset = static_cast<std::int64_t>(where.offset);
  if (offset != static_cast<std::int32_t>(offset)) fail("address offset out of range");
  Op& op = emit(atomicOp(kind->second, type, vector, space == Space::kShared));
  std::copy(std::begin(regs), std::end(regs), op.r);
  op.r[8] = where.reg;
  op.imm = (std::uint64_t{vector} << 32) | static_cast<std::uint32_t>(offset);
  op.flags = where.narrow ? kAddress32 : 0;
  finishResult();
}

void FunctionDecoder::cvta(Modifiers& mods) {
  const bool to = mods.take("to");
  const Space space = takeSpace(mods);
  const Type type = mods.takeType();
  finish(mods);
  expectOperands(2, 2);
  const std::uint32_t bytes = typeSize(type);
  if ((bytes != 4 && bytes != 8) || space == Space::kGeneric) unsupported();
  const std::uint32_t from = sourceBytes(operand(1), bytes);
  const std::uint32_t d = result(operand(0), type);
  Convert kind = Convert::kToGlobal;
  if (space == Space::kShared) kind = to ? Convert::kToShared : Convert::kFromShared;
  if (space == Space::kLocal) kind = to ? Convert::kToLocal : Convert::kFromLocal;
  if (space == Space::kParam) kind = to ? Convert::kToParam : Convert::kFromParam;
  if (bytes == 4 && kind != Convert::kToGlobal) unsupported();
  if (kind == Convert::kToGlobal) {
    Op& op = emit(isaOps().integer(Alu::kMov, bytes == 8 ? Type::kB64 : Type::kB32, 0));
    op.r[0] = d;
    op.r[1] = from;
    return;
  }
  Op& op = emit(cvtaOp(kind, bytes, bytes));
  op.r[0] = d;
  op.r[1] = from;
}

void FunctionDecoder::isspacep(Modifiers& mods) {
  const bool cluster =
      std::find(mods.left().begin(), mods.left().end(), "shared::cluster") != mods.left().end();
  const Space space = takeSpace(mods);
  finish(mods);
  if (space == Space::kGeneric) unsupported();
  (void)cluster;  // both windows of shared memory are one
  expectOperands(2, 2);
  const std::uint32_t a = source(operand(1), Type::kU64);
  const std::uint32_t p = predicateResult(operand(0));
  Op& op = emit(isspacepOp(space));
  op.r[0] = p;
  op.r[1] = a;
}

void FunctionDecoder::mapa(Modifiers& mods) {
  const bool rank_only = instr_->parts[0] == "getctarank";
  const bool shared = mods.takeAny({"shared::cluster", "shared"});
  const Type type = mods.takeType();
  finish(mods);
  const std::uint32_t bytes = typeSize(type);
  if (bytes != 4 && bytes != 8) unsupported();
  expectOperands(rank_only ? 2 : 3, rank_only ? 2 : 3);
  (void)shared;  // offsets and generic addresses keep the rank in the same bits
  const std::uint32_t a = source(operand(1), type);
  const std::uint32_t b = rank_only ? 0 : source(operand(2), Type::kU32);
  const std::uint32_t d = result(operand(0), rank_only ? Type::kU32 : type);
  Op& op =
      emit(cvtaOp(rank_only ? Convert::kGetCtaRank : Convert::kMapa, rank_only ? 4 : bytes, bytes));
  op.r[0] = d;
  op.r[1] = a;
  op.r[2] = b;
}

void FunctionDecoder::copyAsync(Modifiers& mods) {
  if (!mods.take("async")) unsupported();
  if (mods.take("bulk")) return copyBulk(mods);
  if (mods.takeAny({"commit_group", "wait_group", "wait_all"})) {
    // Copies are made where they are issued.
    finish(mods);
    emit(controlOp(Control::kNop));
    return;
  }
  if (mods.take("mbarrier")) {
    // The copies that it would wait for are made: without .noinc one arrival more is expected, and
    // there.
    if (!mods.take("arrive")) unsupported();
    const bool counted = mods.take("noinc");
    const bool shared = mods.takeAny({"shared", "shared::cta"});
    if (mods.takeType() != Type::kB64) unsupported();
    finish(mods);
    expectOperands(1, 1);
    if (!counted) {
      emit(controlOp(Control::kNop));
      return;
    }
    const Address where = address(operand(0));
    Op& op = emit(mbarrierOp(Mbarrier::kArrive));
    op.r[0] = op.r[2] = kNoTarget;
    op.r[8] = where.reg;
    op.imm = where.offset;
    op.flags = (where.narrow ? kAddress32 : 0) | (shared ? 0x100 : 0);
    return;
  }
  if (!mods.takeAny({"ca", "cg"}) || !mods.takeAny({"shared", "shared::cta"}) ||
      !mods.take("global"))
    unsupported();
  mods.drop(isHint);
  finish(mods);
  expectOperands(3, 5);
  if (operand(2).kind != OperandKind::kImmediate) fail("immediate size expected");
  const auto bytes = static_cast<std::uint32_t>(operand(2).value);
  if (bytes != 4 && bytes != 8 && bytes != 16) unsupported();
  std::uint32_t source_bytes = kNoTarget;
  if (operandCount() >= 4) {
    const Operand& fourth = operand(3);
    if (fourth.kind == OperandKind::kImmediate || registerBytes(fourth) == 4) {
      if (fourth.kind == OperandKind::kRegister &&
          function_.registers[static_cast<std::size_t>(fourth.reg)].type == Type::kPred) {
        unsupported();
      }
      source_bytes = source(fourth, Type::kU32);
    } else if (registerBytes(fourth) != 8) {
      unsupported();
    }
  }
  const Address to = address(operand(0));
  const Address from = address(operand(1));
  if (from.narrow) unsupported();
  Op& op = emit(copyAsyncOp());
  op.r[2] = bytes;
  op.r[3] = source_bytes;
  op.r[7] = from.reg;
  op.r[8] = to.reg;
  op.imm = static_cast<std::uint32_t>(to.offset) | from.offset << 32;
  op.flags = to.narrow ? kAddress32 : 0;
}

// cp.async.bulk of plain memory between global and shared, or shared and a shared memory of the
// cluster; tensors, reductions and multicasts are refused.
void FunctionDecoder::copyBulk(Modifiers& mods) {
  if (mods.takeAny({"commit_group", "wait_group"})) {
    mods.take("read");
    finish(mods);
    emit(controlOp(Control::kNop));
    return;
  }
  const auto takePlace = [&] {
    const std::string_view name = mods.takeFirst();
    if (name != "global" && name != "shared::cta" && name != "shared::cluster") unsupported();
    return name != "global";
  };
  std::uint32_t flags = takePlace() ? kBulkToShared : 0;
  if (takePlace()) flags |= kBulkFromShared;
  const bool tells = mods.take("mbarrier::complete_tx::bytes");
  if (!tells && !mods.take("bulk_group")) unsupported();
  const bool hint = mods.take("L2::cache_hint");
  finish(mods);
  if (tells != ((flags & kBulkToShared) != 0)) unsupported();
  const std::size_t count = tells ? 4 : 3;
  expectOperands(count + (hint ? 1 : 0), count + (hint ? 1 : 0));
  const std::uint32_t bytes = source(operand(2), Type::kU32);
  const Address to = address(operand(0));
  const Address from = address(operand(1));
  const Address barrier = tells ? address(operand(3)) : Address{kNoTarget, 0, false};
  const auto fits = [](std::uint64_t offset) {
    const auto value = static_cast<std::int64_t>(offset);
    return value == static_cast<std::int32_t>(value);
  };
  if (!fits(to.offset) || !fits(from.offset) || barrier.offset > INT32_MAX)
    fail("address offset out of range");
  if (to.narrow) flags |= kAddress32;
  if (from.narrow) flags |= kBulkFrom32;
  if (barrier.narrow) flags |= kBulkBarrier32;
  Op& op = emit(copyBulkOp());
  op.r[3] = bytes;
  op.r[4] = barrier.reg;
  op.r[5] = static_cast<std::uint32_t>(barrier.offset);
  op.r[7] = from.reg;
  op.r[8] = to.reg;
  op.imm = static_cast<std::uint32_t>(to.offset) | from.offset << 32;
  op.flags = flags;
}

void FunctionDecoder::stack(Modifiers& mods) {
  const std::string_view name = instr_->parts[0];
  const Type type = mods.takeType();
  finish(mods);
  if (type != Type::kU32 && type != Type::kU64) unsupported();
  out_.uses_alloca = true;
  const std::uint32_t bytes = typeSize(type);
  if (name == "alloca") {
    expectOperands(2, 3);
    std::uint64_t align = 16;
    if (operandCount() == 3) {
      if (operand(2).kind != OperandKind::kImmediate) fail("immediate alignment expected");
      align = operand(2).value;
      if (!std::has_single_bit(align) || align > 4096) unsupported();
    }
    const std::uint32_t size = source(operand(1), type);
    const std::uint32_t d = result(operand(0), type);
    emit(stackOp(Stack::kAlloca, bytes), {d, size}).imm = align;
  } else {
    expectOperands(1, 1);
    const bool save = name == "stacksave";
    const std::uint32_t d = save ? result(operand(0), type) : 0;
    const std::uint32_t saved = save ? 0 : source(operand(0), type);
    emit(stackOp(save ? Stack::kSave : Stack::kRestore, bytes), {d, saved});
  }
  finishResult();
}

/// The arrivals that a state says are missing: its lowest bits.
void FunctionDecoder::pendingCount(Modifiers& mods) {
  if (mods.takeType() != Type::kB64) unsupported();
  finish(mods);
  expectOperands(2, 2);
  const std::uint32_t state = source(operand(1), Type::kB64);
  const std::uint32_t low = temporary(4);
  const std::uint32_t d = result(operand(0), Type::kU32);
  emit(resizeOp(4, 8, false), {low, state});
  emit(isaOps().integer(Alu::kAnd, Type::kB32, 0), {d, low, context_.pool.value(0xFFFFF, 4)});
  finishResult();
}

void FunctionDecoder::mbarrier(Modifiers& mods) {
  const std::string_view what = mods.takeFirst();
  Mbarrier kind = Mbarrier::kInit;
  bool parity = false;
  if (what == "init")
    kind = Mbarrier::kInit;
  else if (what == "inval")
    kind = Mbarrier::kInval;
  else if (what == "arrive")
    kind = Mbarrier::kArrive;
  else if (what == "arrive_drop")
    kind = Mbarrier::kArriveDrop;
  else if (what == "expect_tx")
    kind = Mbarrier::kExpect;
  else if (what == "complete_tx")
    kind = Mbarrier::kComplete;
  else if (what == "test_wait" || what == "try_wait")
    kind = Mbarrier::kTestWait;
  else if (what == "pending_count")
    return pendingCount(mods);
  else
    unsupported();
  if (mods.take("expect_tx")) {
    if (kind == Mbarrier::kArrive)
      kind = Mbarrier::kArriveExpect;
    else if (kind == Mbarrier::kArriveDrop)
      kind = Mbarrier::kArriveDropExpect;
    else
      unsupported();
  } else if (kind == Mbarrier::kArrive || kind == Mbarrier::kArriveDrop) {
    mods.take("noComplete");  // a promise
  }
  if (mods.take("parity")) parity = true;
  if (parity && kind != Mbarrier::kTestWait) unsupported();
  mods.takeAny({"acquire", "release", "relaxed"});
  const Space space = takeSpace(mods);
  mods.drop(isHint);
  if (mods.takeType() != Type::kB64) unsupported();
  finish(mods);
  const bool bytes = kind == Mbarrier::kArriveExpect || kind == Mbarrier::kArriveDropExpect ||
                     kind == Mbarrier::kExpect || kind == Mbarrier::kComplete;
  const bool has_result = kind != Mbarrier::kInit && kind != Mbarrier::kInval &&
                          kind != Mbarrier::kExpect && kind != Mbarrier::kComplete;
  const std::size_t base = has_result ? 1 : 0;
  const Address where = address(operand(base));
  std::uint32_t second = kNoTarget;
  if (operandCount() <= base + 1) {
    if (bytes) fail("operand missing");
  } else {
    second =
        source(operand(base + 1), kind == Mbarrier::kTestWait && !parity ? Type::kB64 : Type::kU32);
  }
  std::uint32_t d = kNoTarget;
  if (kind == Mbarrier::kTestWait)
    d = predicateResult(operand(0));
  else if (has_result && operand(0).kind != OperandKind::kSink)
    d = result(operand(0), Type::kB64);
  Op& op = emit(mbarrierOp(parity ? Mbarrier::kTestWaitParity : kind));
  op.r[0] = d;
  op.r[2] = second;
  op.r[8] = where.reg;
  op.imm = where.offset;
  op.flags = (where.narrow ? kAddress32 : 0) | (space == Space::kShared ? 0x100 : 0);
}

}  // namespace olpager::simgpu::ptx
