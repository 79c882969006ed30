// The state of Memory; private to address_space.cpp and vmm.cpp. Everything is under `mutex`.
#pragma once

#include <map>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/memory.h"

namespace olpager::simgpu {

/// 2 MiB of device memory that small allocations of one context share, or small variables of its
/// modules: as on hardware these have blocks of their own, so that neither moves the other. Freed
/// with its last allocation.
struct SmallBlock {
  CUcontext context = nullptr;
  bool of_modules = false;
  Device* device = nullptr;
  uint64_t used = 0;
  std::map<uint64_t, uint64_t> free;  // address -> bytes
};

/// Device memory that the driver itself placed: a whole run of pages.
struct Backing {
  Device* device = nullptr;
  std::shared_ptr<Physical> physical;
  uint64_t reserved = 0;  // bytes of address space
};

struct VmmHandle {
  std::shared_ptr<Physical> physical;
  uint64_t references = 1;
};

struct Memory::State {
  mutable std::shared_mutex mutex;
  AddressArena arena;
  std::map<uint64_t, std::shared_ptr<Allocation>> allocations;  // by base
  std::map<uint64_t, Backing> backings;                         // by base
  std::map<uint64_t, SmallBlock> blocks;                        // by base
  std::set<std::pair<int, int>> peers;                          // owner, viewer
  std::map<uint64_t, uint64_t> reservations;  // cuMemAddressReserve: base -> bytes
  std::map<uint64_t, VmmMapping> mappings;    // by base
  std::unordered_map<uint64_t, VmmHandle> handles;

  /// Takes VRAM and addresses for it and maps them for the owner and its peers. 0 when either is
  /// used up.
  uint64_t place(Device& device, uint64_t bytes);
  /// Takes the run out of the tables; the caller drops what is returned after unlocking.
  std::shared_ptr<Physical> displace(uint64_t base);
  void mapBacking(uint64_t base, const Backing& backing, Device& viewer);
  std::shared_ptr<Physical> freeSmall(uint64_t address, uint64_t bytes);
  const VmmMapping* mappingAt(uint64_t address) const;
  const std::shared_ptr<Allocation>* allocationAt(uint64_t address) const;
};

}  // namespace olpager::simgpu
