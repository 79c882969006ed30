// The module as a whole: which function may call which, where shared variables lie, what each
// kernel needs.
#include <algorithm>

#include "gpunode/simgpu/ptx/decoder.h"

namespace olpager::simgpu::ptx {

namespace {

/// Gives every `.shared` variable an offset such that no two that one kernel can reach overlap.
/// reach: for each entry, the module symbols it uses. Returns the bytes that each entry needs.
std::vector<std::uint32_t> layoutShared(const Ast& ast,
                                        const std::vector<std::vector<std::uint32_t>>& reach,
                                        std::vector<std::uint32_t>& offsets) {
  std::vector<std::uint32_t> tops(reach.size(), 0);
  offsets.assign(ast.symbols.size(), 0);
  std::vector<std::vector<std::size_t>> users(ast.symbols.size());
  for (std::size_t k = 0; k < reach.size(); ++k) {
    for (const std::uint32_t s : reach[k]) users[s].push_back(k);
  }
  for (std::size_t s = 0; s < ast.symbols.size(); ++s) {
    const Symbol& symbol = ast.symbols[s];
    if (symbol.space != Space::kShared || symbol.is_function || symbol.is_extern ||
        symbol.size == 0)
      continue;
    std::uint32_t offset = 0;
    for (const std::size_t k : users[s]) offset = std::max(offset, tops[k]);
    const std::uint32_t align = std::max(1U, symbol.align);
    offset = (offset + align - 1) / align * align;
    offsets[s] = offset;
    for (const std::size_t k : users[s]) tops[k] = offset + static_cast<std::uint32_t>(symbol.size);
  }
  return tops;
}

struct FunctionUse {
  std::vector<std::uint32_t> callees;
  std::vector<std::uint32_t> shared;
  bool indirect = false;
  bool takes_address = false;
};

FunctionUse scanUse(const Ast& ast, const AstFunction& function, std::vector<bool>& address_taken) {
  FunctionUse use;
  const auto visit = [&](const auto& self, const Operand& operand, bool call_target) -> void {
    if (operand.symbol.index >= 0 && operand.symbol.module) {
      const auto index = static_cast<std::uint32_t>(operand.symbol.index);
      const Symbol& symbol = ast.symbols[index];
      if (symbol.is_function) {
        if (call_target)
          use.callees.push_back(symbol.index);
        else
          address_taken[symbol.index] = true;
      } else if (symbol.space == Space::kShared) {
        use.shared.push_back(index);
      }
    }
    if (call_target && operand.kind == OperandKind::kRegister) use.indirect = true;
    for (const Operand& item : operand.items) self(self, item, false);
  };
  for (const Instruction& instr : function.code) {
    const bool call = instr.parts[0] == "call";
    for (const Operand& operand : instr.operands)
      visit(visit, operand, call && operand.kind != OperandKind::kList);
  }
  return use;
}

/// Functions that a kernel may run: direct calls, and every function whose address is taken once
/// anything calls indirectly.
std::vector<std::uint32_t> reachable(std::uint32_t entry, const std::vector<FunctionUse>& uses,
                                     const std::vector<bool>& address_taken, bool& indirect) {
  std::vector<bool> seen(uses.size(), false);
  std::vector<std::uint32_t> list{entry};
  seen[entry] = true;
  indirect = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto add = [&](std::uint32_t f) {
      if (!seen[f]) {
        seen[f] = true;
        list.push_back(f);
      }
    };
    for (const std::uint32_t f : uses[list[i]].callees) add(f);
    if (uses[list[i]].indirect && !indirect) {
      indirect = true;
      for (std::uint32_t f = 0; f < uses.size(); ++f) {
        if (address_taken[f]) add(f);
      }
    }
  }
  return list;
}

/// Stack of the deepest path of direct calls from a function; `bounded` becomes false if that says
/// nothing: a function can call itself, or takes as much as it likes.
std::uint32_t stackDepth(const Program& program, std::uint32_t f, std::vector<int>& state,
                         std::vector<std::uint32_t>& depth, bool& bounded) {
  if (state[f] == 2) return depth[f];
  if (state[f] == 1) {
    bounded = false;
    return 0;
  }
  state[f] = 1;
  std::uint32_t deepest = 0;
  for (const std::uint32_t callee : program.functions[f].callees) {
    // 16 for alignment, 32 for what the call itself takes.
    deepest = std::max(deepest, 48 + stackDepth(program, callee, state, depth, bounded));
  }
  if (program.functions[f].calls_indirectly || program.functions[f].uses_alloca) bounded = false;
  state[f] = 2;
  return depth[f] = program.functions[f].local_bytes + deepest;
}

void finishKernel(const Ast& ast, Program& program, std::uint32_t f,
                  const std::vector<std::uint32_t>& functions, std::uint32_t shared_bytes) {
  CodeFunction& entry = program.functions[f];
  std::uint32_t dynamic_align = 16;
  std::uint32_t words = 0;
  for (const std::uint32_t g : functions) {
    const CodeFunction& function = program.functions[g];
    words = std::max(words, function.max_live_words);
    entry.uses_barriers |= function.uses_barriers;
    entry.uses_reserved_shared |= function.uses_reserved_shared;
    entry.uses_grid_workspace |= function.uses_grid_workspace;
    for (const std::uint32_t s : function.shared_symbols) {
      const Symbol& symbol = ast.symbols[s];
      if (symbol.is_extern || symbol.size == 0)
        dynamic_align = std::max(dynamic_align, symbol.align);
    }
  }
  entry.static_shared_bytes = shared_bytes;
  entry.dynamic_shared_offset = (shared_bytes + dynamic_align - 1) / dynamic_align * dynamic_align;
  std::vector<int> state(program.functions.size(), 0);
  std::vector<std::uint32_t> depth(program.functions.size(), 0);
  entry.bounded_stack = true;
  entry.stack_bytes = stackDepth(program, f, state, depth, entry.bounded_stack);

  KernelInfo info = ast.functions[f].info;
  info.static_shared_bytes = shared_bytes;
  info.local_bytes = entry.stack_bytes;
  for (const GlobalInfo& global : program.globals) {
    if (global.is_const) info.const_bytes += static_cast<std::uint32_t>(global.size);
  }
  info.registers = std::clamp(words + 8, 16U, 255U);
  if (info.maxnreg != 0) info.registers = std::min(info.registers, info.maxnreg);
  info.uses_barriers = entry.uses_barriers;
  info.uses_grid_workspace = entry.uses_grid_workspace;
  program.kernels.push_back(std::make_unique<Kernel>(std::move(info), f));
}

}  // namespace

Result<std::unique_ptr<Program>> decode(const Ast& ast) {
  auto program = std::make_unique<Program>();
  program->version = ast.version;
  program->target = ast.target;
  program->globals = ast.globals;
  program->addresses.assign(ast.globals.size(), 0);
  for (std::uint32_t i = 0; i < ast.globals.size(); ++i)
    program->global_index[ast.globals[i].name] = i;
  program->functions.resize(ast.functions.size());

  std::vector<bool> address_taken(ast.functions.size(), false);
  for (const GlobalInfo& global : ast.globals) {
    for (const Relocation& relocation : global.relocations) {
      for (const Symbol& symbol : ast.symbols) {
        if (symbol.is_function && symbol.name == relocation.symbol)
          address_taken[symbol.index] = program->takes_code_addresses = true;
      }
    }
  }
  std::vector<FunctionUse> uses;
  for (const AstFunction& function : ast.functions)
    uses.push_back(scanUse(ast, function, address_taken));
  std::vector<std::uint32_t> entries;
  std::vector<std::vector<std::uint32_t>> reached;
  std::vector<std::vector<std::uint32_t>> shared;
  for (std::uint32_t f = 0; f < ast.functions.size(); ++f) {
    if (!ast.functions[f].is_entry || !ast.functions[f].has_body) continue;
    bool indirect = false;
    entries.push_back(f);
    reached.push_back(reachable(f, uses, address_taken, indirect));
    std::vector<std::uint32_t> symbols;
    for (const std::uint32_t g : reached.back())
      symbols.insert(symbols.end(), uses[g].shared.begin(), uses[g].shared.end());
    std::sort(symbols.begin(), symbols.end());
    symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
    shared.push_back(std::move(symbols));
  }
  DecodeContext context{ast, *program, ConstantPool(*program), {}};
  const std::vector<std::uint32_t> shared_bytes = layoutShared(ast, shared, context.shared_offsets);
  try {
    for (std::uint32_t f = 0; f < ast.functions.size(); ++f) {
      CodeFunction& out = program->functions[f];
      out.index = f;
      out.name = ast.functions[f].name;
      program->function_index.emplace(out.name, f);
      if (!ast.functions[f].has_body) continue;
      out.shared_symbols = uses[f].shared;
      FunctionDecoder(context, ast.functions[f], out).run();
    }
  } catch (const DecodeError& error) {
    return Error{std::to_string(error.line) + ": " + error.what};
  }
  for (std::size_t k = 0; k < entries.size(); ++k) {
    finishKernel(ast, *program, entries[k], reached[k], shared_bytes[k]);
  }
  return program;
}

}  // namespace olpager::simgpu::ptx
