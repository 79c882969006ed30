#include "base/cgroup.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace olpager::base {
namespace {

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

// An ancestor's memory.events counts those of all groups below it, which need not be in this one's way.
uint64_t timesAtLimit(const std::filesystem::path& folder) {
  std::filesystem::path events = folder / "memory.events.local";
  if (!std::ifstream(events)) events = folder / "memory.events";
  return field(events, "high") + field(events, "max");
}

CgroupMemory memoryOf(const std::filesystem::path& folder) {
  CgroupMemory one;
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
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  return "";
}

// Up to the root of all: what is no cgroup has no such files. In a container the path may be one of the host's, and not be there, but the mount's
// root is the container's.
CgroupMemory cgroupMemory(const std::string& folder) {
  CgroupMemory all;
  std::filesystem::path path = folder;
  if (!path.has_filename()) path = path.parent_path();  // "/sys/fs/cgroup/"
  for (; !path.empty(); path = path.parent_path()) {
    const CgroupMemory one = memoryOf(path);
    if (one.limit && one.room() < all.room()) {
      all.limit = one.limit;
      all.current = one.current;
    }
    all.some = std::max(all.some, one.some);
    all.full = std::max(all.full, one.full);
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
    if (line.starts_with(kind + " ") && at != std::string::npos) return std::strtod(line.c_str() + at + 6, nullptr);
  }
  return 0;
}

}  // namespace olpager::base
