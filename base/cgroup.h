// The memory that a process's cgroup leaves it. A limit of any group above holds as well as its
// own: all of them are looked at. Read: memory.max, memory.high, memory.current, memory.stat,
// memory.events.local (before Linux 5.2 memory.events), memory.pressure; of a group of version 1
// memory.limit_in_bytes, memory.usage_in_bytes, memory.stat, memory.failcnt. Missing files do not
// count. Thread-safety: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace olpager::base {

/// Bytes.
struct CgroupMemory {
  std::optional<uint64_t> limit;  // the lower of max and high, of the group that has the least
                                  // room; none: there is no limit
  uint64_t current = 0;           // that group's use, less file pages that can go
  double some = 0,
         full = 0;  // PSI, per cent of the last 10 s: the worst of the own group and of those above
                    // with a limit
  uint64_t throttled = 0;  // how often the groups have reached their limits, in all
  /// What more could be used now; UINT64_MAX without a limit.
  uint64_t room() const { return limit ? *limit - std::min(*limit, current) : UINT64_MAX; }
};

/// The folder of this process's own cgroup, as /proc/self/cgroup below `proc` names it; "" where it
/// is in none. If both versions are in use, that of version 1 if memory is counted there.
std::string ownCgroup(const std::string& proc = "/proc");
/// The cgroup with this folder, and those above it.
CgroupMemory cgroupMemory(const std::string& folder);
/// PSI of a file such as /proc/pressure/memory, per cent of the last 10 s. `kind`: "some", "full".
/// 0 where there is none.
double pressureAverage(const std::string& path, const std::string& kind);

}  // namespace olpager::base
