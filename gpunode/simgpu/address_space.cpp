#include "gpunode/simgpu/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/memory_state.h"

namespace olpager::simgpu {

namespace {

constexpr uint64_t kSmallLimit = 1 << 20;  // below it allocations share 2 MiB blocks
constexpr uint64_t kSmallAlign = 512;
constexpr uint64_t kArenaStep = 64ull << 30;

uint64_t roundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::byte* hostPages(uint64_t bytes) {
  // Large regions are placed at 2 MiB, so that they take whole entries of the page tables.
  const uint64_t align = bytes >= kPageBytes ? kPageBytes : kSmallPageBytes;
  void* reserved =
      mmap(nullptr, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const uint64_t start = reinterpret_cast<uint64_t>(reserved);
  const uint64_t aligned = roundUp(start, align);
  if (aligned != start) munmap(reserved, aligned - start);
  const uint64_t tail = start + align - aligned;
  if (tail != 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  return reinterpret_cast<std::byte*>(aligned);
}

void forAllDevices(const std::function<void(Device&)>& call) {
  for (const auto& device : Driver::get().devices) call(*device);
}

}  // namespace

uint64_t newBufferId() {
  static std::atomic<uint64_t> ids{1};
  return ids.fetch_add(1, std::memory_order_relaxed);
}

// --- addresses -----------------------------------------------------------------------------------

bool AddressArena::grow(uint64_t bytes) {
  const uint64_t size = std::max(kArenaStep, roundUp(bytes + 2 * kPageBytes, kArenaStep));
  void* reserved =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return false;
  const uint64_t start = roundUp(reinterpret_cast<uint64_t>(reserved), kPageBytes);
  spans_.emplace_back(reinterpret_cast<uint64_t>(reserved), size);
  give(start, (reinterpret_cast<uint64_t>(reserved) + size - start) / kPageBytes * kPageBytes);
  return true;
}

bool AddressArena::contains(uint64_t address) const {
  for (const auto& [base, bytes] : spans_)
    if (address - base < bytes) return true;
  return false;
}

uint64_t AddressArena::take(uint64_t bytes) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const uint64_t base = it->first, rest = it->second - bytes;
      free_.erase(it);
      if (rest != 0) free_[base + bytes] = rest;
      return base;
    }
    if (!grow(bytes)) return 0;
  }
  return 0;
}

void AddressArena::give(uint64_t address, uint64_t bytes) {
  auto it = free_.emplace(address, bytes).first;
  auto after = std::next(it);
  if (after != free_.end() && it->first + it->second == after->first) {
    it->second += after->second;
    free_.erase(after);
  }
  if (it == free_.begin()) return;
  auto before = std::prev(it);
  if (before->first + before->second != it->first) return;
  before->second += it->second;
  free_.erase(it);
}

// --- device memory -------------------------------------------------------------------------------

Memory::Memory() : state_(std::make_unique<State>()) {}
Memory::~Memory() = default;

void Memory::State::mapBacking(uint64_t base, const Backing& backing, Device& viewer) {
  const uint64_t pages = backing.physical->bytes() / kPageBytes;
  for (uint64_t first = 0; first < pages;) {
    // Frames that follow each other are mapped in one go.
    uint64_t count = 1;
    while (first + count < pages && backing.physical->page(first + count) ==
                                        backing.physical->page(first) + count * kPageBytes)
      ++count;
    viewer.pages.map(base + first * kPageBytes, count * kPageBytes, backing.physical->page(first),
                     true);
    first += count;
  }
}

uint64_t Memory::State::place(Device& device, uint64_t bytes) {
  Backing backing;
  backing.device = &device;
  backing.physical = Physical::inVram(device, bytes);
  if (backing.physical == nullptr) return 0;
  backing.reserved = backing.physical->bytes() + kPageBytes;  // a page behind it stays unmapped
  const uint64_t base = arena.take(backing.reserved);
  if (base == 0) return 0;
  mapBacking(base, backing, device);
  for (const auto& [owner, viewer] : peers)
    if (owner == device.ordinal) mapBacking(base, backing, *Driver::get().device(viewer));
  backings.emplace(base, std::move(backing));
  return base;
}

std::shared_ptr<Physical> Memory::State::displace(uint64_t base) {
  auto it = backings.find(base);
  if (it == backings.end()) return nullptr;
  auto physical = std::move(it->second.physical);
  it->second.device->pages.unmap(base, physical->bytes());
  for (const auto& [owner, viewer] : peers)
    if (owner == it->second.device->ordinal)
      Driver::get().device(viewer)->pages.unmap(base, physical->bytes());
  arena.give(base, it->second.reserved);
  backings.erase(it);
  return physical;
}

CUresult Memory::allocate(Context& context, uint64_t bytes, AllocationKind kind, CUdeviceptr* out) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > context.device().vram.totalBytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = std::make_shared<Allocation>();
  allocation->bytes = bytes;
  allocation->kind = kind;
  allocation->device = &context.device();
  allocation->context = context.memoryOwner().weak_from_this();
  allocation->context_handle = context.memoryOwner().handle();
  allocation->buffer_id = newBufferId();
  {
    std::unique_lock lock(state_->mutex);
    uint64_t base = 0;
    if (bytes >= kSmallLimit) {
      base = state_->place(context.device(), bytes);
    } else {
      const uint64_t need = roundUp(bytes, kSmallAlign);
      const bool of_modules = kind == AllocationKind::kGlobal;
      SmallBlock* block = nullptr;
      std::map<uint64_t, uint64_t>::iterator hole;
      for (auto& [address, candidate] : state_->blocks) {
        if (candidate.context != context.handle() || candidate.of_modules != of_modules) continue;
        for (hole = candidate.free.begin(); hole != candidate.free.end() && hole->second < need;)
          ++hole;
        if (hole == candidate.free.end()) continue;
        block = &candidate;
        break;
      }
      if (block == nullptr) {
        const uint64_t address = state_->place(context.device(), kPageBytes);
        if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
        block = &state_->blocks[address];
        block->context = context.handle();
        block->of_modules = of_modules;
        block->device = &context.device();
        // As on hardware something of the driver's own lies before a module's first variable.
        const uint64_t first = of_modules ? kSmallAlign : 0;
        hole = block->free.emplace(address + first, kPageBytes - first).first;
      }
      base = hole->first;
      const uint64_t rest = hole->second - need;
      block->free.erase(hole);
      if (rest != 0) block->free[base + need] = rest;
      block->used += need;
    }
    if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->base = base;
    state_->allocations[base] = allocation;
  }
  *out = allocation->base;
  if (kind == AllocationKind::kGlobal) {
    Translation at;
    for (uint64_t done = 0; done < bytes; done += at.bytes) {
      if (!context.device().pages.translate(allocation->base + done, &at)) break;
      std::memset(at.host, 0, std::min(at.bytes, bytes - done));
    }
  }
  return CUDA_SUCCESS;
}

std::shared_ptr<Physical> Memory::State::freeSmall(uint64_t address, uint64_t bytes) {
  auto it = std::prev(blocks.upper_bound(address));
  SmallBlock& block = it->second;
  const uint64_t size = roundUp(bytes, kSmallAlign);
  if (Driver::get().settings.scribble) {
    Translation at;
    if (block.device->pages.translate(address, &at)) std::memset(at.host, 0xA5, size);
  }
  block.used -= size;
  if (block.used == 0) {
    const uint64_t base = it->first;
    blocks.erase(it);
    return displace(base);
  }
  auto hole = block.free.emplace(address, size).first;
  auto after = std::next(hole);
  if (after != block.free.end() && hole->first + hole->second == after->first) {
    hole->second += after->second;
    block.free.erase(after);
  }
  if (hole != block.free.begin()) {
    auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      block.free.erase(hole);
    }
  }
  return nullptr;
}

CUresult Memory::free(CUdeviceptr address, AllocationKind kind) {
  std::shared_ptr<Allocation> allocation;
  std::shared_ptr<Physical> physical;  // goes after the lock
  {
    std::unique_lock lock(state_->mutex);
    auto it = state_->allocations.find(address);
    if (it == state_->allocations.end() || it->second->kind != kind)
      return CUDA_ERROR_INVALID_VALUE;
    allocation = it->second;
    state_->allocations.erase(it);
    switch (kind) {
      case AllocationKind::kDevice:
      case AllocationKind::kGlobal:
      case AllocationKind::kArray:
        physical = allocation->bytes >= kSmallLimit ? state_->displace(address)
                                                    : state_->freeSmall(address, allocation->bytes);
        return CUDA_SUCCESS;
      case AllocationKind::kPool:
        return CUDA_SUCCESS;
      case AllocationKind::kManaged:
      case AllocationKind::kHost:
        forAllDevices([&](Device& device) {
          device.pages.unmap(address, roundUp(allocation->bytes, kSmallPageBytes));
        });
        break;
      case AllocationKind::kRegistered: {
        uint64_t first = address / kSmallPageBytes * kSmallPageBytes;
        uint64_t end = roundUp(address + allocation->bytes, kSmallPageBytes);
        // A page that a neighbouring registration also covers stays.
        auto next = state_->allocations.lower_bound(address);
        if (next != state_->allocations.end() &&
            next->second->kind == AllocationKind::kRegistered &&
            next->first / kSmallPageBytes * kSmallPageBytes < end)
          end -= kSmallPageBytes;
        if (next != state_->allocations.begin()) {
          auto before = std::prev(next);
          if (before->second->kind == AllocationKind::kRegistered &&
              before->first + before->second->bytes > first)
            first += kSmallPageBytes;
        }
        if (first < end)
          forAllDevices([&](Device& device) { device.pages.unmap(first, end - first); });
        break;
      }
    }
  }
  forAllDevices([](Device& device) { device.pages.waitForReaders(); });
  if (kind != AllocationKind::kRegistered)
    munmap(allocation->host, roundUp(allocation->bytes, kSmallPageBytes));
  return CUDA_SUCCESS;
}

void Memory::freeContext(const Context& context) {
  std::vector<std::shared_ptr<Allocation>> own;
  {
    std::shared_lock lock(state_->mutex);
    for (const auto& [base, allocation] : state_->allocations)
      if (allocation->context_handle == context.handle() &&
          allocation->kind != AllocationKind::kPool)
        own.push_back(allocation);
  }
  for (const auto& allocation : own) (void)free(allocation->base, allocation->kind);
}

void Memory::setPeer(Device& owner, Device& viewer, bool visible) {
  if (&owner == &viewer) return;
  std::unique_lock lock(state_->mutex);
  const std::pair<int, int> pair{owner.ordinal, viewer.ordinal};
  if (visible ? !state_->peers.insert(pair).second : state_->peers.erase(pair) == 0) return;
  for (const auto& [base, backing] : state_->backings) {
    if (backing.device != &owner) continue;
    if (visible) {
      state_->mapBacking(base, backing, viewer);
    } else {
      viewer.pages.unmap(base, backing.physical->bytes());
    }
  }
}

uint64_t Memory::takePoolMemory(Device& device, uint64_t bytes) {
  std::unique_lock lock(state_->mutex);
  return state_->place(device, bytes);
}

void Memory::givePoolMemory(uint64_t address) {
  std::shared_ptr<Physical> physical;  // goes after the lock
  std::unique_lock lock(state_->mutex);
  physical = state_->displace(address);
  lock.unlock();
}

void Memory::addPoolAllocation(Context& context, CUmemoryPool pool, uint64_t address,
                               uint64_t bytes) {
  auto allocation = std::make_shared<Allocation>();
  allocation->base = address;
  allocation->bytes = bytes;
  allocation->kind = AllocationKind::kPool;
  allocation->device = &context.device();
  allocation->context = context.memoryOwner().weak_from_this();
  allocation->context_handle = context.memoryOwner().handle();
  allocation->buffer_id = newBufferId();
  allocation->pool = pool;
  std::unique_lock lock(state_->mutex);
  state_->allocations[address] = std::move(allocation);
}

bool Memory::removePoolAllocation(uint64_t address) {
  std::unique_lock lock(state_->mutex);
  auto it = state_->allocations.find(address);
  if (it == state_->allocations.end() || it->second->kind != AllocationKind::kPool) return false;
  state_->allocations.erase(it);
  return true;
}

// --- host memory ---------------------------------------------------------------------------------

namespace {

std::shared_ptr<Allocation> hostAllocation(Context& context, std::byte* host, uint64_t bytes,
                                           AllocationKind kind, unsigned flags) {
  auto allocation = std::make_shared<Allocation>();
  allocation->base = reinterpret_cast<uint64_t>(host);
  allocation->bytes = bytes;
  allocation->kind = kind;
  allocation->device = &context.device();
  allocation->context = context.memoryOwner().weak_from_this();
  allocation->context_handle = context.memoryOwner().handle();
  allocation->flags = flags;
  allocation->buffer_id = newBufferId();
  allocation->host = host;
  return allocation;
}

}  // namespace

CUresult Memory::allocateHost(Context& context, uint64_t bytes, unsigned flags, void** out) {
  if (bytes == 0) {
    *out = nullptr;
    return CUDA_SUCCESS;
  }
  const uint64_t size = roundUp(bytes, kSmallPageBytes);
  if (size < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::byte* host = hostPages(size);
  if (host == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = hostAllocation(context, host, bytes, AllocationKind::kHost, flags);
  std::unique_lock lock(state_->mutex);
  forAllDevices([&](Device& device) { device.pages.map(allocation->base, size, host, true); });
  state_->allocations[allocation->base] = std::move(allocation);
  *out = host;
  return CUDA_SUCCESS;
}

CUresult Memory::allocateManaged(Context& context, uint64_t bytes, unsigned flags,
                                 CUdeviceptr* out) {
  if (bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t size = roundUp(bytes, kSmallPageBytes);
  if (size < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::byte* host = hostPages(size);
  if (host == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  auto allocation = hostAllocation(context, host, bytes, AllocationKind::kManaged, flags);
  std::unique_lock lock(state_->mutex);
  forAllDevices([&](Device& device) { device.pages.map(allocation->base, size, host, true); });
  *out = allocation->base;
  state_->allocations[allocation->base] = std::move(allocation);
  return CUDA_SUCCESS;
}

CUresult Memory::registerHost(Context& context, void* pointer, uint64_t bytes, unsigned flags) {
  const uint64_t base = reinterpret_cast<uint64_t>(pointer);
  if (base == 0 || bytes == 0 || base + bytes < base) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t first = base / kSmallPageBytes * kSmallPageBytes;
  const uint64_t end = roundUp(base + bytes, kSmallPageBytes);
  if (msync(reinterpret_cast<void*>(first), end - first, MS_ASYNC) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(state_->mutex);
  if (state_->arena.contains(base)) return CUDA_ERROR_INVALID_VALUE;
  if (auto it = state_->allocations.lower_bound(base);
      it != state_->allocations.end() && it->first < base + bytes)
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (auto it = state_->allocations.lower_bound(base); it != state_->allocations.begin()) {
    const Allocation& before = *std::prev(it)->second;
    if (before.base + before.bytes > base) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  // Addresses that belong to the driver's own ranges can't be registered, as with a driver.
  if (auto it = state_->reservations.upper_bound(base); it != state_->reservations.begin()) {
    const auto& [start, size] = *std::prev(it);
    if (base < start + size) return CUDA_ERROR_INVALID_VALUE;
  }
  auto allocation = hostAllocation(context, static_cast<std::byte*>(pointer), bytes,
                                   AllocationKind::kRegistered, flags);
  const bool writable = (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0;
  forAllDevices([&](Device& device) {
    device.pages.map(first, end - first, reinterpret_cast<std::byte*>(first), writable);
  });
  state_->allocations[base] = std::move(allocation);
  return CUDA_SUCCESS;
}

// --- lookup --------------------------------------------------------------------------------------

const std::shared_ptr<Allocation>* Memory::State::allocationAt(uint64_t address) const {
  auto it = allocations.upper_bound(address);
  if (it == allocations.begin()) return nullptr;
  const auto& allocation = std::prev(it)->second;
  return address - allocation->base < allocation->bytes ? &allocation : nullptr;
}

std::shared_ptr<Allocation> Memory::find(uint64_t address) const {
  std::shared_lock lock(state_->mutex);
  const auto* found = state_->allocationAt(address);
  return found != nullptr ? *found : nullptr;
}

bool Memory::covers(const Device& device, uint64_t address, uint64_t bytes, bool write) const {
  std::shared_lock lock(state_->mutex);
  if (const auto* allocation = state_->allocationAt(address)) {
    // Allocations are rounded up inside their block, as far as which nobody is stopped.
    const uint64_t most = roundUp((*allocation)->bytes, kSmallAlign),
                   at = address - (*allocation)->base;
    return at <= most && bytes <= most - at;
  }
  if (address + bytes < address) return false;
  for (uint64_t at = address; at < address + bytes;) {
    const VmmMapping* mapping = state_->mappingAt(at);
    if (mapping == nullptr) return false;
    const CUmemAccess_flags access = mapping->access[device.ordinal];
    if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
        (write && access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
      return false;
    at = mapping->base + mapping->bytes;
  }
  return true;
}

bool Memory::ownAddress(uint64_t address) const {
  std::shared_lock lock(state_->mutex);
  return state_->arena.contains(address);
}

bool Memory::known(uint64_t address) const {
  Translation at;
  for (const auto& device : Driver::get().devices)
    if (device->pages.translate(address, &at)) return true;
  return false;
}

bool Memory::translate(const Device& device, uint64_t address, Translation* out) const {
  if (device.pages.translate(address, out)) return true;
  if (Driver::get().devices.size() == 1) return false;
  const auto allocation = find(address);
  return allocation != nullptr && allocation->device != nullptr &&
         allocation->device->pages.translate(address, out);
}

}  // namespace olpager::simgpu
