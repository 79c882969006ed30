// Memory of the simulated GPUs: physical frames of VRAM and host chunks, virtual addresses,
// mappings, and the table of allocations that pointer attributes are answered from. One object for
// the process (unified addressing: an address means one thing whatever the device), one page table
// and one Vram for each device.
//
// Every device address is reserved with PROT_NONE in the process, so the CPU faults on device
// memory as it does with a driver; VRAM itself is an anonymous mapping elsewhere that only the page
// tables lead to. Thread-safety: all members from any thread. Errors are CUresults as the driver
// gives them.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpunode/simgpu/page_table.h"

namespace olpager::simgpu {

class Context;
class Device;

/// One device's VRAM: frames of 2 MiB. Exact: what is taken is not free.
class Vram {
 public:
  /// `readers`: the page table whose readers must be gone before frames are reused. std::bad_alloc
  /// when the process has no address space for it.
  Vram(uint64_t bytes, bool scribble, PageTable* readers);
  ~Vram();
  Vram(const Vram&) = delete;
  Vram& operator=(const Vram&) = delete;

  /// Takes `count` frames (ascending); false and none taken when fewer are free.
  bool take(size_t count, std::vector<uint32_t>* frames);
  /// Gives frames back and drops their bytes (or scribbles over them, OL_SIM_MODE=scribble).
  void give(const std::vector<uint32_t>& frames);
  /// Counts frames that live elsewhere (exported chunks) as used.
  bool charge(size_t count);
  void discharge(size_t count);
  std::byte* frame(uint32_t number) const { return base_ + number * kPageBytes; }
  uint64_t totalBytes() const { return total_ * kPageBytes; }
  uint64_t freeBytes() const;

 private:
  std::byte* base_ = nullptr;
  const size_t total_;
  const bool scribble_;
  PageTable* const readers_;
  mutable std::mutex mutex_;
  std::vector<bool> used_;
  size_t free_ = 0;
  size_t charged_ = 0;  // frames set aside for chunks that live elsewhere
  size_t next_ = 0;     // where the search for free frames goes on
};

/// Physical memory behind one handle (cuMemCreate) or one allocation; freed with its last
/// reference.
class Physical {
 public:
  /// In VRAM; null when the device has too little.
  static std::shared_ptr<Physical> inVram(Device& device, uint64_t bytes);
  /// In VRAM or host RAM, in a memfd that other processes can import.
  static std::shared_ptr<Physical> shared(Device* device, uint64_t bytes,
                                          const CUmemAllocationProp& properties);
  static std::shared_ptr<Physical> import(int fd, CUresult* error);
  /// In host RAM, mappable for the CPU at any address.
  static std::shared_ptr<Physical> inHost(uint64_t bytes);
  ~Physical();

  uint64_t bytes() const { return bytes_; }
  /// The bytes of page `i` at their permanent alias.
  std::byte* page(size_t i) const { return frames_.empty() ? base_ + i * kPageBytes : frameAt(i); }
  /// Maps it for the CPU at `address` (which is reserved), with PROT_*; host chunks only.
  bool mapForCpu(void* address, int protection) const;
  /// The memfd of a chunk that was made by shared() or import(), else -1. Owned by the chunk.
  int sharedFd() const { return own_fd_ ? fd_ : -1; }
  Device* device() const { return device_; }

  CUmemAllocationProp properties{};
  CUmemGenericAllocationHandle handle = 0;  // of cuMemCreate or the import, for as long as it lives

 private:
  Physical() = default;
  std::byte* frameAt(size_t i) const;

  Device* device_ = nullptr;  // whose VRAM it counts against; null: host
  uint64_t bytes_ = 0;
  std::vector<uint32_t> frames_;
  std::byte* base_ = nullptr;
  int fd_ = -1;
  uint64_t fd_offset_ = 0;
  bool own_fd_ = false;
};

enum class AllocationKind : uint8_t {
  kDevice,      // cuMemAlloc, pitched
  kPool,        // stream-ordered
  kManaged,     // cuMemAllocManaged
  kHost,        // cuMemHostAlloc
  kRegistered,  // cuMemHostRegister
  kGlobal,      // a module's variables
  kArray,       // backing of a CUarray
};

/// The program's advice for managed memory: told back, without effect.
struct Advice {
  bool read_mostly = false;
  CUmemLocation preferred{};
  CUmemLocation prefetched{};
};

/// The record of one allocation. Immutable but for sync_memops and advice.
struct Allocation {
  uint64_t base = 0;
  uint64_t bytes = 0;  // as asked for
  AllocationKind kind = AllocationKind::kDevice;
  Device* device = nullptr;
  std::weak_ptr<Context> context;
  CUcontext context_handle = nullptr;
  unsigned flags = 0;  // of the call that made it
  uint64_t buffer_id = 0;
  std::byte* host = nullptr;  // the CPU's address (host, registered, managed), else null
  CUmemoryPool pool = nullptr;
  std::atomic<bool> sync_memops{false};
  mutable std::mutex advice_mutex;
  Advice advice;  // under advice_mutex
};

/// Device virtual addresses that the driver chooses itself: carved from PROT_NONE reservations, 2
/// MiB-aligned, with an unmapped page behind each.
class AddressArena {
 public:
  /// 0 when the process has no room.
  uint64_t take(uint64_t bytes);
  void give(uint64_t address, uint64_t bytes);
  bool contains(uint64_t address) const;

 private:
  std::vector<std::pair<uint64_t, uint64_t>> spans_;  // base, bytes
  bool grow(uint64_t bytes);
  std::map<uint64_t, uint64_t> free_;  // base -> bytes
};

/// A range of cuMemAddressReserve and what is mapped in it.
struct VmmMapping {
  uint64_t base = 0;
  uint64_t bytes = 0;
  std::shared_ptr<Physical> physical;
  std::vector<CUmemAccess_flags> access;  // by device ordinal
  CUmemAccess_flags host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  uint64_t buffer_id = 0;
};

class Memory {
 public:
  Memory();
  ~Memory();

  // --- allocations -------------------------------------------------------------------------------
  /// Device memory in `context`, zero-filled (`kGlobal`) or undefined, 512-byte aligned.
  /// CUDA_ERROR_OUT_OF_MEMORY when the VRAM is used up.
  CUresult allocate(Context& context, uint64_t bytes, AllocationKind kind, CUdeviceptr* out);
  /// Frees the allocation that starts at `address`; the caller has waited for its users.
  /// CUDA_ERROR_INVALID_VALUE when none of that kind starts there.
  CUresult free(CUdeviceptr address, AllocationKind kind);
  CUresult allocateHost(Context& context, uint64_t bytes, unsigned flags, void** out);
  CUresult allocateManaged(Context& context, uint64_t bytes, unsigned flags, CUdeviceptr* out);
  CUresult registerHost(Context& context, void* pointer, uint64_t bytes, unsigned flags);
  /// The allocation that holds `address` (mapped VMM ranges are not allocations), or null.
  std::shared_ptr<Allocation> find(uint64_t address) const;
  /// Frees everything of a context that is torn down.
  void freeContext(const Context& context);
  /// Makes all memory of `owner` visible to `viewer` (peer access), or hides it again.
  void setPeer(Device& owner, Device& viewer, bool visible);

  // --- the stream-ordered pools' share (mem_pool.cpp) --------------------------------------------
  /// Backing of a pool block: mapped device memory that is no allocation yet. 0 when the VRAM is
  /// used up.
  uint64_t takePoolMemory(Device& device, uint64_t bytes);
  void givePoolMemory(uint64_t address);
  /// Enters and removes a block of a pool in the table of allocations.
  void addPoolAllocation(Context& context, CUmemoryPool pool, uint64_t address, uint64_t bytes);
  bool removePoolAllocation(uint64_t address);

  // --- virtual memory management (vmm.cpp) -------------------------------------------------------
  CUresult reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr* out);
  CUresult unreserve(uint64_t address, uint64_t bytes);
  CUresult create(uint64_t bytes, const CUmemAllocationProp& properties,
                  CUmemGenericAllocationHandle* out);
  CUresult adopt(std::shared_ptr<Physical> physical, CUmemGenericAllocationHandle* out);
  CUresult release(CUmemGenericAllocationHandle handle);
  std::shared_ptr<Physical> physical(CUmemGenericAllocationHandle handle) const;
  CUresult retain(uint64_t address, CUmemGenericAllocationHandle* out);
  /// The memfd of what is mapped exactly there, as a dma-buf would be had; the caller's.
  CUresult dmaBuf(uint64_t address, uint64_t bytes, int* fd);
  CUresult map(uint64_t address, uint64_t bytes, uint64_t offset,
               CUmemGenericAllocationHandle handle);
  CUresult unmap(uint64_t address, uint64_t bytes);
  CUresult setAccess(uint64_t address, uint64_t bytes, const CUmemAccessDesc* descriptors,
                     size_t count);
  CUresult getAccess(uint64_t address, const CUmemLocation& location,
                     unsigned long long* flags) const;
  /// The mapping that holds `address`; false when there is none.
  bool mapping(uint64_t address, VmmMapping* out) const;
  bool reservation(uint64_t address, uint64_t* base, uint64_t* bytes) const;

  // --- copies ------------------------------------------------------------------------------------
  /// Whether a copy or memset on `device` may touch the whole range: one allocation holds it, or a
  /// run of VMM mappings that the device has (write) access to.
  bool covers(const Device& device, uint64_t address, uint64_t bytes, bool write) const;
  /// True if a host chunk is mapped there.
  bool onHost(uint64_t address) const;
  /// True where the driver itself places device memory: nothing there is the program's, mapped or
  /// not.
  bool ownAddress(uint64_t address) const;
  /// True if any device knows the address (device memory, pinned or managed memory, VMM mappings).
  bool known(uint64_t address) const;
  /// Bytes at `address` as the copy engine of `device` sees them: through its page table, then that
  /// of the owner (peer copies are staged). False when nothing is mapped there.
  bool translate(const Device& device, uint64_t address, Translation* out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A number that no other allocation or mapping of the process has had
/// (CU_POINTER_ATTRIBUTE_BUFFER_ID).
uint64_t newBufferId();

}  // namespace olpager::simgpu
