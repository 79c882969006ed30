#include "interpose/forward/shared_mappings.h"

#include <cinttypes>
#include <cstdio>
#include <memory>

namespace olpager::forward {

bool isMappedShared(uint64_t address, uint64_t bytes) {
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> list(std::fopen("/proc/self/maps", "re"));
  if (list == nullptr) return false;
  char line[512];
  for (bool begins = true; std::fgets(line, sizeof line, list.get()) != nullptr;) {
    uint64_t first = 0, end = 0;
    char rights[5] = {};
    const bool parsed =
        begins && std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &first, &end, rights) == 3;
    if (parsed && rights[3] == 's' && first < address + bytes && address < end) return true;
    begins = __builtin_strchr(line, '\n') != nullptr;  // a long name is read in parts
  }
  return false;
}

}  // namespace olpager::forward
