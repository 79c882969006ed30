// Branches, calls, barriers and the guard of predicated instructions.
#include <thread>

#include "gpunode/simgpu/ptx/fence.h"
#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

/// Runs the Op proper for the lanes whose predicate holds. imm and flags belong to the inner Op:
/// the guard's negation is the lowest bit of the guard's offset, which is a multiple of four.
Step guarded(Warp& w, const Op& op) {
  const std::uint32_t before = w.mask;
  std::uint32_t p = w.predicate(op.guard & ~3U);
  if ((op.guard & 1) != 0) p = ~p;
  w.mask = before & p;
  Step step = Step::kNext;
  if (w.mask != 0) step = op.inner(w, op);
  w.mask = before;
  return step;
}

// Branches. imm: index of the target; r[1]: index of the convergence point or kNoTarget. Ops of a
// function lie in one array, so that a target is reached from the Op itself: imm holds the
// distance.
const Op* at(const Op& op, std::uint64_t distance) {
  return &op + static_cast<std::int64_t>(distance);
}

Step jump(Warp& w, const Op& op) {
  w.jump(at(op, op.imm));
  if (static_cast<std::int64_t>(op.imm) <= 0 && --w.budget <= 0) return w.yield();
  return Step::kNext;
}

/// r[0] predicate, flags 1: negated; r[1], r[2]: distance of the convergence point (low, high) if
/// flags 2.
Step branch(Warp& w, const Op& op) {
  std::uint32_t taken = w.predicate(op.r[0]);
  if ((op.flags & 1) != 0) taken = ~taken;
  taken &= w.mask;
  if (taken == 0) return Step::kNext;
  const Op* const target = at(op, op.imm);
  if (taken == w.mask) {
    w.jump(target);
  } else {
    w.count(w.pc);
    w.segment = w.pc;
    const Op* const join =
        (op.flags & 2) != 0 ? at(op, static_cast<std::uint64_t>(op.r[2]) << 32 | op.r[1]) : nullptr;
    w.diverge(taken, target, join);
  }
  if (static_cast<std::int64_t>(op.imm) <= 0 && --w.budget <= 0) return w.yield();
  return Step::kNext;
}

/// brx.idx: r[0] index, imm number of the table of Op indices. The convergence point as in
/// branch().
Step branchTable(Warp& w, const Op& op) {
  const auto& table = w.frame->function->branch_tables[op.imm];
  const std::uint32_t* const index = w.reg<std::uint32_t>(op.r[0]);
  const Op* const base = w.frame->function->ops.data();
  const Op* const join =
      (op.flags & 2) != 0 ? at(op, static_cast<std::uint64_t>(op.r[2]) << 32 | op.r[1]) : nullptr;
  w.count(w.pc);
  w.segment = w.pc;
  while (true) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(w.mask));
    const std::uint32_t entry = index[lane];
    if (entry >= table.size())
      return w.fail(LaunchStatus::kIllegalInstruction, "brx.idx index out of its table");
    std::uint32_t same = 0;
    for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
      const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
      if (index[i] == entry) same |= 1U << i;
    }
    const Op* const target = base + table[entry];
    if (same == w.mask) {
      w.pc = w.segment = target;
      if (--w.budget <= 0) return w.yield();
      return Step::kNext;
    }
    w.pc = nullptr;  // there is no fall-through
    w.diverge(same, target, join);
  }
}

Step join(Warp& w, const Op& op) {
  w.count(w.pc);
  w.segment = w.pc;
  return w.converge(&op) ? Step::kNext : Step::kSwitch;
}

/// imm: index of the call site; r[0]: register with the address of an indirect call.
Step call(Warp& w, const Op& op) {
  const CallSite& site = w.frame->function->calls[op.imm];
  w.count(w.pc);
  w.segment = w.pc;
  if (site.builtin == Builtin::kVprintf) return devicePrintf(w, site);
  if (site.builtin == Builtin::kAssertFail) return deviceAssertFail(w, site);
  const Program& program = *w.block->launch->program;
  if (site.callee >= 0) {
    const Step step = w.enter(program.functions[static_cast<std::size_t>(site.callee)], site);
    if (step == Step::kNext && w.budget <= 0) return w.yield();
    return step;
  }
  const std::uint64_t* const address = w.reg<std::uint64_t>(op.r[0]);
  const std::uint64_t first = address[std::countr_zero(w.mask)];
  std::uint32_t same = 0;
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    if (address[i] == first) same |= 1U << i;
  }
  const std::uint64_t offset = first - program.codeAddress(0);
  if (offset % 16 != 0 || offset / 16 >= program.functions.size() ||
      !program.functions[offset / 16].has_body || program.functions[offset / 16].is_entry) {
    return w.fail(LaunchStatus::kIllegalInstruction,
                  "indirect call of an address that is no function of the module");
  }
  // Other targets' lanes come back to this Op, and all converge behind it, where the decoder has
  // put a join.
  if (same != w.mask) {
    const std::uint32_t rest = w.mask & ~same;
    const Op* const next = w.pc;
    w.pc = nullptr;  // the lanes that stay do not go on to the join but into the callee
    w.diverge(rest, &op,
              (op.flags & 2) != 0 ? at(op, static_cast<std::uint64_t>(op.r[2]) << 32 | op.r[1])
                                  : nullptr);
    w.pc = next;
  }
  const Step step = w.enter(program.functions[offset / 16], site);
  if (step == Step::kNext && w.budget <= 0) return w.yield();
  return step;
}

Step ret(Warp& w, const Op&) {
  w.count(w.pc);
  w.segment = w.pc;
  return w.leave();
}

Step exitThread(Warp& w, const Op&) {
  w.count(w.pc);
  w.segment = w.pc;
  return w.exitLanes();
}

Step trap(Warp& w, const Op&) { return w.fail(LaunchStatus::kTrap, ""); }

/// r[1] barrier id, r[2] thread count or kNoTarget (registers; the value of the first active lane
/// counts).
bool barrierOperands(Warp& w, const Op& op, std::uint32_t& id, std::uint32_t& needed) {
  const auto lane = static_cast<std::uint32_t>(std::countr_zero(w.mask));
  id = w.reg<std::uint32_t>(op.r[1])[lane];
  needed = op.r[2] == kNoTarget ? 0 : w.reg<std::uint32_t>(op.r[2])[lane];
  return id < kBarriers;
}

Step barrier(Warp& w, const Op& op) {
  std::uint32_t id = 0;
  std::uint32_t needed = 0;
  if (!barrierOperands(w, op, id, needed))
    return w.fail(LaunchStatus::kIllegalInstruction, "barrier number above 15");
  w.count(w.pc);
  const Split split = w.current();
  w.suspend();
  w.block->wait(id, BarrierWait{&w, split, kNoTarget}, needed);
  return Step::kSwitch;
}

Step barrierArrive(Warp& w, const Op& op) {
  std::uint32_t id = 0;
  std::uint32_t needed = 0;
  if (!barrierOperands(w, op, id, needed))
    return w.fail(LaunchStatus::kIllegalInstruction, "barrier number above 15");
  w.block->arriveOnly(id, w, needed);
  return Step::kNext;
}

/// r[0] result, r[3] predicate, flags: negation and (<< 1) the Reduction.
Step barrierRed(Warp& w, const Op& op) {
  std::uint32_t id = 0;
  std::uint32_t needed = 0;
  if (!barrierOperands(w, op, id, needed))
    return w.fail(LaunchStatus::kIllegalInstruction, "barrier number above 15");
  w.count(w.pc);
  std::uint32_t p = w.predicate(op.r[3]);
  if ((op.flags & 1) != 0) p = ~p;
  Barrier& b = w.block->barriers[id];
  b.reduction = static_cast<Reduction>(op.flags >> 1);
  b.count_true += static_cast<std::uint32_t>(std::popcount(p & w.mask));
  const Split split = w.current();
  w.suspend();
  w.block->wait(id, BarrierWait{&w, split, op.r[0]}, needed);
  return Step::kSwitch;
}

Step nanosleep(Warp& w, const Op&) {
  w.count(w.pc);
  w.segment = w.pc;
  std::this_thread::yield();
  return w.yield();
}

Step syncWarp(Warp& w, const Op& op) {
  if (!w.arriveSync(op, w.members(op.r[1]))) return Step::kSwitch;
  w.finishSync();
  return Step::kNext;
}

Step fence(Warp&, const Op&) {
  fullFence();
  return Step::kNext;
}

Step nop(Warp&, const Op&) { return Step::kNext; }

Step clusterArrive(Warp& w, const Op&) {
  w.block->cluster->arrive(w);
  return Step::kNext;
}

Step clusterWait(Warp& w, const Op&) {
  Cluster& cluster = *w.block->cluster;
  if (cluster.phase > w.cluster_phase) return Step::kNext;
  w.count(w.pc);
  w.at_barrier |= w.mask;
  cluster.waiting.push_back(BarrierWait{&w, w.current(), kNoTarget});
  return w.suspend();
}

template <Alu kKind>
Step predicate(Warp& w, const Op& op) {
  const std::uint32_t a = w.predicate(op.r[1]);
  const std::uint32_t b = kKind == Alu::kMov || kKind == Alu::kNot ? 0 : w.predicate(op.r[2]);
  if constexpr (kKind == Alu::kAnd) w.setPredicate(op.r[0], a & b);
  if constexpr (kKind == Alu::kOr) w.setPredicate(op.r[0], a | b);
  if constexpr (kKind == Alu::kXor) w.setPredicate(op.r[0], a ^ b);
  if constexpr (kKind == Alu::kNot) w.setPredicate(op.r[0], ~a);
  if constexpr (kKind == Alu::kMov) w.setPredicate(op.r[0], a);
  return Step::kNext;
}

}  // namespace

OpFn guardedOp() { return guarded; }

OpFn controlOp(Control kind) {
  switch (kind) {
    case Control::kJump:
      return jump;
    case Control::kBranch:
      return branch;
    case Control::kBranchTable:
      return branchTable;
    case Control::kJoin:
      return join;
    case Control::kCall:
      return call;
    case Control::kReturn:
      return ret;
    case Control::kExit:
      return exitThread;
    case Control::kTrap:
      return trap;
    case Control::kBarrier:
      return barrier;
    case Control::kBarrierArrive:
      return barrierArrive;
    case Control::kBarrierRed:
      return barrierRed;
    case Control::kNanosleep:
      return nanosleep;
    case Control::kSyncWarp:
      return syncWarp;
    case Control::kFence:
      return fence;
    case Control::kNop:
      return nop;
    case Control::kClusterArrive:
      return clusterArrive;
    case Control::kClusterWait:
      return clusterWait;
  }
  return nullptr;
}

OpFn predicateOp(Alu kind) {
  switch (kind) {
    case Alu::kAnd:
      return predicate<Alu::kAnd>;
    case Alu::kOr:
      return predicate<Alu::kOr>;
    case Alu::kXor:
      return predicate<Alu::kXor>;
    case Alu::kNot:
      return predicate<Alu::kNot>;
    case Alu::kMov:
      return predicate<Alu::kMov>;
    default:
      return nullptr;
  }
}

}  // namespace olpager::simgpu::ptx
