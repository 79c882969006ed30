// Turns one parsed function into Ops. Split over decode_*.cpp by instruction family.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/ptx/cfg.h"
#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/program.h"

namespace olpager::simgpu::ptx {

/// Thrown inside the decoder; decode() turns it into an Error.
struct DecodeError {
  std::uint32_t line;
  std::string what;
};

/// Constants of the module, each kept once.
class ConstantPool {
 public:
  explicit ConstantPool(Program& program) : program_(program) {}
  /// Operand of a constant of 2, 4, 8 or 16 bytes.
  std::uint32_t value(std::uint64_t bits, std::uint32_t bytes, std::uint64_t high = 0);
  /// One word that reads as a predicate.
  std::uint32_t predicate(bool holds);
  /// A global's address plus addend, known after link().
  std::uint32_t address(std::uint32_t global, std::uint64_t addend, std::uint32_t bytes);
  /// A function's address, likewise.
  std::uint32_t codeAddress(std::uint32_t function, std::uint32_t bytes);

 private:
  std::uint32_t addressOf(const AddressConstant& what);
  std::uint32_t add(std::uint64_t bits, std::uint64_t high, std::uint32_t bytes);
  Program& program_;
  std::map<std::array<std::uint64_t, 3>, std::uint32_t> known_;
};

/// State that all functions of a module share while they are decoded.
struct DecodeContext {
  const Ast& ast;
  Program& program;
  ConstantPool pool;
  std::vector<std::uint32_t> shared_offsets;  ///< by module symbol
};

/// The modifiers of an instruction, crossed off as they are understood.
class Modifiers {
 public:
  explicit Modifiers(const Instruction& instr)
      : left_(instr.parts.begin() + 1, instr.parts.end()) {}
  bool take(std::string_view name);
  bool takeAny(std::initializer_list<std::string_view> names);
  /// The first one left, if it is a type.
  Type takeType();
  std::string_view takeFirst();
  bool empty() const { return left_.empty(); }
  const std::vector<std::string_view>& left() const { return left_; }
  void drop(bool (*unneeded)(std::string_view));

 private:
  std::vector<std::string_view> left_;
};

// Many members: a function for each family of instructions.
class FunctionDecoder {
 public:
  FunctionDecoder(DecodeContext& context, const AstFunction& function, CodeFunction& out)
      : context_(context), function_(function), out_(out) {}
  void run();

 private:
  using Handler = void (FunctionDecoder::*)(Modifiers&);
  static const std::unordered_map<std::string_view, Handler>& handlers();

  // --- shared by the families (decode.cpp) ---
  [[noreturn]] void unsupported() const;
  [[noreturn]] void fail(const std::string& what) const;
  void finish(const Modifiers& mods) const {
    if (!mods.empty()) unsupported();
  }
  const Operand& operand(std::size_t i) const;
  std::size_t operandCount() const { return instr_->operands.size(); }
  void expectOperands(std::size_t low, std::size_t high) const;
  Op& emit(OpFn fn);
  Op& emit(OpFn fn, std::initializer_list<std::uint32_t> operands, std::uint32_t flags = 0);
  std::uint32_t temporary(std::uint32_t bytes);
  std::uint32_t predicateSlot();
  std::uint32_t registerBytes(const Operand& op) const;
  std::uint32_t slot(std::int32_t reg) const;
  /// A value of a type to read; immediates become constants, special registers are read into a
  /// temporary.
  std::uint32_t source(const Operand& op, Type type);
  std::uint32_t sourceBytes(const Operand& op, std::uint32_t bytes, bool sign = false,
                            bool is_float = false);
  std::uint32_t predicateSource(const Operand& op, bool& negated);
  /// The register for a result of a type. If the register is wider, a temporary that finishResult()
  /// copies over.
  std::uint32_t result(const Operand& op, Type type);
  void finishResult();
  std::uint32_t predicateResult(const Operand& op);
  std::uint32_t symbolAddress(const Operand& op, std::uint32_t bytes);
  void specialRegister(const Operand& op, std::uint32_t to, std::uint32_t bytes);
  const Symbol& symbolOf(const SymbolRef& ref) const;
  /// Sets r[8], imm and kAddress32 of a memory Op for an address operand.
  struct Address {
    std::uint32_t reg = 0;
    std::uint64_t offset = 0;
    bool narrow = false;
  };
  Address address(const Operand& op);
  static std::uint32_t roundFlags(Modifiers& mods);

  // --- families ---
  void arithmetic(Modifiers& mods, Alu kind);
  void add(Modifiers& mods);
  void sub(Modifiers& mods);
  void addc(Modifiers& mods);
  void subc(Modifiers& mods);
  void mul(Modifiers& mods);
  void mad(Modifiers& mods);
  void madc(Modifiers& mods);
  void mul24(Modifiers& mods);
  void fma(Modifiers& mods);
  void div(Modifiers& mods);
  void rem(Modifiers& mods);
  void minMax(Modifiers& mods);
  void unaryMath(Modifiers& mods);
  void logic(Modifiers& mods);
  void shift(Modifiers& mods);
  void bitCount(Modifiers& mods);
  void bitField(Modifiers& mods);
  Op& threeSources(Alu kind, Type type, std::size_t count = 4);
  void prmt(Modifiers& mods);
  void lop3(Modifiers& mods);
  void funnel(Modifiers& mods);
  void sad(Modifiers& mods);
  void dotProduct(Modifiers& mods);
  void video(Modifiers& mods);
  void fns(Modifiers& mods);
  void copysign(Modifiers& mods);
  void testp(Modifiers& mods);
  void select(Modifiers& mods);
  /// The common part of setp and set.
  struct Comparison {
    Compare compare = Compare::kEq;
    bool combined = false;
    std::uint32_t flags = 0;
    std::uint32_t a = 0, b = 0, c = 0;
  };
  Comparison comparison(Modifiers& mods);
  void compared(Comparison& of, Type type);
  void setp(Modifiers& mods);
  void set(Modifiers& mods);
  void mov(Modifiers& mods);
  void cvt(Modifiers& mods);
  void cvta(Modifiers& mods);
  void isspacep(Modifiers& mods);
  void load(Modifiers& mods);
  void store(Modifiers& mods);
  void parameterAccess(bool is_store, Type type, std::uint32_t vector);
  void memoryAccess(bool is_store, Space space, Type type, std::uint32_t vector,
                    std::uint32_t flags, std::uint64_t window);
  void atomic(Modifiers& mods);
  void copyAsync(Modifiers& mods);
  void copyBulk(Modifiers& mods);
  void stack(Modifiers& mods);
  void mbarrier(Modifiers& mods);
  void pendingCount(Modifiers& mods);
  void mapa(Modifiers& mods);
  void texture(Modifiers& mods);
  void surface(Modifiers& mods);
  void texturePlace(const Operand& where, TextureShape shape, std::size_t written, bool integer,
                    std::uint32_t* regs);
  void shuffle(Modifiers& mods);
  void vote(Modifiers& mods);
  void match(Modifiers& mods);
  void activemask(Modifiers& mods);
  void elect(Modifiers& mods);
  void redux(Modifiers& mods);
  void mma(Modifiers& mods);
  void bar(Modifiers& mods);
  void fence(Modifiers& mods);
  void hint(Modifiers& mods);
  void createpolicy(Modifiers& mods);
  void nanosleep(Modifiers& mods);
  void trap(Modifiers& mods);
  void exitThread(Modifiers& mods);
  void ret(Modifiers& mods);
  void call(Modifiers& mods);
  void bra(Modifiers& mods);
  void brx(Modifiers& mods);

  // --- control flow (decode.cpp) ---
  void allocateRegisters();
  void instruction(std::uint32_t index);

  struct Patch {
    std::size_t op;
    std::uint32_t target_block = 0;
    std::int32_t join_block = -1;
    bool has_target = false;
  };

  DecodeContext& context_;
  const AstFunction& function_;
  CodeFunction& out_;
  Cfg cfg_;
  const Instruction* instr_ = nullptr;
  std::uint32_t index_ = 0;  ///< of instr_
  std::vector<std::uint32_t> slots_;
  std::vector<bool> joins_;  ///< by block: some branch converges at its start
  std::vector<std::uint32_t> block_start_;
  std::vector<Patch> patches_;
  struct TableEntry {
    std::size_t table;
    std::size_t entry;
    std::uint32_t block;
  };
  std::vector<TableEntry> table_patches_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> temporaries_;  ///< by bytes
  std::map<std::uint32_t, std::size_t> temporaries_used_;
  std::uint32_t carry_ = kNoTarget;
  struct PendingResult {
    std::uint32_t to, to_bytes, from, from_bytes;
    bool sign;
  };
  std::vector<PendingResult> pending_;
};

}  // namespace olpager::simgpu::ptx
