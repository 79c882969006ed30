// The parsed form of a PTX module: what the text says, before any of it is turned into code.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu::ptx {

/// Element types of instructions and variables.
enum class Type : std::uint8_t {
  kNone,
  kPred,
  kU8,
  kS8,
  kB8,
  kU16,
  kS16,
  kB16,
  kF16,
  kBF16,
  kU32,
  kS32,
  kB32,
  kF32,
  kF16x2,
  kBF16x2,
  kU16x2,
  kS16x2,
  kU64,
  kS64,
  kB64,
  kF64,
  kF32x2,
  kB128,
};

/// Bytes of a value of the type (a predicate: 0).
std::uint32_t typeSize(Type type);
bool isSigned(Type type);
bool isFloat(Type type);
/// The type of that name without its dot ("u32"), or kNone.
Type typeFromName(std::string_view name);

enum class Space : std::uint8_t { kReg, kGlobal, kConst, kShared, kLocal, kParam, kGeneric };

/// A named variable or function.
struct Symbol {
  std::string name;
  Space space = Space::kGlobal;
  Type type = Type::kNone;
  bool is_function = false;
  bool is_extern = false;
  bool is_return = false;   ///< `.param`: the function's return value
  bool is_formal = false;   ///< `.param`: an argument of this function
  std::uint32_t index = 0;  ///< function: index in Ast::functions; global or const: in Ast::globals
  std::uint32_t offset = 0;  ///< shared, local, param: byte offset in its area
  std::uint64_t size = 0;
  std::uint32_t align = 1;
};

enum class OperandKind : std::uint8_t {
  kRegister,
  kSpecial,
  kImmediate,
  kFloat32,
  kFloat64,
  kSymbol,
  kLabel,
  kAddress,
  kVector,
  kList,
  kSink,
};

/// The place of a symbol.
struct SymbolRef {
  bool module = false;
  std::int32_t index = -1;  ///< in Ast::symbols or AstFunction::symbols; -1: none
};

struct Operand {
  OperandKind kind = OperandKind::kSink;
  bool negated = false;     ///< `!p`
  std::int32_t reg = -1;    ///< kRegister; kAddress: base register or -1
  SymbolRef symbol;         ///< kSymbol; kAddress: base symbol
  std::int32_t label = -1;  ///< kLabel
  std::uint64_t value =
      0;                  ///< immediate (two's complement) or float bits; kAddress, kSymbol: offset
  std::string_view text;  ///< as written (kSpecial: the register's name)
  std::vector<Operand> items;  ///< kVector, kList; kRegister or kVector followed by `|q`: the last;
                               ///< kAddress: what follows the base, as in `[texture,
                               ///< {coordinates}]`
};

struct Instruction {
  std::string_view opcode;              ///< the whole word, "ld.global.f32"
  std::vector<std::string_view> parts;  ///< parts[0] the name, then the modifiers
  std::int32_t guard = -1;              ///< predicate register
  bool guard_negated = false;
  std::uint32_t line = 0;
  std::vector<Operand> operands;
  std::int32_t targets = -1;  ///< brx.idx, call: index into AstFunction::target_lists
};

struct Register {
  Type type = Type::kNone;
};

struct AstFunction {
  std::string name;
  bool is_entry = false;
  bool is_extern = false;
  bool is_visible = false;
  bool has_body = false;
  bool no_return = false;
  std::uint32_t line = 0;
  std::vector<Register> registers;
  std::vector<Symbol> symbols;
  std::vector<std::int32_t> returns;  ///< indices of symbols
  std::vector<std::int32_t> formals;
  std::vector<Instruction> code;
  std::vector<std::int32_t> labels;                     ///< label id -> index in code
  std::vector<std::vector<std::int32_t>> target_lists;  ///< `.branchtargets`: label ids
  std::vector<std::string> target_list_names;
  std::uint32_t local_bytes = 0;
  std::uint32_t param_bytes = 0;  ///< of formals, returns and the call parameters of the body
  std::uint32_t formal_bytes = 0;
  KernelInfo info;  ///< entries: limits and parameter list
};

struct Ast {
  int version = 0;
  int target = 0;
  std::vector<Symbol> symbols;
  std::vector<GlobalInfo> globals;
  std::vector<AstFunction> functions;
};

/// Parses PTX. The text must outlive the result. Error: "LINE: what".
Result<Ast> parse(std::string_view text);

}  // namespace olpager::simgpu::ptx
