#include "memserver/server/pressure.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/format.h"
#include "base/size.h"

namespace olpager::memserver {
namespace {

constexpr int64_t kStepMs = 10'000;

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number behind `name` at the beginning of a line; none if there is no such line.
std::optional<uint64_t> field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    uint64_t value = 0;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

// "some avg10=1.23 ..."
double average(const std::string& text, const std::string& kind) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find("avg10=");
    if (!line.starts_with(kind + " ") || at == std::string::npos) continue;
    return std::strtod(line.c_str() + at + 6, nullptr);
  }
  return 0;
}

std::optional<uint64_t> number(const std::string& path) {
  const std::string text = slurp(path);
  if (text.empty() || text.starts_with("max")) return std::nullopt;
  return std::strtoull(text.c_str(), nullptr, 10);
}

}  // namespace

uint64_t MemoryStatus::room() const {
  uint64_t free = available;
  if (limit) free = std::min(free, *limit - std::min(*limit, current));
  return free;
}

MemoryReader::MemoryReader(std::string proc, const std::string& cgroup) : proc_(std::move(proc)) {
  if (cgroup == "none") return;
  if (!cgroup.empty()) {
    cgroup_ = cgroup;
    return;
  }
  std::istringstream lines(slurp(proc_ + "/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::")) cgroup_ = "/sys/fs/cgroup" + line.substr(3);
  }
}

Result<MemoryStatus> MemoryReader::read() const {
  MemoryStatus status;
  const std::string meminfo = slurp(proc_ + "/meminfo");
  const auto total = field(meminfo, "MemTotal:"), available = field(meminfo, "MemAvailable:");
  if (!total || !available) return Error{base::format("{}/meminfo can't be read", proc_)};
  status.total = *total * 1024;
  status.available = *available * 1024;
  const std::string pressure = slurp(proc_ + "/pressure/memory");
  status.some = average(pressure, "some");
  status.full = average(pressure, "full");
  if (cgroup_.empty()) return status;
  const std::string own = slurp(cgroup_ + "/memory.pressure");
  status.some = std::max(status.some, average(own, "some"));
  status.full = std::max(status.full, average(own, "full"));
  const auto max = number(cgroup_ + "/memory.max"), high = number(cgroup_ + "/memory.high");
  if (max || high) status.limit = std::min(max.value_or(UINT64_MAX), high.value_or(UINT64_MAX));
  status.current = number(cgroup_ + "/memory.current").value_or(0);
  status.current -= std::min(status.current, field(slurp(cgroup_ + "/memory.stat"), "inactive_file ").value_or(0));
  const std::string events = slurp(cgroup_ + "/memory.events");
  status.throttled = field(events, "high ").value_or(0) + field(events, "max ").value_or(0);
  return status;
}

PressurePolicy::Decision PressurePolicy::decide(const MemoryStatus& status, uint64_t donated, int64_t now_ms) {
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
      want(margin - room, base::format("the cgroup is at {} of its {}", base::formatSize(status.current),
                                       base::formatSize(*status.limit)));
    }
  }
  const bool throttled = looked_ && status.throttled > throttled_;
  throttled_ = status.throttled;
  looked_ = true;
  const bool psi = status.some >= options_.some || status.full >= options_.full;
  if (throttled || psi) {
    pressed_ms_ = now_ms;
    if (now_ms - step_ms_ >= kStepMs) {
      step_ms_ = now_ms;
      want(std::max(donated / 16, options_.slab),
           throttled ? "the cgroup was throttled at its limit"
                     : base::format("memory pressure: some {:.1f} %, full {:.1f} %", status.some, status.full));
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
    // What was not given back in time need not be any more.
    target_ = std::max(target_, std::min(donated, options_.configured));
    const bool fits = status.room() >= options_.reserve + 2 * options_.slab;
    if (fits && target_ + options_.slab <= options_.configured && target_ <= donated) target_ += options_.slab;
  }
  decision.target = target_;
  return decision;
}

}  // namespace olpager::memserver
