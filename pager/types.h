// The pager's words: sizes, modes, and facts about an address. Plain values.
#pragma once

#include <cuda.h>

#include <compare>
#include <cstdint>
#include <mutex>

#include "base/held_signals.h"
#include "base/space/pages.h"
#include "pager/kernels/hash_and_scan.h"

namespace olpager::pager {

using space::kPageBytes;

/// The allocations that a launch is taken to reach besides those its parameters name. See
/// docs/internals/architecture.md.
enum class Reach : uint8_t {
  kTraced,   // those whose addresses lie in pages that it reaches, found by scanning (default)
  kAll,      // every allocation: parked extents stay mapped in place
  kLearned,  // of an arena only the predicted working set; the user vouches for it
};

/// The memory sizes that cuMemGetInfo and cuDeviceTotalMem report.
enum class Report : uint8_t { kNode, kPool };

enum class AllocationKind : uint8_t {
  kDevice,         // cuMemAlloc and pitched
  kStreamOrdered,  // cuMemAllocAsync
  kVmm,            // the program's own cuMemCreate + cuMemMap
  kManaged,        // cuMemAllocManaged
};

/// The tables' record of an address. Plain data, valid as of the call.
struct AllocationInfo {
  uint64_t base = 0;       // as the program got it
  uint64_t bytes = 0;      // as the program asked for
  uint64_t buffer_id = 0;  // unique in the process, never reused
  AllocationKind kind = AllocationKind::kDevice;
  CUcontext context = nullptr;
  CUdevice device = 0;
};

/// The places of an allocation's bytes.
struct Residency {
  uint64_t vram = 0;      // mapped there
  uint64_t in_place = 0;  // mapped for the GPU in host memory
  uint64_t other = 0;     // not mapped, on the way, or never touched
  bool sparse = false;    // launches touch little of it: it stays in place
};

struct MemoryInfo {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t vram_bytes = 0;  // of total_bytes, what the VRAM budget is at present
  uint64_t lent_bytes = 0;  // what memservers and disks have room for
  bool lent_told = false;   // that is a part of total_bytes
  bool vram_set = false;    // by setVramBudget()
};

/// The kind of memory outside the range in which kernels may find pointers into it (roots.h).
enum class RootKind : uint8_t {
  kVariable,  // of a module: every kernel of its context reads it
  kHost,      // pinned
  kManaged,
  kDevice,   // device memory that is the driver's own, mapped for the context's device until it is
             // no root any more
  kUnknown,  // memory that can't be looked at: an operation that reaches it may reach anything
};

/// How an operation uses a range. A write that covers an extent whole spares the fetch of its old
/// contents.
enum class Mode : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

/// A stream as the pager keys it. `stream` is never NULL: the interposer replaces NULL by
/// CU_STREAM_LEGACY or CU_STREAM_PER_THREAD as the called symbol says; `thread` is a per-thread
/// identity for CU_STREAM_PER_THREAD, else 0.
struct StreamKey {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  uint64_t thread = 0;
  auto operator<=>(const StreamKey&) const = default;
};

/// The lock of PoolState::mutex, under which most of the pager runs.
using Lock = std::unique_lock<base::HoldingMutex>;

}  // namespace olpager::pager
