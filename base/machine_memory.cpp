#include "base/machine_memory.h"

#include <fstream>
#include <string>

namespace olpager::base {

namespace {

uint64_t entryOf(const std::string& wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string rest;
  while (file >> key >> kib && std::getline(file, rest))
    if (key == wanted) return kib << 10;
  return 0;
}

}  // namespace

uint64_t totalMemory() { return entryOf("MemTotal:"); }
uint64_t availableMemory() { return entryOf("MemAvailable:"); }

}  // namespace olpager::base
