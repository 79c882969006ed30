// Why launches wait, and what the GPU waits for: the part of a process's counters that
// `olpagestat --why` reads. docs/reference/counters.md describes the layout; a change of it raises
// kCountersVersion.
//
// Each device's figures of waiting are a partition: the engine's thread, which serves the launches
// that wait, says of each moment in which at least one of them does what that moment went for
// (WaitAccount in residency/wait_account.h). So the sum of `limited_ns` is `waiting_ns`, and a
// finding can say what share of the waiting would go with its cause.
//
// Thread-safety: as in counters.h. A text is written by the holder of PoolState::mutex.
#pragma once

#include <atomic>
#include <cstdint>

#include "coherence/status/unified_counters.h"

namespace olpager::pager {

/// The cause of a moment in which a launch or a copy waits. The first one in this order that holds;
/// so what copies to VRAM hide is not counted.
enum class Limit : uint8_t {
  kLinkIn,      // copies from host RAM to VRAM were under way
  kMapping,     // the driver made, mapped, unmapped or took back memory
  kMemservers,  // pages came from memservers or went there
  kLinkOut,     // copies from VRAM to host RAM, or their packing, were under way
  kHash,        // the GPU hashed and scanned pages before they could leave
  kKernels,     // kernels that were submitted before used what was to leave
  kHostMemory,  // the driver made host memory
  kOthers,      // the CPU or other executors had the pages
  kThread,      // the engine's thread itself
  kUnknown,
};
inline constexpr unsigned kLimits = 10;
inline constexpr unsigned kMostLimits = 16;  // places in the file

/// Why the reach of a launch is unknown.
enum class AllReason : uint8_t {
  kRoot,   // it reaches memory outside the range that can't be looked through
  kHost,   // what the host wrote could not be scanned in time
  kGraph,  // a graph with a copy from the host
  kOther,
};
inline constexpr unsigned kAllReasons = 4;

inline constexpr unsigned kWhyText = 128;

/// One device's, 1024 bytes. (g): a gauge.
// Many members: one for each counter.
struct alignas(64) DeviceWhy {
  // Waiting.
  status::Counter waited_ns;                // of launches and copies, each counted by itself
  status::Counter waiting_ns;               // in which at least one waited at the engine
  status::Counter limited_ns[kMostLimits];  // of waiting_ns, by Limit
  status::Counter awake_ns;                 // of the engine's thread: what it did not sleep
  // The link between host RAM and VRAM.
  status::Counter link_in_ns;     // in which copies to VRAM were under way
  status::Counter link_in_bytes;  // of copies that came to their end
  status::Counter link_in_best;   // (g) bytes a second, of the best window so far
  // The learned round.
  status::Counter round_bytes;       // (g) that it uses; 0: none is known
  status::Counter round_kept_bytes;  // (g) of these, what stays in VRAM
  // The GPU: it is looked at again and again while not all is in VRAM, and the time since it was
  // looked at before counts as what it is at now.
  status::Counter looks;
  status::Counter busy_ns;        // something was submitted and not over
  status::Counter idle_pages_ns;  // idle: a launch waited for pages
  status::Counter idle_host_ns;   // idle: nothing waited, and nothing was submitted
  status::Counter idle_hop_ns;    // idle: operations of a unified view run elsewhere, or hop
  status::Counter idle_other_ns;  // idle, and nobody knows why
  // Memory that launches use.
  status::Counter graph_launches;
  status::Counter graph_launches_beyond;      // that reach more than VRAM has room for
  status::Counter graph_most_bytes;           // (g) that one of them reached
  status::Counter reaching_all[4];            // launches_reaching_all, by AllReason
  status::Counter sparse_bytes;               // (g) of allocations that stay in host RAM
  status::Counter sparse_allocations;         // (g) since launches touch little of them
  status::Counter sparse_launches;            // that used one of them
  status::Counter in_place_base;              // (g) of the allocation of which most is used
  status::Counter in_place_bytes;             // (g) in place: how much is
  status::Counter in_place_allocation_bytes;  // (g) of how much
  status::Counter in_place_launches;          // that used it so
  status::Counter graph_launches_in_parts;    // of graph_launches_beyond, made as their nodes
  status::Counter reserved[19];
  char reaching_all_kernel[kWhyText];  // the last one, NUL-terminated
  char in_place_kernel[kWhyText];      // likewise, of the allocation above
  status::Counter reserved_text[32];
};

/// One memserver's, in the order of the setting; its name is in RdmaCounters::links.
struct alignas(64) MemserverWhy {
  status::Counter in_bytes;   // that came from it
  status::Counter in_ns;      // in which something was to come from it
  status::Counter in_best;    // (g) bytes a second, of the best window so far
  status::Counter out_bytes;  // that went there
  status::Counter out_ns;
  status::Counter out_best;  // (g)
  status::Counter reserved[2];
};
inline constexpr unsigned kWhyMemservers = 16;

/// A page of managed memory that goes to and fro between the CPU and GPUs. The fault thread writes.
struct alignas(64) BouncingPage {
  status::Counter address;  // 0: free
  status::Counter bounces;  // times that it had come to the CPU and was taken again
  status::Counter written;  // of these, the CPU might write it
  status::Counter credit;   // how long it keeps its place
  status::Counter reserved[4];
};
inline constexpr unsigned kBouncingPages = 16;

/// All of it.
struct alignas(64) WhyCounters {
  DeviceWhy devices[16];
  MemserverWhy memservers[kWhyMemservers];
  BouncingPage bouncing[kBouncingPages];
  status::Counter host_made_bytes;  // host memory that the driver has made
  status::Counter host_making_ns;   // in which it did
  status::Counter bounces;          // of pages of managed memory, from the CPU to a GPU
  status::Counter cpu_faults;       // touches of managed memory by the CPU that waited for a page
  status::Counter cpu_wait_ns;      // how long
  status::Counter reserved[27];
};
static_assert(sizeof(DeviceWhy) == 1024 && sizeof(MemserverWhy) == 64 &&
              sizeof(BouncingPage) == 64);
static_assert(sizeof(WhyCounters) == 16 * 1024 + 16 * 64 + 16 * 64 + 256);

/// A page of managed memory was at the CPU and is taken. One writer at a time. A page that bounces
/// gains credit; one that finds no place takes some from the poorest, and gets the poorest one's
/// place when nothing of its credit is left.
inline void noteBounce(WhyCounters& why, uint64_t address, bool written) noexcept {
  const auto bump = [](status::Counter& counter, uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  };
  bump(why.bounces, 1);
  BouncingPage* poorest = nullptr;
  for (BouncingPage& page : why.bouncing) {
    const uint64_t at = page.address.load(std::memory_order_relaxed);
    if (at == address) {
      bump(page.bounces, 1);
      bump(page.written, written ? 1 : 0);
      return bump(page.credit, 1);
    }
    const auto credit = [](const BouncingPage& of) {
      return of.address.load(std::memory_order_relaxed) == 0
                 ? 0
                 : of.credit.load(std::memory_order_relaxed);
    };
    if (poorest == nullptr || credit(page) < credit(*poorest)) poorest = &page;
  }
  if (const uint64_t credit = poorest->credit.load(std::memory_order_relaxed); credit > 0)
    return poorest->credit.store(credit - 1, std::memory_order_relaxed);
  poorest->address.store(0, std::memory_order_relaxed);
  poorest->bounces.store(1, std::memory_order_relaxed);
  poorest->written.store(written ? 1 : 0, std::memory_order_relaxed);
  poorest->credit.store(1, std::memory_order_relaxed);
  poorest->address.store(address, std::memory_order_release);
}

}  // namespace olpager::pager
