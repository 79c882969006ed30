#include "gpunode/simgpu/ptx/cfg.h"

#include <algorithm>
#include <array>

namespace olpager::simgpu::ptx {
namespace {

bool isName(const Instruction& instr, std::string_view name) { return instr.parts[0] == name; }

bool callsNoReturn(const Ast& ast, const Instruction& instr) {
  if (!isName(instr, "call")) return false;
  for (const Operand& operand : instr.operands) {
    if (operand.kind != OperandKind::kSymbol || !operand.symbol.module) continue;
    const Symbol& symbol = ast.symbols[static_cast<std::size_t>(operand.symbol.index)];
    if (symbol.is_function) {
      const AstFunction& callee = ast.functions[symbol.index];
      return callee.no_return || callee.name == "__assertfail";
    }
  }
  return false;
}

/// Cooper, Harvey, Kennedy: "A Simple, Fast Dominance Algorithm", on the reversed graph. Blocks
/// that cannot reach the function's end (traps, endless loops) take no part: lanes that go there do
/// not come back to be waited for.
void findJoins(Cfg& cfg) {
  const auto n = static_cast<std::uint32_t>(cfg.blocks.size());
  const std::uint32_t end = n;
  std::vector<std::vector<std::uint32_t>> predecessors(n + 1);
  for (std::uint32_t b = 0; b < n; ++b) {
    for (const std::uint32_t s : cfg.blocks[b].successors) predecessors[s].push_back(b);
    if (cfg.blocks[b].returns) predecessors[end].push_back(b);
  }
  // Postorder of the reversed graph, from the end.
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> number(n + 1, 0xFFFFFFFF);
  std::vector<bool> seen(n + 1, false);
  std::vector<std::pair<std::uint32_t, std::size_t>> stack{{end, 0}};
  seen[end] = true;
  while (!stack.empty()) {
    const std::uint32_t at = stack.back().first;
    if (stack.back().second < predecessors[at].size()) {
      const std::uint32_t next = predecessors[at][stack.back().second++];
      if (!seen[next]) {
        seen[next] = true;
        stack.emplace_back(next, 0);
      }
    } else {
      number[at] = static_cast<std::uint32_t>(order.size());
      order.push_back(at);
      stack.pop_back();
    }
  }
  constexpr std::uint32_t kNone = 0xFFFFFFFF;
  std::vector<std::uint32_t> ipdom(n + 1, kNone);
  ipdom[end] = end;
  const auto intersect = [&](std::uint32_t a, std::uint32_t b) {
    while (a != b) {
      while (number[a] < number[b]) a = ipdom[a];
      while (number[b] < number[a]) b = ipdom[b];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = order.size(); i-- > 0;) {
      const std::uint32_t b = order[i];
      if (b == end) continue;
      std::uint32_t fresh = kNone;
      const auto meet = [&](std::uint32_t s) {
        if (number[s] == kNone || ipdom[s] == kNone) return;
        fresh = fresh == kNone ? s : intersect(s, fresh);
      };
      for (const std::uint32_t s : cfg.blocks[b].successors) meet(s);
      if (cfg.blocks[b].returns) meet(end);
      if (fresh != ipdom[b]) {
        ipdom[b] = fresh;
        changed = true;
      }
    }
  }
  for (std::uint32_t b = 0; b < n; ++b) {
    if (ipdom[b] != kNone && ipdom[b] != end)
      cfg.blocks[b].join = static_cast<std::int32_t>(ipdom[b]);
  }
}

/// Calls use(register) and def(register) for an instruction's operands. A guarded write is no
/// definition: it may leave the old value.
template <typename Use, typename Def>
void operandsOf(const Instruction& instr, Use use, Def def) {
  static constexpr std::array<std::string_view, 25> kNoResult = {
      "st",        "red",      "sust",           "bra",        "brx",
      "call",      "bar",      "barrier",        "ret",        "exit",
      "trap",      "prefetch", "prefetchu",      "discard",    "applypriority",
      "cp",        "mbarrier", "membar",         "fence",      "brkpt",
      "nanosleep", "pmevent",  "griddepcontrol", "setmaxnreg", "stackrestore"};
  if (instr.guard >= 0) use(instr.guard);
  const bool result =
      std::find(kNoResult.begin(), kNoResult.end(), instr.parts[0]) == kNoResult.end();
  const auto visit = [](const auto& self, const Operand& operand, const auto& fn) -> void {
    if (operand.reg >= 0) fn(operand.reg);
    for (const Operand& item : operand.items) self(self, item, fn);
  };
  for (std::size_t i = 0; i < instr.operands.size(); ++i) {
    if (i == 0 && result && instr.guard < 0) continue;
    visit(visit, instr.operands[i], use);
  }
  if (result && instr.guard < 0 && !instr.operands.empty()) visit(visit, instr.operands[0], def);
}

}  // namespace

Cfg buildCfg(const Ast& ast, const AstFunction& function) {
  const auto n = static_cast<std::uint32_t>(function.code.size());
  std::vector<bool> leader(n + 1, false);
  leader[0] = true;
  const auto target = [&](std::int32_t label) {
    return static_cast<std::uint32_t>(function.labels[static_cast<std::size_t>(label)]);
  };
  const auto ends = [&](const Instruction& instr) {
    return isName(instr, "bra") || isName(instr, "brx") || isName(instr, "ret") ||
           isName(instr, "exit") || isName(instr, "trap") || callsNoReturn(ast, instr);
  };
  for (std::uint32_t i = 0; i < n; ++i) {
    const Instruction& instr = function.code[i];
    if (!ends(instr)) continue;
    leader[i + 1] = true;
    if (isName(instr, "bra")) leader[target(instr.operands[0].label)] = true;
    if (isName(instr, "brx") && instr.targets >= 0) {
      for (const std::int32_t label :
           function.target_lists[static_cast<std::size_t>(instr.targets)])
        leader[target(label)] = true;
    }
  }
  Cfg cfg;
  cfg.block_of.resize(n + 1);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (leader[i]) {
      cfg.blocks.emplace_back();
      cfg.blocks.back().begin = i;
    }
    cfg.block_of[i] = static_cast<std::uint32_t>(cfg.blocks.size() - 1);
    cfg.blocks.back().end = i + 1;
  }
  // Falling off the end of the code is a return; labels there name this empty block.
  cfg.blocks.emplace_back();
  cfg.blocks.back().begin = cfg.blocks.back().end = n;
  cfg.blocks.back().returns = true;
  cfg.block_of[n] = static_cast<std::uint32_t>(cfg.blocks.size() - 1);

  for (std::uint32_t b = 0; b + 1 < cfg.blocks.size(); ++b) {
    BasicBlock& block = cfg.blocks[b];
    const Instruction& last = function.code[block.end - 1];
    bool falls = true;
    if (ends(last)) {
      falls = last.guard >= 0;
      if (isName(last, "bra"))
        block.successors.push_back(cfg.block_of[target(last.operands[0].label)]);
      if (isName(last, "brx") && last.targets >= 0) {
        for (const std::int32_t label :
             function.target_lists[static_cast<std::size_t>(last.targets)]) {
          block.successors.push_back(cfg.block_of[target(label)]);
        }
      }
      if (isName(last, "ret")) block.returns = true;
    }
    if (falls) block.successors.push_back(b + 1);
  }
  findJoins(cfg);
  return cfg;
}

std::vector<LiveRange> liveRanges(const AstFunction& function, const Cfg& cfg) {
  const std::size_t registers = function.registers.size();
  const std::size_t words = (registers + 63) / 64;
  const std::size_t blocks = cfg.blocks.size();
  std::vector<std::uint64_t> in(blocks * words);
  std::vector<std::uint64_t> uses(blocks * words);
  std::vector<std::uint64_t> kills(blocks * words);
  std::vector<LiveRange> ranges(registers);
  const auto touch = [&](std::int32_t reg, std::uint32_t at) {
    LiveRange& range = ranges[static_cast<std::size_t>(reg)];
    range.begin = std::min(range.begin, at);
    range.end = std::max(range.end, at);
  };
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::uint32_t i = cfg.blocks[b].begin; i < cfg.blocks[b].end; ++i) {
      operandsOf(
          function.code[i],
          [&](std::int32_t reg) {
            const auto r = static_cast<std::size_t>(reg);
            touch(reg, i);
            if ((kills[b * words + r / 64] >> (r % 64) & 1) == 0)
              uses[b * words + r / 64] |= std::uint64_t{1} << (r % 64);
          },
          [&](std::int32_t reg) {
            const auto r = static_cast<std::size_t>(reg);
            touch(reg, i);
            kills[b * words + r / 64] |= std::uint64_t{1} << (r % 64);
          });
    }
  }
  std::vector<std::uint64_t> out(words);
  const auto liveOut = [&](std::size_t b) {
    std::fill(out.begin(), out.end(), 0);
    for (const std::uint32_t s : cfg.blocks[b].successors) {
      for (std::size_t w = 0; w < words; ++w) out[w] |= in[s * words + w];
    }
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = blocks; b-- > 0;) {
      liveOut(b);
      for (std::size_t w = 0; w < words; ++w) {
        const std::uint64_t fresh = uses[b * words + w] | (out[w] & ~kills[b * words + w]);
        if (fresh != in[b * words + w]) {
          in[b * words + w] = fresh;
          changed = true;
        }
      }
    }
  }
  for (std::size_t b = 0; b < blocks; ++b) {
    const BasicBlock& block = cfg.blocks[b];
    if (block.begin == block.end) continue;
    liveOut(b);
    for (std::size_t w = 0; w < words; ++w) {
      for (std::uint64_t left = in [b * words + w]; left != 0; left &= left - 1) {
        touch(static_cast<std::int32_t>(w * 64 + static_cast<std::size_t>(__builtin_ctzll(left))),
              block.begin);
      }
      for (std::uint64_t left = out[w]; left != 0; left &= left - 1) {
        touch(static_cast<std::int32_t>(w * 64 + static_cast<std::size_t>(__builtin_ctzll(left))),
              block.end - 1);
      }
    }
  }
  return ranges;
}

}  // namespace olpager::simgpu::ptx
