#include "interpose/local/foreign_maps.h"
#include "interpose/local/locks.h"

#include <atomic>
#include <map>
#include <mutex>

namespace olpager::local {

namespace {

struct ForeignMaps {
  base::RankedMutex mutex{kForeignMapsMutex};
  std::map<CUdeviceptr, uint64_t> ranges;  // first address to bytes
};

ForeignMaps& foreignMaps() {
  static auto* instance = new ForeignMaps;
  return *instance;
}

std::atomic<size_t> g_count{0};

}  // namespace

bool anyForeignMap() { return g_count.load(std::memory_order_relaxed) != 0; }

bool foreignMapped(CUdeviceptr address) {
  if (!anyForeignMap()) return false;
  std::lock_guard lock(foreignMaps().mutex);
  auto next = foreignMaps().ranges.upper_bound(address);
  if (next == foreignMaps().ranges.begin()) return false;
  --next;
  return address - next->first < next->second;
}

void foreignMap(CUdeviceptr address, uint64_t bytes) {
  std::lock_guard lock(foreignMaps().mutex);
  foreignMaps().ranges[address] = bytes;
  g_count.store(foreignMaps().ranges.size(), std::memory_order_relaxed);
}

std::vector<std::pair<CUdeviceptr, uint64_t>> foreignMapsAt(CUdeviceptr address, uint64_t bytes) {
  std::vector<std::pair<CUdeviceptr, uint64_t>> found;
  if (!anyForeignMap()) return found;
  std::lock_guard lock(foreignMaps().mutex);
  for (const auto& [first, size] : foreignMaps().ranges)
    if (first < address + bytes && address < first + size) found.emplace_back(first, size);
  return found;
}

bool foreignUnmap(CUdeviceptr address, uint64_t bytes) {
  if (!anyForeignMap()) return false;
  std::lock_guard lock(foreignMaps().mutex);
  bool any = false;
  for (auto it = foreignMaps().ranges.lower_bound(address);
       it != foreignMaps().ranges.end() && it->first < address + bytes;) {
    it = foreignMaps().ranges.erase(it);
    any = true;
  }
  g_count.store(foreignMaps().ranges.size(), std::memory_order_relaxed);
  return any;
}

}  // namespace olpager::local
