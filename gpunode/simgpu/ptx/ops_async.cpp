// Asynchronous copies to and from shared memory, and the barriers there that tell of them.
#include <algorithm>
#include <cstring>

#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

// An mbarrier word: bits 0-19 arrivals still expected in this phase, 20-39 arrivals of a phase,
// 40-60 bytes still expected (two's complement: they may be there before they are expected), 63 the
// phase's parity. Ours alone: programs see it through these operations.
constexpr std::uint64_t kCount = 0xFFFFF;
constexpr std::uint64_t kBytes = 0x1FFFFF;

/// A word's parts. The word goes on to the next phase when it is stored with nothing left to
/// expect.
struct Phase {
  explicit Phase(std::uint64_t& where) : word(where) {}
  void arrive(std::uint64_t count) { pending -= std::min(pending, count); }
  void store() {
    if (pending == 0 && (bytes & kBytes) == 0) {
      pending = total;
      parity ^= 1;
    }
    word = pending | total << 20 | (bytes & kBytes) << 40 | parity << 63;
  }

  std::uint64_t& word;
  std::uint64_t pending = word & kCount;
  std::uint64_t total = word >> 20 & kCount;
  std::uint64_t bytes = word >> 40 & kBytes;
  std::uint64_t parity = word >> 63;
};

/// r[8] shared destination (flags kAddress32) + low half of imm; r[7] source + high half of imm;
/// r[2] bytes; r[3] source bytes register or kNoTarget.
Step copyAsync(Warp& w, const Op& op) {
  const auto low =
      static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(op.imm)));
  const auto high = static_cast<std::uint64_t>(static_cast<std::int64_t>(op.imm) >> 32);
  const std::uint32_t bytes = op.r[2];
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::uint64_t to =
        kSharedWindow + ((op.flags & kAddress32) != 0
                             ? w.reg<std::uint32_t>(op.r[8])[i] + static_cast<std::uint32_t>(low)
                             : w.reg<std::uint64_t>(op.r[8])[i] + low);
    const std::uint64_t from = w.reg<std::uint64_t>(op.r[7])[i] + high;
    const std::uint32_t size =
        op.r[3] == kNoTarget ? bytes : std::min(bytes, w.reg<std::uint32_t>(op.r[3])[i]);
    if (to % bytes != 0) return w.failAddress(LaunchStatus::kMisaligned, to, true, i);
    if (from % bytes != 0) return w.failAddress(LaunchStatus::kMisaligned, from, false, i);
    std::byte* const d = w.resolve(to, i, bytes, true);
    if (d == nullptr) return Step::kFault;
    if (size != 0) {
      const std::byte* const s = w.resolve(from, i, size, false);
      if (s == nullptr) return Step::kFault;
      std::memcpy(d, s, size);
    }
    std::memset(d + size, 0, bytes - size);
  }
  return Step::kNext;
}

/// cp.async.bulk: r[8] destination + low half of imm, r[7] source + high half, r[3] bytes; r[4] the
/// mbarrier that is told of them (its offset in r[5]) or kNoTarget. flags: kAddress32 and kBulk*.
/// Copied where it is issued, so that nothing is left to wait for.
Step copyBulk(Warp& w, const Op& op) {
  const auto low =
      static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(op.imm)));
  const auto high = static_cast<std::uint64_t>(static_cast<std::int64_t>(op.imm) >> 32);
  const auto place = [&](std::uint32_t reg, std::uint64_t offset, std::uint32_t narrow,
                         std::uint32_t shared, std::uint32_t lane) {
    const std::uint64_t address =
        (op.flags & narrow) != 0
            ? w.reg<std::uint32_t>(reg)[lane] + static_cast<std::uint32_t>(offset)
            : w.reg<std::uint64_t>(reg)[lane] + offset;
    return (op.flags & shared) != 0 ? address + kSharedWindow : address;
  };
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::uint64_t to = place(op.r[8], low, kAddress32, kBulkToShared, i);
    const std::uint64_t from = place(op.r[7], high, kBulkFrom32, kBulkFromShared, i);
    const std::uint32_t bytes = w.reg<std::uint32_t>(op.r[3])[i];
    if (bytes % 16 != 0)
      return w.fail(LaunchStatus::kIllegalInstruction,
                    "cp.async.bulk of a size that is no multiple of 16");
    if (to % 16 != 0) return w.failAddress(LaunchStatus::kMisaligned, to, true, i);
    if (from % 16 != 0) return w.failAddress(LaunchStatus::kMisaligned, from, false, i);
    // A piece at a time: memory need not be one run.
    for (std::uint32_t at = 0; at < bytes; at += 16) {
      std::byte* const d = w.resolve(to + at, i, 16, true);
      if (d == nullptr) return Step::kFault;
      const std::byte* const s = w.resolve(from + at, i, 16, false);
      if (s == nullptr) return Step::kFault;
      std::memcpy(d, s, 16);
    }
    if (op.r[4] != kNoTarget) {
      const std::uint64_t barrier = place(op.r[4], op.r[5], kBulkBarrier32, kBulkToShared, i);
      std::byte* const p = barrier % 8 == 0 ? w.resolve(barrier, i, 8, true) : nullptr;
      if (p == nullptr) {
        return barrier % 8 == 0 ? Step::kFault
                                : w.failAddress(LaunchStatus::kMisaligned, barrier, true, i);
      }
      Phase phase(*reinterpret_cast<std::uint64_t*>(p));
      phase.bytes -= bytes;
      phase.store();
    }
  }
  return Step::kNext;
}

/// r[0] result or kNoTarget, r[8] address (flags: kAddress32, 1 << 8: shared), r[2] operand or
/// kNoTarget.
template <Mbarrier kKind>
Step mbarrier(Warp& w, const Op& op) {
  std::uint32_t lanes = 0;
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    std::uint64_t address =
        (op.flags & kAddress32) != 0
            ? w.reg<std::uint32_t>(op.r[8])[i] + static_cast<std::uint32_t>(op.imm)
            : w.reg<std::uint64_t>(op.r[8])[i] + op.imm;
    if ((op.flags & 0x100) != 0) address += kSharedWindow;
    if (address % 8 != 0) return w.failAddress(LaunchStatus::kMisaligned, address, true, i);
    std::byte* const p = w.resolve(address, i, 8, true);
    if (p == nullptr) return Step::kFault;
    auto& word = *reinterpret_cast<std::uint64_t*>(p);
    const std::uint64_t state = word;
    const std::uint32_t operand = op.r[2] == kNoTarget ? 1 : w.reg<std::uint32_t>(op.r[2])[i];
    if constexpr (kKind == Mbarrier::kInit) {
      word = (operand & kCount) | (operand & kCount) << 20;
    } else if constexpr (kKind == Mbarrier::kInval) {
      word = 0;
    } else if constexpr (kKind == Mbarrier::kArrive || kKind == Mbarrier::kArriveDrop ||
                         kKind == Mbarrier::kArriveExpect || kKind == Mbarrier::kArriveDropExpect) {
      constexpr bool kExpect =
          kKind == Mbarrier::kArriveExpect || kKind == Mbarrier::kArriveDropExpect;
      Phase phase(word);
      if (kExpect) phase.bytes += operand;
      const std::uint64_t count = kExpect ? 1 : operand;
      if (kKind == Mbarrier::kArriveDrop || kKind == Mbarrier::kArriveDropExpect)
        phase.total -= std::min(phase.total, count);
      phase.arrive(count);
      phase.store();
      if (op.r[0] != kNoTarget) w.reg<std::uint64_t>(op.r[0])[i] = state;
    } else if constexpr (kKind == Mbarrier::kExpect) {
      // Says how much will come, and by itself completes nothing.
      const Phase before(word);
      word = (word & ~(kBytes << 40)) | ((before.bytes + operand) & kBytes) << 40;
    } else if constexpr (kKind == Mbarrier::kComplete) {
      Phase phase(word);
      phase.bytes -= operand;
      phase.store();
    } else if constexpr (kKind == Mbarrier::kTestWait) {
      const std::uint64_t token = w.reg<std::uint64_t>(op.r[2])[i];
      lanes |= static_cast<std::uint32_t>((word ^ token) >> 63) << i;
    } else if constexpr (kKind == Mbarrier::kTestWaitParity) {
      lanes |= static_cast<std::uint32_t>((word >> 63) != (operand & 1)) << i;
    }
  }
  if constexpr (kKind == Mbarrier::kTestWait || kKind == Mbarrier::kTestWaitParity)
    w.setPredicate(op.r[0], lanes);
  return Step::kNext;
}

}  // namespace

OpFn copyAsyncOp() { return copyAsync; }

OpFn copyBulkOp() { return copyBulk; }

OpFn mbarrierOp(Mbarrier kind) {
  switch (kind) {
    case Mbarrier::kInit:
      return mbarrier<Mbarrier::kInit>;
    case Mbarrier::kInval:
      return mbarrier<Mbarrier::kInval>;
    case Mbarrier::kArrive:
      return mbarrier<Mbarrier::kArrive>;
    case Mbarrier::kArriveDrop:
      return mbarrier<Mbarrier::kArriveDrop>;
    case Mbarrier::kTestWait:
      return mbarrier<Mbarrier::kTestWait>;
    case Mbarrier::kTestWaitParity:
      return mbarrier<Mbarrier::kTestWaitParity>;
    case Mbarrier::kArriveExpect:
      return mbarrier<Mbarrier::kArriveExpect>;
    case Mbarrier::kArriveDropExpect:
      return mbarrier<Mbarrier::kArriveDropExpect>;
    case Mbarrier::kExpect:
      return mbarrier<Mbarrier::kExpect>;
    case Mbarrier::kComplete:
      return mbarrier<Mbarrier::kComplete>;
  }
  return nullptr;
}

}  // namespace olpager::simgpu::ptx
