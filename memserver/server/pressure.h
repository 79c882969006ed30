// How short of memory the machine is, and what a memserver should do about it.
//
// Read: /proc/meminfo, /proc/pressure/memory, and what the cgroup and those above it leave
// (base/cgroup.h).
//
// Policy, decided anew each second. The amount wanted back is the most of:
//   - what is missing to the reserve, of the machine's available memory;
//   - what is missing to a sixteenth (at most the reserve) of free room below the cgroup's limit;
//   - a sixteenth of what is donated, while PSI is above its thresholds or the cgroup was throttled
//     at its limit since the last look; not more often than each 10 s, the time over which PSI's
//     figures are averaged.
// The target falls at once, to the donated bytes less those wanted. With nothing wanted for the
// calm time it rises, a slab at a time, to the configured size, as long as twice a slab more than
// the reserve is available. Memory for which there was no room at the start waits for the calm time
// as well.
//
// Thread-safety: one caller at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"

namespace olpager::memserver {

struct MemoryStatus {
  uint64_t total = 0, available = 0;  // of the machine
  double some = 0,
         full = 0;  // PSI, per cent of the last 10 s: the worst of the machine's and the cgroups'
  std::optional<uint64_t>
      limit;  // of the cgroup with the least room, as the next two (base::CgroupMemory)
  uint64_t current = 0;
  uint64_t throttled = 0;  // of all
  /// Bytes that can still be used: the machine's, or fewer below the limit.
  uint64_t room() const;
};

class MemoryReader {
 public:
  /// `cgroup` "": the process's own; "none".
  MemoryReader(std::string proc, const std::string& cgroup);
  /// An Error only where not even meminfo can be read.
  Result<MemoryStatus> read() const;

 private:
  const std::string proc_;
  const std::string cgroup_;  // a folder, or ""
};

inline constexpr uint64_t kFillLook = 64ull << 20;
/// Decides, while memory is being made, whether the reserve stays free. Others take memory
/// meanwhile: room is looked at again after every kFillLook bytes, or slab, that are begun.
class FillPolicy {
 public:
  enum class Answer : uint8_t {
    kMake,  // one slab more; it is counted as begun
    kWait,  // not while so much is being touched: ask again
    kFull
  };
  FillPolicy(uint64_t reserve, uint64_t slab) : reserve_(reserve), slab_(slab) {}
  /// `untouched`: of what has been begun; read before `read` is called, so that nothing is counted
  /// by neither.
  Answer next(uint64_t untouched, const std::function<Result<MemoryStatus>()>& read);

 private:
  const uint64_t reserve_, slab_;
  uint64_t allowed_ = 0;  // bytes that may be begun before the next look
};

struct PressureOptions {
  uint64_t reserve = 0;
  uint64_t configured = 0;     // what to donate at most
  uint64_t made = UINT64_MAX;  // of it, what there is at first
  uint64_t slab = 0;
  double some = 20, full = 5;
  uint32_t calm_ms = 30'000;
};

class PressurePolicy {
 public:
  explicit PressurePolicy(const PressureOptions& options)
      : options_(options), target_(std::min(options.configured, options.made)) {}
  struct Decision {
    uint64_t target = 0;  // what to donate
    std::string why;      // "": nothing presses
    bool calm = false;    // nothing has pressed for the calm time
  };
  Decision decide(const MemoryStatus& status, uint64_t donated, int64_t now_ms);

 private:
  const PressureOptions options_;
  uint64_t target_;
  uint64_t throttled_ = 0;
  bool looked_ = false;
  int64_t step_ms_ = INT64_MIN / 2;     // of the last sixteenth
  int64_t pressed_ms_ = INT64_MIN / 2;  // when something was wanted last
};

}  // namespace olpager::memserver
