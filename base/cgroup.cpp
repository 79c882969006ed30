#include "base/cgroup.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace olpager::base {
namespace {

// Version 1 has no word for no limit, but a number that no machine has.
constexpr uint64_t kNoLimit = 1ull << 60;

// "max" is no number: no limit.
std::optional<uint64_t> number(const std::filesystem::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number behind this name, each on a line of its own.
uint64_t field(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  uint64_t value = 0;
  while (file >> key >> value)
    if (key == name) return value;
  return 0;
}

// An ancestor's memory.events counts those of all groups below it, which need not be in this one's
// way.
uint64_t timesAtLimit(const std::filesystem::path& folder) {
  std::filesystem::path events = folder / "memory.events.local";
  if (!std::ifstream(events)) events = folder / "memory.events";
  return field(events, "high") + field(events, "max");
}

CgroupMemory memoryOf(const std::filesystem::path& folder) {
  CgroupMemory one;
  if (const auto old = number(folder / "memory.limit_in_bytes")) {  // version 1; it has no PSI
    if (*old < kNoLimit) one.limit = old;
    one.current = number(folder / "memory.usage_in_bytes").value_or(0);
    one.current -= std::min(one.current, field(folder / "memory.stat", "total_inactive_file"));
    one.throttled = number(folder / "memory.failcnt").value_or(0);
    return one;
  }
  const auto max = number(folder / "memory.max"), high = number(folder / "memory.high");
  if (max || high) one.limit = std::min(max.value_or(UINT64_MAX), high.value_or(UINT64_MAX));
  one.current = number(folder / "memory.current").value_or(0);
  one.current -= std::min(one.current, field(folder / "memory.stat", "inactive_file"));
  one.some = pressureAverage(folder / "memory.pressure", "some");
  one.full = pressureAverage(folder / "memory.pressure", "full");
  one.throttled = timesAtLimit(folder);
  return one;
}

}  // namespace

std::string ownCgroup(const std::string& proc) {
  std::ifstream file(proc + "/self/cgroup");
  std::string unified;
  for (std::string line; std::getline(file, line);) {  // "4:cpu,memory:/path", "0::/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find(",memory,") != std::string::npos)
      return "/sys/fs/cgroup/memory" + line.substr(second + 1);
    if (line.starts_with("0::")) unified = "/sys/fs/cgroup" + line.substr(second + 1);
  }
  return unified;
}

// Up to the root of all: what is no cgroup has no such files. In a container the path may be one of
// the host's, and not be there, but the mount's root is the container's: the first that is there is
// the own one.
CgroupMemory cgroupMemory(const std::string& folder) {
  CgroupMemory all;
  std::filesystem::path path = folder;
  if (!path.has_filename()) path = path.parent_path();  // "/sys/fs/cgroup/"
  bool own = true;
  for (; !path.empty(); path = path.parent_path()) {
    const CgroupMemory one = memoryOf(path);
    if (one.limit && one.room() < all.room()) {
      all.limit = one.limit;
      all.current = one.current;
    }
    // PSI of a group above is also of others below it, which may stall at limits of their own. The
    // figure counts for this one where both are below the same limit.
    if (own || one.limit) {
      all.some = std::max(all.some, one.some);
      all.full = std::max(all.full, one.full);
    }
    std::error_code none;
    if (std::filesystem::exists(path, none)) own = false;
    all.throttled += one.throttled;
    if (path == path.parent_path()) break;
  }
  return all;
}

// "some avg10=1.23 ..."
double pressureAverage(const std::string& path, const std::string& kind) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("avg10=");
    if (line.starts_with(kind + " ") && at != std::string::npos)
      return std::strtod(line.c_str() + at + 6, nullptr);
  }
  return 0;
}

}  // namespace olpager::base
