// Counters of one process in shared memory: the pager's work, for olpagestat to read while the
// program runs. docs/reference/counters.md describes the layout for other readers; a change of it
// raises kCountersVersion.
//
// Thread-safety: everything here may be used from any thread; increments are relaxed atomics, no
// lock, no system call. Errors: counters() never fails. When the file can't be made it says so once
// (warning line) and counts in private memory. Fork: a child counts into private memory of its own
// at the same address, so it neither disturbs the parent's figures nor faults. Exit: the file is
// removed by the process that made it, unless OL_COUNTERS_KEEP asks to keep it.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "coherence/status/link_counters.h"
#include "coherence/status/unified_counters.h"
#include "pager/counters/rdma_counters.h"
#include "pager/counters/why_counters.h"

namespace olpager::pager {

using Counter = status::Counter;
static_assert(Counter::is_always_lock_free && sizeof(Counter) == 8);

inline constexpr uint64_t kCountersMagic = 0x00544e554f434c4f;  // "OLCOUNT\0" in memory
inline constexpr uint32_t kCountersVersion = 9;
inline constexpr unsigned kMaxCountedDevices = 16;  // devices beyond share the last entry
inline constexpr unsigned kWaitBuckets = 48;

/// Adds to a counter that only grows.
inline void add(Counter& counter, uint64_t n = 1) noexcept {
  counter.fetch_add(n, std::memory_order_relaxed);
}
/// Takes from a gauge (bytes that come and go).
inline void subtract(Counter& gauge, uint64_t n) noexcept {
  gauge.fetch_sub(n, std::memory_order_relaxed);
}
/// Sets a gauge.
inline void set(Counter& gauge, uint64_t value) noexcept {
  gauge.store(value, std::memory_order_relaxed);
}

/// A gauge that remembers its maximum: a program's use is still there to see when it has freed
/// everything.
struct Gauge : Counter {
  Counter peak;
};
inline void add(Gauge& gauge, uint64_t n = 1) noexcept {
  const uint64_t now = gauge.fetch_add(n, std::memory_order_relaxed) + n;
  uint64_t most = gauge.peak.load(std::memory_order_relaxed);
  while (now > most && !gauge.peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

inline uint64_t valueOf(const Counter& counter) noexcept {
  return counter.load(std::memory_order_relaxed);
}

/// Durations by powers of two: bucket i counts those in [2^i, 2^(i+1)) ns, bucket 0 also 0 ns, the
/// last also all longer.
struct WaitHistogram {
  Counter buckets[kWaitBuckets];

  void record(uint64_t nanoseconds) noexcept {
    const unsigned bit =
        nanoseconds == 0 ? 0 : 63u - static_cast<unsigned>(std::countl_zero(nanoseconds));
    add(buckets[bit < kWaitBuckets ? bit : kWaitBuckets - 1]);
  }
};

/// The duration in ns below which the share `quantile` (0 to 1) of what was recorded lies,
/// interpolated in its bucket.
/// 0 when nothing was recorded.
double waitPercentile(const WaitHistogram& histogram, double quantile) noexcept;

/// One device's figures, each a member, as in the file. (g): a gauge, the present value; others
/// only grow. Bytes are bytes; a page is 2 MiB. Counters that launches write lie on cache lines of
/// their own.
// Many members: one for each counter.
struct alignas(64) DeviceCounters {
  // Launch path.
  Counter launches;               // launches and graph launches that name pool memory
  Counter launches_resident;      // of these, all that they reach was where it should be: nothing
                                  // fetched or waited for
  Counter launches_in_place;      // of these, at least one extent was used in host memory in place
  Counter copies;                 // copies and memsets with pool memory
  Counter launches_reaching_all;  // launches of which nobody knew what they reach, although reach
                                  // is not `all`
  /// Until when (CLOCK_MONOTONIC) events are put into the trace ring; set by who reads it, 0:
  /// nobody does. On the line that a launch writes anyway.
  Counter trace_until_ns;
  Counter reserved_launch[2];

  // Memory.
  alignas(64) Gauge allocated_bytes;  // (g) as the program asked for
  Gauge resident_bytes;               // (g) mapped in VRAM
  Gauge in_place_bytes;               // (g) mapped for the GPU in host memory
  Gauge parked_bytes;                 // (g) in the host tier, not mapped for the GPU
  Gauge pinned_bytes;   // (g) of extents held in VRAM for users of addresses that pass no launch
  Counter allocations;  // (g)
  Counter vram_budget_bytes;  // (g)
  Counter pinned_extents;     // (g)
  Gauge remote_bytes;         // (g) that only memservers have
  Counter reserved_memory[1];

  // Movement.
  alignas(64) Counter demand_faults;  // extents fetched since a launch or copy waited for them
  Counter prefetches_issued;          // extents
  Counter prefetches_useful;          // of these, used before they were evicted
  Counter prefetches_wasted;          // of these, evicted or freed unused
  Counter evictions_clean;            // extents dropped, equal to their lower copy
  Counter evictions_written;          // extents written to the host tier
  Counter
      bytes_in;  // host to VRAM, as they crossed the bus: of packed images less than their pages
  Counter bytes_out;  // VRAM to host
  Counter scans;      // pages scanned for pointers
  Counter hashed_bytes;
  Counter remote_out;           // bytes that went to memservers, replicas not counted
  Counter remote_in;            // and came back
  Counter remote_dropped;       // bytes that left host RAM because memservers had them already
  Counter fetched_bytes;        // of the pages that came from host RAM into VRAM
  Counter evictions_cancelled;  // extents that were chosen to leave VRAM or their place in host RAM
                                // and stayed: needed before they had left
  Counter kept_bytes;           // of managed pages that came back from the CPU, which had only read
                                // them: VRAM had them still

  alignas(64) WaitHistogram fault_wait;  // of launches and copies that waited: for extents fetched,
                                         // on their way already, or to be mapped in place
};

/// The program's memory on disks (olrun --disk). Encrypted or not: as many bytes as its pages have.
struct alignas(64) DiskCounters {
  Counter capacity_bytes;  // (g) that disks can hold, with what they hold
  Counter held_bytes;      // (g) of copies, also of what is in RAM or VRAM as well
  Counter written_bytes;   // so far: SSDs wear by it
  Counter read_bytes;
  Counter reserved[4];
};

/// The beginning of the file; details.h has the rest. Everything up to `devices` describes the
/// process. A forwarded program has no device here, but `links`; that of a unified view over
/// several gpunodes has `unified`.
// Many members: one for each counter.
struct alignas(64) Counters {
  Counter magic;     // kCountersMagic, stored last when the file is made
  uint32_t version;  // kCountersVersion
  uint32_t bytes;    // of the whole file
  uint32_t pid;      // in the PID namespace below
  uint32_t uid;
  uint64_t pid_namespace;    // inode of /proc/self/ns/pid, 0 unknown
  uint64_t start_ticks;      // field 22 of /proc/<pid>/stat: with the pid it names one process
  uint64_t started_unix_ns;  // CLOCK_REALTIME when the file was made
  uint64_t keep_token;       // OL_COUNTERS_KEEP, 0: removed at exit
  char program[64];          // its short name, NUL-terminated

  alignas(64) Counter ended_unix_ns;  // 0 while the process runs
  Counter device_count;               // (g) entries of `devices` in use
  Counter pool_bytes;                 // (g) what can be allocated in all
  Counter host_limit_bytes;           // (g) of the host tier
  Counter host_used_bytes;            // (g) of the host tier, pages in use and kept free
  Counter managed_allocations;        // passed to the driver as they are
  Counter managed_bytes;
  Counter pinned_host_allocations;  // passed to the driver as they are
  Counter pinned_host_bytes;
  Counter memservers_tcp;    // (g) memservers that are connected, by the transport that was chosen
  Counter memservers_shm;    // (g)
  Counter memserver_bytes;   // (g) that memservers can hold for the program, with what they hold
  Counter memservers_verbs;  // (g) as memservers_tcp
  Counter card_registrations;  // of memory with RDMA cards, for memservers: each pins it
  Counter card_bytes;          // (g) that RDMA cards know now, each card counted by itself
  Counter host_wait_ns;        // for which something waited until the driver had made host memory

  DeviceCounters devices[kMaxCountedDevices];
  status::UnifiedCounters unified;
  RdmaCounters rdma;
  WhyCounters why;
  status::LinksCounters links;
  DiskCounters disk;

  /// Devices in use, as many as have an entry here.
  unsigned devicesInUse() const noexcept {
    const uint64_t count = valueOf(device_count);
    return count < kMaxCountedDevices ? static_cast<unsigned>(count) : kMaxCountedDevices;
  }
  static unsigned indexOf(unsigned ordinal) noexcept {
    return ordinal < kMaxCountedDevices ? ordinal : kMaxCountedDevices - 1;
  }
  /// The waits of device `ordinal`.
  DeviceWhy& whyOf(unsigned ordinal) noexcept { return why.devices[indexOf(ordinal)]; }
  /// The figures of device `ordinal`; makes it one of those in use.
  DeviceCounters& device(unsigned ordinal) noexcept {
    const unsigned index = indexOf(ordinal);
    uint64_t used = device_count.load(std::memory_order_relaxed);
    while (used <= index &&
           !device_count.compare_exchange_weak(used, index + 1, std::memory_order_relaxed)) {
    }
    return devices[index];
  }
};

// The offsets that docs/reference/counters.md gives are tested (Gauge is no standard-layout type,
// so offsetof is not for headers).
static_assert(sizeof(Gauge) == 16 && sizeof(DeviceCounters) == 704);
static_assert(sizeof(Counters) == 256 + kMaxCountedDevices * sizeof(DeviceCounters) +
                                      sizeof(status::UnifiedCounters) + sizeof(RdmaCounters) +
                                      sizeof(WhyCounters) + sizeof(status::LinksCounters) +
                                      sizeof(DiskCounters));

/// This process's counters. The first call makes the file (a few system calls, may allocate); later
/// ones are one load. The memory stays valid until the process has ended, in any exit order.
Counters& counters() noexcept;

}  // namespace olpager::pager
