// The decoder's core: registers, operands, control flow.
#include <algorithm>
#include <bit>
#include <cstring>

#include "gpunode/simgpu/ptx/decoder.h"

namespace olpager::simgpu::ptx {
namespace {

std::uint32_t slotBytes(Type type) {
  return type == Type::kPred ? 4 : std::max(2U, typeSize(type));
}

struct SpecialName {
  std::string_view name;
  Special which;
};
constexpr SpecialName kSpecials[] = {
    {"%tid.x", Special::kTidX},
    {"%tid.y", Special::kTidY},
    {"%tid.z", Special::kTidZ},
    {"%ntid.x", Special::kNtidX},
    {"%ntid.y", Special::kNtidY},
    {"%ntid.z", Special::kNtidZ},
    {"%ctaid.x", Special::kCtaidX},
    {"%ctaid.y", Special::kCtaidY},
    {"%ctaid.z", Special::kCtaidZ},
    {"%nctaid.x", Special::kNctaidX},
    {"%nctaid.y", Special::kNctaidY},
    {"%nctaid.z", Special::kNctaidZ},
    {"%laneid", Special::kLaneid},
    {"%warpid", Special::kWarpid},
    {"%nwarpid", Special::kNwarpid},
    {"%smid", Special::kSmid},
    {"%nsmid", Special::kNsmid},
    {"%gridid", Special::kGridid},
    {"%lanemask_eq", Special::kLanemaskEq},
    {"%lanemask_le", Special::kLanemaskLe},
    {"%lanemask_lt", Special::kLanemaskLt},
    {"%lanemask_ge", Special::kLanemaskGe},
    {"%lanemask_gt", Special::kLanemaskGt},
    {"%clock", Special::kClock},
    {"%clock_hi", Special::kClockHi},
    {"%clock64", Special::kClock64},
    {"%globaltimer", Special::kGlobaltimer},
    {"%globaltimer_lo", Special::kGlobaltimerLo},
    {"%globaltimer_hi", Special::kGlobaltimerHi},
    {"%dynamic_smem_size", Special::kDynamicSmemSize},
    {"%total_smem_size", Special::kTotalSmemSize},
    {"%aggr_smem_size", Special::kAggrSmemSize},
    {"%clusterid.x", Special::kClusteridX},
    {"%clusterid.y", Special::kClusteridY},
    {"%clusterid.z", Special::kClusteridZ},
    {"%nclusterid.x", Special::kNclusteridX},
    {"%nclusterid.y", Special::kNclusteridY},
    {"%nclusterid.z", Special::kNclusteridZ},
    {"%cluster_ctaid.x", Special::kClusterCtaidX},
    {"%cluster_ctaid.y", Special::kClusterCtaidY},
    {"%cluster_ctaid.z", Special::kClusterCtaidZ},
    {"%cluster_nctaid.x", Special::kClusterNctaidX},
    {"%cluster_nctaid.y", Special::kClusterNctaidY},
    {"%cluster_nctaid.z", Special::kClusterNctaidZ},
    {"%cluster_ctarank", Special::kClusterCtarank},
    {"%cluster_nctarank", Special::kClusterNctarank},
};

// These change the flow of control or may wait: under a guard they are branched around instead of
// masked.
bool isControl(std::string_view name) {
  if (name == "bra" || name == "brx" || name == "call" || name == "ret" || name == "exit" ||
      name == "trap" || name == "bar" || name == "barrier" || name == "shfl" || name == "vote" ||
      name == "match" || name == "elect" || name == "redux" || name == "mma" ||
      name == "nanosleep") {
    return true;
  }
  return false;
}

}  // namespace

// --- constants ---

std::uint32_t ConstantPool::add(std::uint64_t bits, std::uint64_t high, std::uint32_t bytes) {
  const std::size_t at = program_.constants.size() * 8;
  program_.constants.resize(program_.constants.size() + std::size_t{bytes} * kWarpSize / 8);
  auto* const to = reinterpret_cast<std::byte*>(program_.constants.data()) + at;
  for (std::size_t lane = 0; lane < kWarpSize; ++lane) {
    std::memcpy(to + lane * bytes, &bits, std::min(8U, bytes));
    if (bytes == 16) std::memcpy(to + lane * bytes + 8, &high, 8);
  }
  return static_cast<std::uint32_t>(at) | kConstantBit;
}

std::uint32_t ConstantPool::value(std::uint64_t bits, std::uint32_t bytes, std::uint64_t high) {
  if (bytes < 8) bits &= (std::uint64_t{1} << (8 * bytes)) - 1;
  const auto [entry, fresh] = known_.try_emplace({bits, high, bytes}, 0);
  if (fresh) entry->second = add(bits, high, bytes);
  return entry->second;
}

std::uint32_t ConstantPool::predicate(bool holds) { return value(holds ? 0xFFFFFFFF : 0, 4); }

std::uint32_t ConstantPool::address(std::uint32_t global, std::uint64_t addend,
                                    std::uint32_t bytes) {
  return addressOf({.size = bytes, .index = global, .addend = addend});
}

std::uint32_t ConstantPool::codeAddress(std::uint32_t function, std::uint32_t bytes) {
  program_.takes_code_addresses = true;
  return addressOf({.size = bytes, .index = function, .of_function = true});
}

std::uint32_t ConstantPool::addressOf(const AddressConstant& what) {
  const std::uint64_t kind = what.of_function ? 0x200 : 0x100;
  const auto [entry, fresh] = known_.try_emplace({what.index, what.addend, kind + what.size}, 0);
  if (fresh) {
    entry->second = add(0, 0, what.size);
    program_.address_constants.push_back(what);
    program_.address_constants.back().offset = entry->second & ~kConstantBit;
  }
  return entry->second;
}

// --- modifiers ---

bool Modifiers::take(std::string_view name) {
  const auto found = std::find(left_.begin(), left_.end(), name);
  if (found == left_.end()) return false;
  left_.erase(found);
  return true;
}
bool Modifiers::takeAny(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (take(name)) return true;
  }
  return false;
}
Type Modifiers::takeType() {
  if (left_.empty()) return Type::kNone;
  const Type type = typeFromName(left_.front());
  if (type != Type::kNone) left_.erase(left_.begin());
  return type;
}
std::string_view Modifiers::takeFirst() {
  if (left_.empty()) return {};
  const std::string_view first = left_.front();
  left_.erase(left_.begin());
  return first;
}
void Modifiers::drop(bool (*unneeded)(std::string_view)) { std::erase_if(left_, unneeded); }

// --- operands ---

void FunctionDecoder::unsupported() const {
  throw DecodeError{instr_->line,
                    "instruction '" + std::string(instr_->opcode) + "' is not supported"};
}
void FunctionDecoder::fail(const std::string& what) const {
  throw DecodeError{instr_->line, what + " in '" + std::string(instr_->opcode) + "'"};
}

void FunctionDecoder::expectOperands(std::size_t low, std::size_t high) const {
  if (operandCount() < low || operandCount() > high) fail("wrong number of operands");
}

const Operand& FunctionDecoder::operand(std::size_t i) const {
  if (i >= operandCount()) fail("operand missing");
  return instr_->operands[i];
}

Op& FunctionDecoder::emit(OpFn fn) {
  if (fn == nullptr) unsupported();
  Op op;
  op.fn = fn;
  op.line = instr_ != nullptr ? instr_->line : function_.line;
  out_.ops.push_back(op);
  return out_.ops.back();
}

Op& FunctionDecoder::emit(OpFn fn, std::initializer_list<std::uint32_t> operands,
                          std::uint32_t flags) {
  Op& op = emit(fn);
  std::copy(operands.begin(), operands.end(), op.r);
  op.flags = flags;
  return op;
}

std::uint32_t FunctionDecoder::temporary(std::uint32_t bytes) {
  auto& all = temporaries_[bytes];
  std::size_t& used = temporaries_used_[bytes];
  if (used == all.size()) {
    all.push_back(out_.frame_bytes);
    out_.frame_bytes += bytes * kWarpSize;
  }
  return all[used++];
}

std::uint32_t FunctionDecoder::predicateSlot() { return temporary(2); }

const Symbol& FunctionDecoder::symbolOf(const SymbolRef& ref) const {
  const auto index = static_cast<std::size_t>(ref.index);
  return ref.module ? context_.ast.symbols[index] : function_.symbols[index];
}

std::uint32_t FunctionDecoder::registerBytes(const Operand& op) const {
  if (op.kind != OperandKind::kRegister) return 0;
  return slotBytes(function_.registers[static_cast<std::size_t>(op.reg)].type);
}

std::uint32_t FunctionDecoder::slot(std::int32_t reg) const {
  return slots_[static_cast<std::size_t>(reg)];
}

void FunctionDecoder::specialRegister(const Operand& op, std::uint32_t to, std::uint32_t bytes) {
  if (op.text.substr(0, 7) == "%envreg") {
    Op& out = emit(specialOp(Special::kEnvreg, bytes));
    out.r[0] = to;
    out.imm = static_cast<std::uint64_t>(std::atoi(std::string(op.text.substr(7)).c_str()));
    if (out.imm == 1 || out.imm == 2) out_.uses_grid_workspace = true;
    return;
  }
  static const auto& kReserved =
      *new std::unordered_map<std::string_view, std::uint64_t>{{"%reserved_smem_offset_begin", 0},
                                                               {"%reserved_smem_offset_0", 0},
                                                               {"%reserved_smem_offset_1", 1024},
                                                               {"%reserved_smem_offset_end", 2048},
                                                               {"%reserved_smem_offset_cap", 2048}};
  if (const auto reserved = kReserved.find(op.text); reserved != kReserved.end()) {
    out_.uses_reserved_shared = true;
    Op& out = emit(specialOp(Special::kReservedSharedBase, bytes));
    out.r[0] = to;
    out.imm = reserved->second;
    return;
  }
  if (op.text == "%is_explicit_cluster")
    fail("special register '" + std::string(op.text) + "' is not supported");
  for (const SpecialName& special : kSpecials) {
    if (special.name != op.text) continue;
    emit(specialOp(special.which, bytes)).r[0] = to;
    return;
  }
  fail("unknown register '" + std::string(op.text) + "'");
}

std::uint32_t FunctionDecoder::symbolAddress(const Operand& op, std::uint32_t bytes) {
  const Symbol& symbol = symbolOf(op.symbol);
  if (symbol.is_function) return context_.pool.codeAddress(symbol.index, bytes);
  const auto dynamic = [&](Special which, std::uint64_t offset) {
    const std::uint32_t to = temporary(bytes);
    Op& out = emit(specialOp(which, bytes));
    out.r[0] = to;
    out.imm = offset;
    return to;
  };
  switch (symbol.space) {
    case Space::kGlobal:
    case Space::kConst:
      return context_.pool.address(symbol.index, op.value, bytes);
    case Space::kShared:
      if (symbol.is_extern || symbol.size == 0)
        return dynamic(Special::kDynamicSharedBase, op.value);
      return context_.pool.value(
          context_.shared_offsets[static_cast<std::size_t>(op.symbol.index)] + op.value, bytes);
    case Space::kLocal:
      return dynamic(Special::kLocalBase, symbol.offset + op.value);
    case Space::kParam:
      if (!function_.is_entry || !symbol.is_formal)
        fail("the address of a device function's parameter is not supported");
      return context_.pool.value(symbol.offset + op.value, bytes);
    default:
      break;
  }
  fail("'" + symbol.name + "' has no address");
}

std::uint32_t FunctionDecoder::source(const Operand& op, Type type) {
  if (op.kind == OperandKind::kImmediate && isFloat(type) && typeSize(type) >= 4 &&
      type != Type::kF16x2 && type != Type::kBF16x2 && type != Type::kF32x2) {
    const auto number = static_cast<double>(static_cast<std::int64_t>(op.value));
    return type == Type::kF64
               ? context_.pool.value(std::bit_cast<std::uint64_t>(number), 8)
               : context_.pool.value(std::bit_cast<std::uint32_t>(static_cast<float>(number)), 4);
  }
  return sourceBytes(op, slotBytes(type), isSigned(type), isFloat(type));
}

std::uint32_t FunctionDecoder::sourceBytes(const Operand& op, std::uint32_t bytes, bool sign,
                                           bool is_float) {
  switch (op.kind) {
    case OperandKind::kRegister: {
      if (op.negated) fail("'!' before an operand that is no predicate");
      if (function_.registers[static_cast<std::size_t>(op.reg)].type == Type::kPred)
        fail("predicate register as an operand");
      const std::uint32_t have = registerBytes(op);
      if (have == bytes) return slot(op.reg);
      if (is_float) fail("register '" + std::string(op.text) + "' has the wrong size");
      const std::uint32_t to = temporary(bytes);
      Op& out = emit(resizeOp(bytes, have, sign));
      out.r[0] = to;
      out.r[1] = slot(op.reg);
      return to;
    }
    case OperandKind::kImmediate:
      return context_.pool.value(op.value, bytes,
                                 static_cast<std::int64_t>(op.value) < 0 ? ~std::uint64_t{0} : 0);
    case OperandKind::kFloat32:
      if (bytes == 8) {
        return context_.pool.value(std::bit_cast<std::uint64_t>(static_cast<double>(
                                       std::bit_cast<float>(static_cast<std::uint32_t>(op.value)))),
                                   8);
      }
      return context_.pool.value(op.value, bytes);
    case OperandKind::kFloat64:
      if (bytes == 4) {
        return context_.pool.value(
            std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(op.value))), 4);
      }
      return context_.pool.value(op.value, bytes);
    case OperandKind::kSymbol:
      return symbolAddress(op, bytes);
    case OperandKind::kSpecial: {
      const std::uint32_t to = temporary(bytes);
      if (bytes >= 4) {
        specialRegister(op, to, bytes);
      } else {
        const std::uint32_t wide = temporary(4);
        specialRegister(op, wide, 4);
        Op& out = emit(resizeOp(2, 4, false));
        out.r[0] = to;
        out.r[1] = wide;
      }
      return to;
    }
    case OperandKind::kVector: {
      // {a, b} in place of a wider register.
      const auto pieces = static_cast<std::uint32_t>(op.items.size());
      if (pieces == 0 || bytes % pieces != 0) fail("vector operand of the wrong size");
      std::uint32_t parts[8] = {};
      for (std::uint32_t i = 0; i < pieces; ++i) {
        parts[i] = sourceBytes(op.items[i], std::max(2U, bytes / pieces));
      }
      const std::uint32_t to = temporary(bytes);
      Op& out = emit(packOp(bytes / pieces, pieces, false));
      std::copy(parts, parts + pieces, out.r);
      out.r[8] = to;
      return to;
    }
    default:
      fail("operand of the wrong kind");
  }
}

std::uint32_t FunctionDecoder::predicateSource(const Operand& op, bool& negated) {
  negated = op.negated;
  if (op.kind == OperandKind::kImmediate) return context_.pool.predicate(op.value != 0);
  if (op.kind != OperandKind::kRegister ||
      function_.registers[static_cast<std::size_t>(op.reg)].type != Type::kPred) {
    fail("predicate expected");
  }
  return slot(op.reg);
}

std::uint32_t FunctionDecoder::result(const Operand& op, Type type) {
  const std::uint32_t bytes = slotBytes(type);
  if (op.kind == OperandKind::kSink) return temporary(bytes);
  if (op.kind == OperandKind::kVector) {
    const std::uint32_t from = temporary(bytes);
    return from;
  }
  if (op.kind != OperandKind::kRegister) fail("register expected as destination");
  if (function_.registers[static_cast<std::size_t>(op.reg)].type == Type::kPred)
    fail("predicate register as destination");
  const std::uint32_t have = registerBytes(op);
  if (have == bytes) return slot(op.reg);
  const std::uint32_t from = temporary(bytes);
  pending_.push_back(PendingResult{slot(op.reg), have, from, bytes, isSigned(type)});
  return from;
}

void FunctionDecoder::finishResult() {
  for (const PendingResult& p : pending_) {
    Op& out = emit(resizeOp(p.to_bytes, p.from_bytes, p.sign));
    out.r[0] = p.to;
    out.r[1] = p.from;
  }
  pending_.clear();
}

std::uint32_t FunctionDecoder::predicateResult(const Operand& op) {
  if (op.kind == OperandKind::kSink) return predicateSlot();
  if (op.kind != OperandKind::kRegister ||
      function_.registers[static_cast<std::size_t>(op.reg)].type != Type::kPred) {
    fail("predicate expected as destination");
  }
  return slot(op.reg);
}

FunctionDecoder::Address FunctionDecoder::address(const Operand& op) {
  if (op.kind != OperandKind::kAddress) fail("address expected");
  if (!op.items.empty()) unsupported();
  Address result;
  if (op.reg >= 0) {
    const std::uint32_t bytes =
        slotBytes(function_.registers[static_cast<std::size_t>(op.reg)].type);
    if (bytes != 4 && bytes != 8) fail("address register must have 32 or 64 bits");
    result.reg = slot(op.reg);
    result.offset = op.value;
    result.narrow = bytes == 4;
  } else if (op.symbol.index >= 0) {
    result.reg = symbolAddress(op, 8);
  } else {
    result.reg = context_.pool.value(op.value, 8);
  }
  return result;
}

std::uint32_t FunctionDecoder::roundFlags(Modifiers& mods) {
  if (mods.take("rz")) return static_cast<std::uint32_t>(Round::kZero);
  if (mods.take("rm")) return static_cast<std::uint32_t>(Round::kDown);
  if (mods.take("rp")) return static_cast<std::uint32_t>(Round::kUp);
  mods.take("rn");
  return 0;
}

// --- registers ---

void FunctionDecoder::allocateRegisters() {
  // Linear scan: registers of one size whose live ranges do not overlap share a slot. Diverged
  // lanes may be anywhere in the code, but each lane has its own column of a slot, so this is as
  // sound as for one thread.
  const std::vector<LiveRange> ranges = liveRanges(function_, cfg_);
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].begin <= ranges[i].end) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return ranges[a].begin < ranges[b].begin; });
  slots_.assign(ranges.size(), 0);
  struct Active {
    std::uint32_t end;
    std::uint32_t slot;
    std::uint32_t bytes;
  };
  const auto later = [](const Active& a, const Active& b) { return a.end > b.end; };
  std::vector<Active> active;
  std::map<std::uint32_t, std::vector<std::uint32_t>> free_slots;
  std::uint32_t live_words = 0;
  // The first 64 bytes stay unused, so that no operand is 0 by accident.
  out_.frame_bytes = 64;
  for (const std::uint32_t reg : order) {
    while (!active.empty() && active.front().end < ranges[reg].begin) {
      std::pop_heap(active.begin(), active.end(), later);
      free_slots[active.back().bytes].push_back(active.back().slot);
      live_words -= active.back().bytes / 4;
      active.pop_back();
    }
    const Type type = function_.registers[reg].type;
    const std::uint32_t bytes = slotBytes(type);
    // Predicates have a cache line each beside 16-bit registers' slots: a kind of their own, named
    // by an odd size.
    const std::uint32_t kind = type == Type::kPred ? 1 : bytes;
    auto& spare = free_slots[kind];
    if (spare.empty()) {
      slots_[reg] = out_.frame_bytes;
      out_.frame_bytes += type == Type::kPred ? 4 : bytes * kWarpSize;
      if (type == Type::kPred) {
        for (std::uint32_t i = 1; i < 16; ++i) spare.push_back(out_.frame_bytes + (15 - i) * 4);
        out_.frame_bytes += 60;
      }
    } else {
      slots_[reg] = spare.back();
      spare.pop_back();
    }
    active.push_back(Active{ranges[reg].end, slots_[reg], kind});
    std::push_heap(active.begin(), active.end(), later);
    live_words += kind / 4;
    out_.max_live_words = std::max(out_.max_live_words, live_words);
  }
}

// --- control flow ---

void FunctionDecoder::run() {
  out_.name = function_.name;
  out_.is_entry = function_.is_entry;
  out_.is_visible = function_.is_visible;
  out_.has_body = true;
  out_.local_bytes = function_.local_bytes;
  out_.param_bytes = (function_.param_bytes + 15) / 16 * 16;
  for (const std::int32_t i : function_.formals) {
    const Symbol& s = function_.symbols[static_cast<std::size_t>(i)];
    out_.formals.push_back(ParamSlice{s.offset, static_cast<std::uint32_t>(s.size)});
  }
  for (const std::int32_t i : function_.returns) {
    const Symbol& s = function_.symbols[static_cast<std::size_t>(i)];
    out_.returns.push_back(ParamSlice{s.offset, static_cast<std::uint32_t>(s.size)});
  }
  cfg_ = buildCfg(context_.ast, function_);
  allocateRegisters();
  joins_.assign(cfg_.blocks.size(), false);
  for (const BasicBlock& block : cfg_.blocks) {
    if (block.join >= 0 && block.successors.size() + block.returns > 1)
      joins_[static_cast<std::size_t>(block.join)] = true;
  }
  block_start_.assign(cfg_.blocks.size(), 0);
  for (std::uint32_t b = 0; b < cfg_.blocks.size(); ++b) {
    block_start_[b] = static_cast<std::uint32_t>(out_.ops.size());
    if (joins_[b]) emit(controlOp(Control::kJoin));
    for (std::uint32_t i = cfg_.blocks[b].begin; i < cfg_.blocks[b].end; ++i) instruction(i);
  }
  instr_ = nullptr;
  emit(controlOp(Control::kReturn));
  for (const Patch& patch : patches_) {
    Op& op = out_.ops[patch.op];
    const auto distance = [&](std::uint32_t block) {
      return static_cast<std::int64_t>(block_start_[block]) - static_cast<std::int64_t>(patch.op);
    };
    if (patch.has_target) op.imm = static_cast<std::uint64_t>(distance(patch.target_block));
    if (patch.join_block >= 0) {
      const auto d =
          static_cast<std::uint64_t>(distance(static_cast<std::uint32_t>(patch.join_block)));
      op.r[1] = static_cast<std::uint32_t>(d);
      op.r[2] = static_cast<std::uint32_t>(d >> 32);
      op.flags |= 2;
    }
  }
  for (const TableEntry& entry : table_patches_)
    out_.branch_tables[entry.table][entry.entry] = block_start_[entry.block];
}

void FunctionDecoder::instruction(std::uint32_t index) {
  instr_ = &function_.code[index];
  index_ = index;
  for (auto& [bytes, used] : temporaries_used_) used = 0;
  const std::string_view name = instr_->parts[0];
  const auto found = handlers().find(name);
  if (found == handlers().end()) unsupported();
  Modifiers mods(*instr_);
  const std::size_t before = out_.ops.size();
  if (instr_->guard < 0 || name == "bra") {
    (this->*found->second)(mods);
    return;
  }
  if (function_.registers[static_cast<std::size_t>(instr_->guard)].type != Type::kPred)
    fail("guard is no predicate");
  if (isControl(name)) {
    // Branch around it; the lanes meet again right behind.
    Op& skip = emit(controlOp(Control::kBranch));
    skip.r[0] = slot(instr_->guard);
    skip.flags = instr_->guard_negated ? 0 : 1;
    (this->*found->second)(mods);
    const auto distance = static_cast<std::uint64_t>(out_.ops.size() - before);
    Op& patched = out_.ops[before];
    patched.imm = distance;
    const bool comes_back = name != "ret" && name != "exit" && name != "trap" && name != "brx";
    if (comes_back) {
      patched.r[1] = static_cast<std::uint32_t>(distance);
      patched.r[2] = 0;
      patched.flags |= 2;
      emit(controlOp(Control::kJoin));
    } else {
      const std::int32_t join = cfg_.blocks[cfg_.block_of[index]].join;
      if (join >= 0) patches_.push_back(Patch{before, 0, join, false});
    }
    return;
  }
  (this->*found->second)(mods);
  for (std::size_t i = before; i < out_.ops.size(); ++i) {
    Op& op = out_.ops[i];
    op.inner = op.fn;
    op.fn = guardedOp();
    op.guard = slot(instr_->guard) | (instr_->guard_negated ? 1 : 0);
  }
}

void FunctionDecoder::bra(Modifiers& mods) {
  mods.take("uni");
  finish(mods);
  expectOperands(1, 1);
  if (operand(0).kind != OperandKind::kLabel || operand(0).label < 0) fail("label expected");
  const auto target = cfg_.block_of[static_cast<std::size_t>(
      function_.labels[static_cast<std::size_t>(operand(0).label)])];
  if (instr_->guard < 0) {
    emit(controlOp(Control::kJump));
    patches_.push_back(Patch{out_.ops.size() - 1, target, -1, true});
    return;
  }
  Op& op = emit(controlOp(Control::kBranch));
  op.r[0] = slot(instr_->guard);
  op.flags = instr_->guard_negated ? 1 : 0;
  patches_.push_back(
      Patch{out_.ops.size() - 1, target, cfg_.blocks[cfg_.block_of[index_]].join, true});
}

void FunctionDecoder::brx(Modifiers& mods) {
  if (!mods.take("idx")) unsupported();
  mods.take("uni");
  finish(mods);
  expectOperands(2, 2);
  if (instr_->targets < 0) fail("branch targets missing");
  const std::uint32_t index = source(operand(0), Type::kU32);
  const auto& labels = function_.target_lists[static_cast<std::size_t>(instr_->targets)];
  const std::size_t table = out_.branch_tables.size();
  out_.branch_tables.emplace_back(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    table_patches_.push_back(
        TableEntry{table, i,
                   cfg_.block_of[static_cast<std::size_t>(
                       function_.labels[static_cast<std::size_t>(labels[i])])]});
  }
  Op& op = emit(controlOp(Control::kBranchTable));
  op.r[0] = index;
  op.imm = table;
  patches_.push_back(Patch{out_.ops.size() - 1, 0, cfg_.blocks[cfg_.block_of[index_]].join, false});
}

void FunctionDecoder::ret(Modifiers& mods) {
  mods.take("uni");
  finish(mods);
  emit(controlOp(Control::kReturn));
}

void FunctionDecoder::exitThread(Modifiers& mods) {
  finish(mods);
  emit(controlOp(Control::kExit));
}

void FunctionDecoder::trap(Modifiers& mods) {
  finish(mods);
  emit(controlOp(Control::kTrap));
}

void FunctionDecoder::call(Modifiers& mods) {
  mods.take("uni");
  finish(mods);
  std::size_t at = 0;
  const auto slices = [&](const Operand& list) {
    std::vector<ParamSlice> out;
    for (const Operand& item : list.items) {
      if (item.kind != OperandKind::kSymbol || symbolOf(item.symbol).space != Space::kParam) {
        fail("call arguments must be .param variables");
      }
      const Symbol& symbol = symbolOf(item.symbol);
      out.push_back(ParamSlice{symbol.offset, static_cast<std::uint32_t>(symbol.size)});
    }
    return out;
  };
  CallSite site;
  if (operand(at).kind == OperandKind::kList) site.returns = slices(operand(at++));
  const Operand& target = operand(at++);
  if (at < operandCount() && operand(at).kind == OperandKind::kList)
    site.arguments = slices(operand(at++));
  std::uint32_t reg = 0;
  if (target.kind == OperandKind::kSymbol && symbolOf(target.symbol).is_function) {
    const AstFunction& callee = context_.ast.functions[symbolOf(target.symbol).index];
    if (!callee.has_body) {
      if (callee.name == "vprintf") {
        site.builtin = Builtin::kVprintf;
      } else if (callee.name == "__assertfail") {
        site.builtin = Builtin::kAssertFail;
      } else {
        fail("call of '" + callee.name + "', which the module does not define");
      }
    } else {
      site.callee = static_cast<std::int32_t>(symbolOf(target.symbol).index);
      out_.callees.push_back(symbolOf(target.symbol).index);
    }
  } else {
    reg = source(target, Type::kU64);
    out_.calls_indirectly = true;
  }
  const bool indirect = site.callee < 0 && site.builtin == Builtin::kNone;
  Op& op = emit(controlOp(Control::kCall));
  op.imm = out_.calls.size();
  op.r[0] = reg;
  out_.calls.push_back(std::move(site));
  if (indirect) {  // lanes with different targets meet behind the call
    op.r[1] = 1;
    op.r[2] = 0;
    op.flags = 2;
    emit(controlOp(Control::kJoin));
  }
}

}  // namespace olpager::simgpu::ptx
