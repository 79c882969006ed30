// The decoded form of a module: for each function an array of Ops with operands resolved to
// offsets.
//
// Registers of a warp are kept as [register][lane]. An operand is the byte offset of a register's
// 32 lanes from one of two bases, chosen by its low bit: 0 the function's registers (in the warp's
// frame), 1 the module's constants, each stored 32 times. A predicate is one 32-bit word with a bit
// for each lane.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/ptx/ast.h"
#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu::ptx {

struct Warp;
struct Op;

/// The next step of the interpreter's loop after an Op.
enum class Step : std::uint8_t {
  kNext,    ///< run the Op at Warp::pc
  kSwitch,  ///< the warp's current split is gone, waits or has used up its slice: choose another
  kFault,   ///< the launch ends: Warp::fault says why
};

using OpFn = Step (*)(Warp&, const Op&);

inline constexpr std::uint32_t kConstantBit = 1;
inline constexpr std::uint32_t kNoTarget = 0xFFFFFFFF;

struct Op {
  OpFn fn = nullptr;
  OpFn inner = nullptr;   ///< of a guarded Op, whose fn narrows the mask first
  std::uint64_t imm = 0;  ///< address offset, table, shift, ... by kind
  std::uint32_t r[13] =
      {};  ///< operands: destination first; memory: up to 8 data registers, then the address
  std::uint32_t guard = 0;  ///< predicate's offset
  std::uint32_t line = 0;
  std::uint32_t flags = 0;
};

/// Part of a parameter area that a call copies.
struct ParamSlice {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
};

enum class Builtin : std::uint8_t { kNone, kVprintf, kAssertFail };

struct CallSite {
  std::int32_t callee = -1;  ///< index of the function; -1: indirect, address in Op::r[0]
  Builtin builtin = Builtin::kNone;
  std::vector<ParamSlice> arguments;  ///< in the caller's area
  std::vector<ParamSlice> returns;
};

struct CodeFunction {
  std::string name;
  std::uint32_t index = 0;
  bool is_entry = false;
  bool is_visible = false;
  bool has_body = false;
  std::vector<Op> ops;
  std::uint32_t frame_bytes = 0;  ///< of the registers of 32 lanes
  std::uint32_t local_bytes = 0;  ///< per thread
  std::uint32_t param_bytes = 0;  ///< per thread: formals, return value, areas of calls
  std::vector<ParamSlice> formals;
  std::vector<ParamSlice> returns;
  std::vector<CallSite> calls;
  std::vector<std::vector<std::uint32_t>> branch_tables;
  // The function's own uses, for the per-kernel sums.
  std::vector<std::uint32_t> callees;
  std::vector<std::uint32_t> shared_symbols;
  bool calls_indirectly = false;
  bool uses_reserved_shared = false;
  bool uses_barriers = false;
  bool uses_grid_workspace = false;
  bool uses_alloca = false;
  std::uint32_t max_live_words = 0;  ///< most 32-bit registers live at once
  // The needs of an entry and of everything that it can call.
  std::uint32_t static_shared_bytes = 0;
  std::uint32_t dynamic_shared_offset = 0;
  std::uint32_t stack_bytes = 0;  ///< of the deepest call path
  bool bounded_stack = true;      ///< no recursion, no indirect calls, no alloca
};

/// A constant that holds the address of a global or a function, filled in by link().
struct AddressConstant {
  std::uint32_t offset = 0;  ///< in Program::constants
  std::uint32_t size = 8;
  std::uint32_t index = 0;  ///< of the global or function
  std::uint64_t addend = 0;
  bool of_function = false;
};

struct Program {
  std::string name;
  int version = 0;
  int target = 0;
  /// True if addresses of its functions are taken. As on hardware these are places in a table that
  /// grows with the modules that are loaded and need it: neither chance nor other modules move
  /// them.
  bool takes_code_addresses = false;
  std::uint32_t id = 0;  ///< distinguishes the modules' code addresses; given by link()
  std::vector<GlobalInfo> globals;
  std::vector<std::uint64_t> addresses;  ///< of globals; 0: not given
  std::vector<CodeFunction> functions;
  std::unordered_map<std::string, std::uint32_t> function_index;
  std::unordered_map<std::string, std::uint32_t> global_index;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<AddressConstant> address_constants;
  std::vector<std::uint64_t> constants;  ///< the constants' lanes; 64-bit words to be aligned
  bool linked = false;

  std::uint64_t codeAddress(std::uint32_t function) const {
    return kCodeWindow + (std::uint64_t{id} << 20) + std::uint64_t{function} * 16;
  }
};

/// Turns a parsed module into code. Error: "LINE: what".
Result<std::unique_ptr<Program>> decode(const Ast& ast);

}  // namespace olpager::simgpu::ptx
