// Control flow of a parsed function: basic blocks, immediate post-dominators, live ranges of
// registers.
#pragma once

#include <cstdint>
#include <vector>

#include "gpunode/simgpu/ptx/ast.h"

namespace olpager::simgpu::ptx {

struct BasicBlock {
  std::uint32_t begin = 0;  ///< indices of instructions
  std::uint32_t end = 0;
  std::vector<std::uint32_t> successors;
  bool returns = false;  ///< has an edge to the function's end
  /// The block where lanes that part at this one's end meet again; -1: only at the function's end,
  /// or nowhere.
  std::int32_t join = -1;
};

struct Cfg {
  std::vector<BasicBlock> blocks;
  std::vector<std::uint32_t> block_of;  ///< by instruction; one more for the end of the code
};

/// Instructions that never go on to the next one: exit, trap, ret, calls of functions that do not
/// return, unguarded branches.
Cfg buildCfg(const Ast& ast, const AstFunction& function);

/// First and last instruction at which each register may be live; begin > end: never used.
struct LiveRange {
  std::uint32_t begin = 0xFFFFFFFF;
  std::uint32_t end = 0;
};
std::vector<LiveRange> liveRanges(const AstFunction& function, const Cfg& cfg);

}  // namespace olpager::simgpu::ptx
