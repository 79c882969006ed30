#include "memserver/server/pressure.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/cgroup.h"
#include "base/format.h"
#include "base/size.h"

namespace olpager::memserver {
namespace {

constexpr int64_t kStepMs = 10'000;

// A field of /proc/meminfo, in bytes; none if there is no such line.
std::optional<uint64_t> field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name))
      return std::strtoull(line.c_str() + name.size(), nullptr, 10) * 1024;
  }
  return std::nullopt;
}

}  // namespace

uint64_t MemoryStatus::room() const {
  uint64_t free = available;
  if (limit) free = std::min(free, *limit - std::min(*limit, current));
  return free;
}

MemoryReader::MemoryReader(std::string proc, const std::string& cgroup)
    : proc_(std::move(proc)),
      cgroup_(cgroup.empty()     ? base::ownCgroup(proc_)
              : cgroup == "none" ? ""
                                 : cgroup) {}

Result<MemoryStatus> MemoryReader::read() const {
  MemoryStatus status;
  const auto total = field(proc_ + "/meminfo", "MemTotal:"),
             available = field(proc_ + "/meminfo", "MemAvailable:");
  if (!total || !available) return Error{base::format("{}/meminfo can't be read", proc_)};
  status.total = *total;
  status.available = *available;
  const base::CgroupMemory group = base::cgroupMemory(cgroup_);
  status.some = std::max(group.some, base::pressureAverage(proc_ + "/pressure/memory", "some"));
  status.full = std::max(group.full, base::pressureAverage(proc_ + "/pressure/memory", "full"));
  status.limit = group.limit;
  status.current = group.current;
  status.throttled = group.throttled;
  return status;
}

FillPolicy::Answer FillPolicy::next(uint64_t untouched,
                                    const std::function<Result<MemoryStatus>()>& read) {
  if (allowed_ < slab_) {
    const auto status = read();
    // An unreadable file does not end it: it could be read a moment ago.
    const uint64_t room = status.ok() ? status.value().room() : UINT64_MAX;
    const uint64_t taken = reserve_ + untouched;
    const uint64_t left = room - std::min(room, taken);
    // Some of `untouched` may have been touched since, and then counts twice: only without any it
    // is certain.
    if (left < slab_) return untouched == 0 ? Answer::kFull : Answer::kWait;
    allowed_ = std::min(left, std::max(slab_, kFillLook));
  }
  allowed_ -= slab_;
  return Answer::kMake;
}

PressurePolicy::Decision PressurePolicy::decide(const MemoryStatus& status, uint64_t donated,
                                                int64_t now_ms) {
  uint64_t wanted = 0;
  Decision decision;
  const auto want = [&](uint64_t bytes, std::string why) {
    if (bytes <= wanted) return;
    wanted = bytes;
    decision.why = std::move(why);
  };
  if (status.available < options_.reserve) {
    want(options_.reserve - status.available,
         base::format("{} are available, and {} are reserved", base::formatSize(status.available),
                      base::formatSize(options_.reserve)));
  }
  if (status.limit) {
    const uint64_t room = *status.limit - std::min(*status.limit, status.current);
    const uint64_t margin = std::min(options_.reserve, *status.limit / 16);
    if (room < margin) {
      want(margin - room,
           base::format("the cgroup, or one above it, is at {} of its {}",
                        base::formatSize(status.current), base::formatSize(*status.limit)));
    }
  }
  const bool throttled = looked_ && status.throttled > throttled_;
  throttled_ = status.throttled;
  if (!looked_ && target_ < options_.configured)
    pressed_ms_ = now_ms;  // there was no room for the rest
  looked_ = true;
  const bool psi = status.some >= options_.some || status.full >= options_.full;
  if (throttled || psi) {
    pressed_ms_ = now_ms;
    if (now_ms - step_ms_ >= kStepMs) {
      step_ms_ = now_ms;
      want(std::max(donated / 16, options_.slab),
           throttled ? "the cgroup was throttled at its limit"
                     : base::format("memory pressure: some {:.1f} %, full {:.1f} %", status.some,
                                    status.full));
    }
  }
  if (wanted != 0) {
    pressed_ms_ = now_ms;
    // Whole slabs.
    wanted = (wanted + options_.slab - 1) / options_.slab * options_.slab;
    target_ = std::min(target_, donated - std::min(donated, wanted));
  }
  decision.calm = now_ms - pressed_ms_ >= options_.calm_ms;
  if (decision.calm) {
    // Memory that was not given back in time need not be any more.
    target_ = std::max(target_, std::min(donated, options_.configured));
    const bool fits = status.room() >= options_.reserve + 2 * options_.slab;
    if (fits && target_ + options_.slab <= options_.configured && target_ <= donated)
      target_ += options_.slab;
  }
  decision.target = target_;
  return decision;
}

}  // namespace olpager::memserver
