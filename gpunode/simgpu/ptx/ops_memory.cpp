// ld and st. The common case, a full warp that accesses neighbouring elements in one run of memory,
// is one translation and one loop that can be vectorised; everything else goes lane by lane.
#include <type_traits>

#include "base/sanitizer.h"
#include "gpunode/simgpu/ptx/fence.h"
#include "gpunode/simgpu/ptx/lanes.h"

namespace olpager::simgpu::ptx::PTX_ISA {
namespace {

__extension__ typedef unsigned __int128 U128;

// Registers and a caller's own array: nothing for ThreadSanitizer, and on the way of every access.
__attribute__((no_sanitize("thread"))) void laneAddresses(Warp& w, const Op& op,
                                                          std::uint64_t* out) {
  if ((op.flags & kAddress32) != 0) {
    const std::uint32_t* const a = w.reg<std::uint32_t>(op.r[8]);
    const auto offset = static_cast<std::uint32_t>(op.imm);
    for (std::uint32_t i = 0; i < kWarpSize; ++i) out[i] = a[i] + offset;
  } else {
    const std::uint64_t* const a = w.reg<std::uint64_t>(op.r[8]);
    for (std::uint32_t i = 0; i < kWarpSize; ++i) out[i] = a[i] + op.imm;
  }
}

/// Lane i accesses first + i * bytes.
__attribute__((no_sanitize("thread"))) bool unitStride(const std::uint64_t* addresses,
                                                       std::uint64_t bytes) {
  std::uint64_t difference = 0;
  for (std::uint32_t i = 0; i < kWarpSize; ++i)
    difference |= addresses[i] ^ (addresses[0] + i * bytes);
  return difference == 0;
}

/// The targets of lanes' accesses; remembers the last run.
template <Space kSpace>
class Target {
 public:
  explicit Target(Warp& w) : w_(w) {
    if constexpr (kSpace == Space::kGeneric) w.worker->tlb.refresh();
  }

  /// Host memory of [address, address + bytes), or null if it is not one run of the usual memory of
  /// the space.
  [[gnu::always_inline]] std::byte* run(std::uint64_t address, std::uint64_t bytes, bool write) {
    if constexpr (kSpace == Space::kShared) {
      const Block& block = *w_.block;
      return address < block.shared_size && bytes <= block.shared_size - address
                 ? block.shared_data + address
                 : nullptr;
    } else if constexpr (kSpace == Space::kGeneric) {
      if (address - begin_ < end_ - begin_ && bytes <= end_ - address) [[likely]]
        return host_ + (address - begin_);
      if (address - kSharedWindow < w_.block->shared_size) {
        begin_ = kSharedWindow;
        end_ = begin_ + w_.block->shared_size;
        host_ = w_.block->shared_data;
      } else {
        if (address >= kSharedWindow) return nullptr;
        const Translation* const found = w_.worker->tlb.find(address, write);
        if (found == nullptr) return nullptr;
        begin_ = found->va_begin;
        end_ = found->va_end;
        host_ = found->host;
      }
      return bytes <= end_ - address ? host_ + (address - begin_) : nullptr;
    } else {
      return nullptr;
    }
  }

  [[gnu::always_inline]] std::byte* lane(std::uint64_t address, std::uint32_t i,
                                         std::uint32_t bytes, bool write) {
    if constexpr (kSpace == Space::kLocal) {
      const std::uint32_t stack = w_.block->stack_bytes;
      if (address < stack && bytes <= stack - address) [[likely]] {
        return w_.local + static_cast<std::size_t>(i) * stack + address;
      }
      return w_.resolve(address + kLocalWindow, i, bytes, write);
    } else {
      std::byte* const host = run(address, bytes, write);
      if (host != nullptr) [[likely]]
        return host;
      return w_.resolve(kSpace == Space::kShared ? address + kSharedWindow : address, i, bytes,
                        write);
    }
  }

 private:
  Warp& w_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::byte* host_ = nullptr;
};

/// Loads that read once, in passing: the pager's page pass and scans for pointers do, and may while
/// others write. Such a read of a page counts only where nobody used the page meanwhile, and
/// pointers found in memory in use are added to what is known, not believed alone
/// (pager/reach/scanner.h). These reads are no business of ThreadSanitizer's.
inline bool unseen(const Op& op) { return base::kThreadSanitizer && (op.flags & kOnce) != 0; }
template <typename M>
__attribute__((no_sanitize("thread"))) M loadUnseen(const M* p) {
  return *p;
}

template <typename M>
[[gnu::always_inline]] inline M loadOne(const std::byte* p) {
  if constexpr (sizeof(M) == 16) {
    M value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
  } else {
    return __atomic_load_n(reinterpret_cast<const M*>(p), __ATOMIC_RELAXED);
  }
}
template <typename M>
[[gnu::always_inline]] inline void storeOne(std::byte* p, M value) {
  if constexpr (sizeof(M) == 16) {
    __builtin_memcpy(p, &value, sizeof value);
  } else {
    __atomic_store_n(reinterpret_cast<M*>(p), value, __ATOMIC_RELAXED);
  }
}

/// M: type in memory, signed if it is to be sign-extended; R: unsigned type of the register.
template <typename M, typename R, std::uint32_t kVector, Space kSpace>
Step load(Warp& w, const Op& op) {
  constexpr std::uint32_t kBytes = sizeof(M) * kVector;
  alignas(64) std::uint64_t address[kWarpSize];
  laneAddresses(w, op, address);
  Target<kSpace> target(w);
  R* data[kVector];
  for (std::uint32_t v = 0; v < kVector; ++v) data[v] = w.reg<R>(op.r[v]);
  if (kSpace != Space::kLocal && w.mask == kFullMask && (op.flags & kStrong) == 0 &&
      unitStride(address, kBytes) && address[0] % kBytes == 0) {
    if (const std::byte* host = target.run(address[0], kBytes * kWarpSize, false); host != nullptr)
        [[likely]] {
      const M* const m = reinterpret_cast<const M*>(host);
      for (std::uint32_t v = 0; v < kVector; ++v) {
        R* const d = data[v];
        PTX_LANE_LOOP
        for (std::uint32_t i = 0; i < kWarpSize; ++i) {
          const M* const from = m + i * kVector + v;
          d[i] = static_cast<R>(unseen(op) ? loadUnseen(from) : *from);
        }
      }
      return Step::kNext;
    }
  }
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    if (address[i] % kBytes != 0) [[unlikely]] {
      return w.failAddress(LaunchStatus::kMisaligned, address[i], false, i);
    }
    const std::byte* const p = target.lane(address[i], i, kBytes, false);
    if (p == nullptr) [[unlikely]]
      return Step::kFault;
    for (std::uint32_t v = 0; v < kVector; ++v) {
      const std::byte* const from = p + v * sizeof(M);
      data[v][i] = static_cast<R>(unseen(op) ? loadUnseen(reinterpret_cast<const M*>(from))
                                             : loadOne<M>(from));
    }
  }
  if ((op.flags & kStrong) != 0) {
    if ((op.flags & kOrdered) != 0) fullFence();
    w.mayBeSpinning();
  }
  return Step::kNext;
}

template <typename M, typename R, std::uint32_t kVector, Space kSpace>
Step store(Warp& w, const Op& op) {
  constexpr std::uint32_t kBytes = sizeof(M) * kVector;
  alignas(64) std::uint64_t address[kWarpSize];
  laneAddresses(w, op, address);
  Target<kSpace> target(w);
  const R* data[kVector];
  for (std::uint32_t v = 0; v < kVector; ++v) data[v] = w.reg<R>(op.r[v]);
  if ((op.flags & kOrdered) != 0) fullFence();
  if (kSpace != Space::kLocal && w.mask == kFullMask && (op.flags & kStrong) == 0 &&
      unitStride(address, kBytes) && address[0] % kBytes == 0) {
    if (std::byte* host = target.run(address[0], kBytes * kWarpSize, true); host != nullptr)
        [[likely]] {
      M* const m = reinterpret_cast<M*>(host);
      for (std::uint32_t v = 0; v < kVector; ++v) {
        const R* const s = data[v];
        PTX_LANE_LOOP
        for (std::uint32_t i = 0; i < kWarpSize; ++i) m[i * kVector + v] = static_cast<M>(s[i]);
      }
      return Step::kNext;
    }
  }
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    if (address[i] % kBytes != 0) [[unlikely]] {
      return w.failAddress(LaunchStatus::kMisaligned, address[i], true, i);
    }
    std::byte* const p = target.lane(address[i], i, kBytes, true);
    if (p == nullptr) [[unlikely]]
      return Step::kFault;
    for (std::uint32_t v = 0; v < kVector; ++v)
      storeOne<M>(p + v * sizeof(M), static_cast<M>(data[v][i]));
  }
  return Step::kNext;
}

template <typename M, typename R, Space kSpace>
OpFn withVector(bool is_store, std::uint32_t vector) {
  switch (vector) {
    case 1:
      return is_store ? store<M, R, 1, kSpace> : load<M, R, 1, kSpace>;
    case 2:
      return is_store ? store<M, R, 2, kSpace> : load<M, R, 2, kSpace>;
    case 4:
      if constexpr (sizeof(M) < 16)
        return is_store ? store<M, R, 4, kSpace> : load<M, R, 4, kSpace>;
      break;
    case 8:
      if constexpr (sizeof(M) == 4)
        return is_store ? store<M, R, 8, kSpace> : load<M, R, 8, kSpace>;
      break;
    default:
      break;
  }
  return nullptr;
}

template <typename M, typename R>
OpFn withSpace(const MemoryKind& kind) {
  switch (kind.space) {
    case Space::kShared:
      return withVector<M, R, Space::kShared>(kind.store, kind.vector);
    case Space::kLocal:
      return withVector<M, R, Space::kLocal>(kind.store, kind.vector);
    default:
      return withVector<M, R, Space::kGeneric>(kind.store, kind.vector);
  }
}

template <typename U, typename S>
OpFn withRegister(const MemoryKind& kind, bool sign) {
  switch (kind.reg_bytes) {
    case 2:
      if constexpr (sizeof(U) <= 2)
        return sign ? withSpace<S, std::uint16_t>(kind) : withSpace<U, std::uint16_t>(kind);
      break;
    case 4:
      if constexpr (sizeof(U) <= 4)
        return sign ? withSpace<S, std::uint32_t>(kind) : withSpace<U, std::uint32_t>(kind);
      break;
    case 8:
      return sign && sizeof(U) < 8 ? withSpace<S, std::uint64_t>(kind)
                                   : withSpace<U, std::uint64_t>(kind);
    default:
      break;
  }
  return nullptr;
}

}  // namespace

OpFn memoryOp(const MemoryKind& kind) {
  const bool sign = !kind.store && isSigned(kind.type) && typeSize(kind.type) < kind.reg_bytes;
  switch (typeSize(kind.type)) {
    case 1:
      return withRegister<std::uint8_t, std::int8_t>(kind, sign);
    case 2:
      return withRegister<std::uint16_t, std::int16_t>(kind, sign);
    case 4:
      return withRegister<std::uint32_t, std::int32_t>(kind, sign);
    case 8:
      return withRegister<std::uint64_t, std::int64_t>(kind, sign);
    case 16:
      return kind.reg_bytes == 16 ? withSpace<U128, U128>(kind) : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace olpager::simgpu::ptx::PTX_ISA
