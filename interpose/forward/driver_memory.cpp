#include "interpose/forward/driver_memory.h"

#include <sys/mman.h>

#include <iterator>

#include "interpose/forward/block_table.h"
#include "interpose/forward/session.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/sessions.h"

namespace olpager::forward {

void DriverMemory::note(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  all_[address] = bytes;
}

bool DriverMemory::has(uint64_t address) const {
  std::lock_guard lock(mutex_);
  const auto after = all_.upper_bound(address);
  return after != all_.begin() && address - std::prev(after)->first < std::prev(after)->second;
}

Session* sessionOfDriverMemory(uint64_t address) {
  Session* const current = existingSession();
  if (current != nullptr && current->parts().driver_memory->has(address)) return current;
  for (Session* const session : existingSessions()) {
    if (session->parts().driver_memory->has(address)) return session;
  }
  return nullptr;
}

namespace {
constexpr uint64_t kPage = 4096;
}

bool isDeviceMemory(uint64_t address) {
  if (existingSessions().empty()) return false;
  {
    BlockTable& all = blocks();
    std::lock_guard lock(all.mutex);
    uint64_t base = 0;
    if (all.find(address, &base) != nullptr) return false;
  }
  if (sessionOfAddress(address) != nullptr) return true;
  // Device memory of the driver's own is nothing that this process has mapped.
  unsigned char there = 0;
  const uint64_t page = address / kPage * kPage;
  return mincore(reinterpret_cast<void*>(page), kPage, &there) != 0;
}

}  // namespace olpager::forward
