// Splits and groups: see warp.h for the states.
#include "gpunode/simgpu/ptx/warp.h"

#include <algorithm>

#include "gpunode/simgpu/ptx/ops.h"

namespace olpager::simgpu::ptx {
namespace {

// Bytes of a thread's stack for each call, beside the local variables: return address and saved
// registers.
constexpr std::uint32_t kCallBytes = 32;

}  // namespace

Step Warp::fail(LaunchStatus status, std::string message) {
  fault.status = status;
  fault.message = std::move(message);
  fault.lane = static_cast<std::uint32_t>(std::countr_zero(mask));
  return Step::kFault;
}

Step Warp::failAddress(LaunchStatus status, std::uint64_t address, bool write, std::uint32_t lane) {
  fault.status = status;
  fault.address = address;
  fault.write = write;
  fault.lane = lane;
  return Step::kFault;
}

std::byte* Warp::resolve(std::uint64_t address, std::uint32_t lane, std::uint32_t size,
                         bool write) {
  const auto illegal = [&] {
    failAddress(LaunchStatus::kIllegalAddress, address, write, lane);
    return nullptr;
  };
  if (address < kSharedWindow) {
    worker->tlb.refresh();
    const Translation* const run = worker->tlb.find(address, write);
    if (run == nullptr || size > run->va_end - address) return illegal();
    return run->host + (address - run->va_begin);
  }
  if (address - kSharedWindow < kWindowSize) {
    // The block's own memory, or (rank + 1) << 24 in the cluster.
    const std::uint64_t offset = (address - kSharedWindow) & 0xFFFFFF;
    const std::uint64_t rank = (address - kSharedWindow) >> 24;
    Block* owner = block;
    if (rank != 0) {
      if (rank > block->cluster->blocks.size()) return illegal();
      owner = block->cluster->blocks[rank - 1].get();
    }
    if (offset >= owner->shared_size || size > owner->shared_size - offset) return illegal();
    return owner->shared_data + offset;
  }
  if (address - kLocalWindow < kWindowSize) {
    const std::uint64_t offset = address - kLocalWindow;
    if (offset >= block->stack_bytes || size > block->stack_bytes - offset) return illegal();
    return local + std::uint64_t{lane} * block->stack_bytes + offset;
  }
  if (address - kParamWindow < kWindowSize && !write) {
    const std::uint64_t offset = address - kParamWindow;
    const auto params = block->launch->config->params;
    if (offset >= params.size() || size > params.size() - offset) return illegal();
    return const_cast<std::byte*>(params.data()) + offset;  // read only: `write` was refused above
  }
  return illegal();
}

void Warp::reset() {
  ready.clear();
  waiting.clear();
  groups.clear();
  free_groups.clear();
  merged_.clear();
  running = forced = false;
  spin = parked_lanes = at_barrier = stuck = 0;
  spin_limit = kSpinLimit;
  cluster_phase = 0;
  group = -1;
}

void Warp::start(std::uint32_t lanes) {
  dead = ~lanes;
  if (root->allocated != nullptr) std::fill_n(root->allocated, kWarpSize, 0);
  ready.push_back(Split{root->function->ops.data(), root, lanes, -1, 0, false});
}

void Warp::resume(const Split& split) {
  pc = segment = split.pc;
  frame = split.frame;
  mask = split.mask;
  group = split.group;
  forced = split.forced;
  base[0] = frame->registers;
  running = true;
}

bool Warp::schedule() {
  if (ready.empty()) return false;
  resume(ready.front());
  ready.pop_front();
  return true;
}

bool Warp::run() {
  while (budget > 0) {
    if (!running && !schedule()) return true;
    Step step;
    do {
      const Op* const op = pc++;
      step = op->fn(*this, *op);
    } while (step == Step::kNext);
    if (step == Step::kFault) return false;
  }
  return true;
}

std::int32_t Warp::newGroup(const Op* point, Frame* at, std::uint32_t lanes) {
  std::int32_t index;
  if (free_groups.empty()) {
    index = static_cast<std::int32_t>(groups.size());
    groups.emplace_back();
  } else {
    index = free_groups.back();
    free_groups.pop_back();
  }
  groups[static_cast<std::size_t>(index)] = Group{point, at, group, lanes, 0, true};
  return index;
}

void Warp::freeGroup(std::int32_t index) {
  groups[static_cast<std::size_t>(index)].used = false;
  free_groups.push_back(index);
}

void Warp::diverge(std::uint32_t taken, const Op* target, const Op* join) {
  const std::uint32_t rest = mask & ~taken;
  if (join != nullptr) {
    const bool same = group >= 0 && groups[static_cast<std::size_t>(group)].pc == join &&
                      groups[static_cast<std::size_t>(group)].frame == frame;
    if (!same) group = newGroup(join, frame, mask);
    Group& g = groups[static_cast<std::size_t>(group)];
    if (target == join) {
      g.arrived |= taken;
      parked_lanes += countLanes(taken);
      mask = rest;
      return;
    }
    if (pc == join) {
      g.arrived |= rest;
      parked_lanes += countLanes(rest);
      mask = taken;
      pc = segment = target;
      return;
    }
  }
  ready.push_front(Split{target, frame, taken, group, 0, false});
  mask = rest;
}

bool Warp::converge(const Op* point) {
  while (group >= 0) {
    Group& g = groups[static_cast<std::size_t>(group)];
    if (g.pc != point || g.frame != frame) return true;
    g.arrived |= mask;
    if (g.arrived != g.expected) {
      parked_lanes += countLanes(mask);
      suspend();
      return false;
    }
    parked_lanes -= countLanes(g.arrived & ~mask);
    mask = g.expected;
    const std::int32_t done = group;
    group = g.parent;
    freeGroup(done);
  }
  return true;
}

Step Warp::enter(const CodeFunction& callee, const CallSite& site) {
  std::uint32_t top = frame->local_base + frame->function->local_bytes;
  if (frame->function->uses_alloca) [[unlikely]] {
    std::uint32_t most = 0;
    for (std::uint32_t left = mask; left != 0; left &= left - 1)
      most = std::max(most, frame->allocated[static_cast<std::size_t>(std::countr_zero(left))]);
    top += most;
  }
  const std::uint32_t local_base = (top + 15) & ~15U;
  if (local_base + callee.local_bytes + std::uint64_t{kCallBytes} * (frame->depth + 1) >
      block->stack_bytes) {
    return fail(LaunchStatus::kStackOverflow,
                "the call of '" + callee.name + "' does not fit the stack");
  }
  Frame* const next = block->newFrame(callee);
  next->parent = frame;
  next->return_pc = pc;
  next->site = &site;
  next->local_base = local_base;
  next->depth = frame->depth + 1;
  if (callee.uses_alloca) [[unlikely]]
    std::fill_n(next->allocated, kWarpSize, 0);
  for (std::size_t i = 0; i < site.arguments.size() && i < callee.formals.size(); ++i) {
    const ParamSlice& from = site.arguments[i];
    const ParamSlice& to = callee.formals[i];
    const std::uint32_t size = std::min(from.size, to.size);
    for (std::uint32_t left = mask; left != 0; left &= left - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(left));
      std::memcpy(next->params + lane * callee.param_bytes + to.offset,
                  frame->params + lane * frame->function->param_bytes + from.offset, size);
    }
  }
  group = newGroup(nullptr, next, mask);
  frame = next;
  base[0] = next->registers;
  pc = segment = callee.ops.data();
  --budget;
  return Step::kNext;
}

void Warp::copyReturns(const Frame& callee, std::uint32_t lanes) {
  const CallSite& site = *callee.site;
  const Frame& caller = *callee.parent;
  for (std::size_t i = 0; i < site.returns.size() && i < callee.function->returns.size(); ++i) {
    const ParamSlice& from = callee.function->returns[i];
    const ParamSlice& to = site.returns[i];
    const std::uint32_t size = std::min(from.size, to.size);
    for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(left));
      std::memcpy(caller.params + lane * caller.function->param_bytes + to.offset,
                  callee.params + lane * callee.function->param_bytes + from.offset, size);
    }
  }
}

Step Warp::leave() {
  if (frame->parent == nullptr) return exitLanes();
  // The group at the top is the call's own: every path to a return passes the points of the groups
  // made inside.
  Group& g = groups[static_cast<std::size_t>(group)];
  g.arrived |= mask;
  if (g.arrived != g.expected) {
    parked_lanes += countLanes(mask);
    return suspend();
  }
  parked_lanes -= countLanes(g.arrived & ~mask);
  Frame* const done = frame;
  copyReturns(*done, g.expected);
  mask = g.expected;
  freeGroup(group);
  group = g.parent;
  frame = done->parent;
  base[0] = frame->registers;
  pc = segment = done->return_pc;
  block->deleteFrame(done);
  return Step::kNext;
}

void Warp::release(std::int32_t index, std::uint32_t lanes) {
  Group& g = groups[static_cast<std::size_t>(index)];
  parked_lanes -= countLanes(lanes);
  g.arrived &= ~lanes;
  g.expected &= ~lanes;
  if (g.pc != nullptr) {
    ready.push_back(Split{g.pc, g.frame, lanes, g.parent, 0, false});
  } else {
    copyReturns(*g.frame, lanes);
    ready.push_back(Split{g.frame->return_pc, g.frame->parent, lanes, g.parent, 0, false});
  }
  if (g.expected == 0) {
    if (g.pc == nullptr) block->deleteFrame(g.frame);
    freeGroup(index);
  }
}

Step Warp::exitLanes() {
  dead |= mask;
  for (std::int32_t index = group; index >= 0;) {
    Group& g = groups[static_cast<std::size_t>(index)];
    const std::int32_t parent = g.parent;
    g.expected &= ~mask;
    if (g.expected == 0) {
      if (g.pc == nullptr) block->deleteFrame(g.frame);
      freeGroup(index);
    } else if (g.arrived == g.expected) {
      release(index, g.arrived);
    }
    index = parent;
  }
  // Those that wait for the lanes gone look again.
  for (const Split& split : waiting) ready.push_back(split);
  waiting.clear();
  if (finished()) ++block->finished_warps;
  block->threadsExited(countLanes(mask));
  return suspend();
}

void Warp::breakGroups() {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].used && groups[i].arrived != 0)
      release(static_cast<std::int32_t>(i), groups[i].arrived);
  }
}

Step Warp::yield() {
  ready.push_back(current());
  running = false;
  budget = 0;
  if (++spin > spin_limit && parked_lanes > 0) {
    // The running lanes may spin on what a parked lane has to do. Having seen that once, look
    // sooner.
    breakGroups();
    spin = 0;
    spin_limit = std::max(16U, spin_limit / 4);
  }
  return Step::kSwitch;
}

bool Warp::arriveSync(const Op& op, std::uint32_t members) {
  members &= ~dead;
  if ((members & ~mask) == 0 || forced) {
    forced = false;
    return true;
  }
  // Only those that are waited for: others at the same instruction have lanes of their own to wait
  // for. So may these.
  std::uint32_t here = mask;
  for (bool more = true; more;) {
    more = false;
    for (const Split& split : waiting) {
      if (split.pc != &op || split.frame != frame || (split.mask & members & ~here) == 0) continue;
      here |= split.mask;
      members |= split.member_mask & ~dead;
      more = true;
    }
  }
  if ((members & ~here) != 0) {
    Split split = current();
    split.pc = &op;
    split.member_mask = members;
    waiting.push_back(split);
    suspend();
    return false;
  }
  merged_.push_back(current());
  for (std::size_t i = 0; i < waiting.size();) {
    if (waiting[i].pc == &op && waiting[i].frame == frame && (waiting[i].mask & here) != 0) {
      waiting[i].pc = pc;
      merged_.push_back(waiting[i]);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  mask = here;
  return true;
}

void Warp::finishSync() {
  if (merged_.empty()) return;
  mask = merged_.front().mask;
  for (std::size_t i = 1; i < merged_.size(); ++i) ready.push_front(merged_[i]);
  merged_.clear();
}

bool Warp::unblock() {
  if (!waiting.empty()) {
    std::uint32_t here = 0;
    for (const Split& split : waiting) here |= split.mask;
    bool any = false;
    for (std::size_t i = 0; i < waiting.size();) {
      if ((waiting[i].member_mask & ~dead & ~here) == 0) {
        waiting[i].forced = true;
        ready.push_back(waiting[i]);
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
        any = true;
      } else {
        ++i;
      }
    }
    if (any) return true;
  }
  if (parked_lanes == 0) return false;
  breakGroups();
  return true;
}

}  // namespace olpager::simgpu::ptx
