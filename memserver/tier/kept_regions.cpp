#include "memserver/tier/kept_regions.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/size.h"

namespace olpager::memserver {
namespace {

// Root's processes pin beyond ulimit -l.
bool pinsAtWill() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1u << CAP_IPC_LOCK)) != 0;
}

}  // namespace

uint64_t mostPinned() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || pinsAtWill())
    return UINT64_MAX;
  return limit.rlim_cur / 2;
}

KeptRegions::KeptRegions(transport::DomainPtr domain, uint64_t most)
    : domain_(std::move(domain)), most_(most) {}

void KeptRegions::tell(const char* why) const {
  base::warnOnce(
      "kept regions",
      "remote memory: %s: at most %s of host memory stay registered with RDMA cards, the "
      "rest is registered for each transfer, which takes longer; raise ulimit -l",
      why, base::formatSize(most_).c_str());
}

Status KeptRegions::keep(const void* memory, uint64_t bytes, int dma_buf) {
  transport::Memory device;
  device.length = bytes;
  device.dma_buf = dma_buf;
  auto made = transport::registerMemory(domain_, device, transport::kLocalOnly);
  if (!made.ok()) return made.error();
  SharedRegion region = std::move(made.value());
  if (auto known = transport::makeKnown(*region); !known.ok()) return known.error();
  SharedRegion former;  // of memory that was let go of without a word; ends after the lock
  std::lock_guard lock(mutex_);
  former = std::exchange(kept_[memory], std::move(region));
  return {};
}

Result<SharedRegion> KeptRegions::use(void* memory, uint64_t bytes) {
  SharedRegion other;  // of memory that was let go of without a word; ends after the lock
  {
    std::lock_guard lock(mutex_);
    const auto found = kept_.find(memory);
    if (found != kept_.end()) {
      if (found->second->length() == bytes) return found->second;
      other = std::move(found->second);
      kept_.erase(found);
    }
  }
  other.reset();
  auto made = transport::registerMemory(domain_, {memory, bytes}, transport::kLocalOnly);
  if (!made.ok()) return made.error();
  SharedRegion region = std::move(made.value());
  const transport::CardMemory cards = transport::cardMemory(domain_);
  if (cards.bytes > most_ || bytes > most_ - cards.bytes) {
    if (cards.registrations != 0) tell("ulimit -l allows no more");
    return region;
  }
  std::lock_guard lock(mutex_);
  kept_.emplace(memory, region);
  return region;
}

void KeptRegions::done(SharedRegion region) {
  if (!region || region->base() == nullptr || !region->refusedByCard()) return;
  const uint64_t pinned = transport::cardMemory(domain_).bytes;
  most_ = std::min(most_, pinned / 2);
  tell("an RDMA card can't have more");
  std::vector<SharedRegion> ending;
  ending.push_back(std::move(region));
  uint64_t excess = pinned - most_;
  std::lock_guard lock(mutex_);
  kept_.erase(ending.front()->base());
  for (auto each = kept_.begin(); each != kept_.end() && excess > 0;) {
    if (each->second.use_count() > 1 || each->second->base() == nullptr) {
      ++each;
      continue;
    }
    excess -= std::min(excess, each->second->length());
    ending.push_back(std::move(each->second));
    each = kept_.erase(each);
  }
}

void KeptRegions::letGo(const void* memory) {
  SharedRegion ending;
  std::lock_guard lock(mutex_);
  const auto found = kept_.find(memory);
  if (found == kept_.end()) return;
  ending = std::move(found->second);
  kept_.erase(found);
}

void KeptRegions::clear() {
  std::unordered_map<const void*, SharedRegion> ending;
  std::lock_guard lock(mutex_);
  ending.swap(kept_);
}

}  // namespace olpager::memserver
