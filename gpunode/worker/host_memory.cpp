#include "gpunode/worker/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/size.h"
#include "forwarding/wire/wire.h"

namespace olpager::gpunode {
namespace {
constexpr uint64_t kPage = 4096;
}

void HostMemory::setLimit(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  limit_ = bytes;
}

uint64_t HostMemory::bytes() {
  std::lock_guard lock(mutex_);
  return bytes_;
}

bool HostMemory::map(uint64_t address, uint64_t bytes) { return mapAt(address, bytes, -1, 0); }

bool HostMemory::share(uint64_t address, uint64_t bytes, const transport::PeerMemory& memory) {
  if (!memory.fd || memory.offset % kPage != 0 || bytes > memory.length) return false;
  // The transport has looked at the seal and at the size: the client can't take the memory from
  // under this process.
  return mapAt(address, bytes, memory.fd.get(), memory.offset);
}

// `fd` -1: memory of this process.
bool HostMemory::mapAt(uint64_t address, uint64_t bytes, int fd, uint64_t offset) {
  if (address % kPage != 0 || bytes == 0 || bytes % kPage != 0 || bytes > forward::kWindowBytes)
    return false;
  if (address < forward::kWindow || address - forward::kWindow > forward::kWindowBytes - bytes)
    return false;
  std::lock_guard lock(mutex_);
  if (bytes > limit_ - std::min(limit_, bytes_)) {
    base::warnOnce("pinned",
                   "pinned memory: %s more than the %s that the session has of at most %s "
                   "(--memory) is refused",
                   base::formatSize(bytes).c_str(), base::formatSize(bytes_).c_str(),
                   base::formatSize(limit_).c_str());
    return false;
  }
  auto* const wanted = reinterpret_cast<void*>(address);
  const bool shared = fd >= 0;
  const int kind = MAP_FIXED_NOREPLACE | (shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  if (mmap(wanted, bytes, PROT_READ | PROT_WRITE, kind, fd, static_cast<off_t>(offset)) != wanted)
    return false;
  blocks_[address] = {bytes, shared, {}, false};
  bytes_ += bytes;
  return true;
}

bool HostMemory::unmap(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || found->second.adopted) return false;
  munmap(reinterpret_cast<void*>(address), found->second.bytes);
  bytes_ -= found->second.bytes;
  blocks_.erase(found);
  return true;
}

bool HostMemory::adopt(uint64_t address, uint64_t bytes) {
  if (bytes == 0 || bytes > UINT64_MAX - address) return false;
  std::lock_guard lock(mutex_);
  const auto after = blocks_.lower_bound(address);
  if (after != blocks_.end() && after->first == address && after->second.adopted &&
      after->second.bytes == bytes)
    return true;
  uint64_t base = 0;
  if ((after != blocks_.end() && after->first - address < bytes) || find(address, &base) != nullptr)
    return false;
  blocks_[address] = {bytes, false, {}, true};
  return true;
}

bool HostMemory::isAdopted(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  return found != blocks_.end() && found->second.adopted;
}

bool HostMemory::release(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || !found->second.adopted) return false;
  blocks_.erase(found);
  return true;
}

HostMemory::Block* HostMemory::find(uint64_t address, uint64_t* base) {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  --after;
  if (address - after->first >= after->second.bytes) return nullptr;
  *base = after->first;
  return &after->second;
}

bool HostMemory::has(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  uint64_t base = 0;
  const Block* block = find(address, &base);
  return block != nullptr && bytes <= block->bytes - (address - base);
}

bool HostMemory::apply(const forward::Run& run) {
  std::lock_guard lock(mutex_);
  uint64_t base = 0;
  Block* block = find(run.address, &base);
  if (block == nullptr || block->shared || run.length > block->bytes - (run.address - base))
    return false;
  if (block->agreed.empty()) block->agreed.resize(block->bytes);
  run.copyTo(block->agreed.data() + (run.address - base));
  run.copyTo(reinterpret_cast<std::byte*>(run.address));
  return true;
}

bool HostMemory::changes(uint64_t address, uint64_t offset, uint64_t bytes,
                         std::vector<std::byte>& into) {
  std::lock_guard lock(mutex_);
  uint64_t base = 0;
  Block* block = find(address, &base);
  if (block == nullptr || block->shared || base != address || offset >= block->bytes) return false;
  if (block->agreed.empty()) block->agreed.resize(block->bytes);
  const auto part =
      std::span(block->agreed).subspan(offset, std::min(bytes, block->bytes - offset));
  forward::appendChanges(base + offset, reinterpret_cast<const std::byte*>(base + offset), part,
                         into);
  return true;
}

}  // namespace olpager::gpunode
