// Memory of the simulated GPUs: physical frames of VRAM and host chunks, virtual addresses, mappings, and the table of
// allocations that pointer attributes are answered from. One object for the process (unified addressing: an address
// means one thing whatever the device), one page table and one Vram for each device.
//
// Every device address is reserved with PROT_NONE in the process, so the CPU faults on device memory as it does with a
// driver; VRAM itself is an anonymous mapping elsewhere that only the page tables lead to.
// Thread-safety: all members from any thread. Errors are CUresults as the driver gives them.
#pragma once

#include <cuda.h>

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
  explicit Vram(uint64_t bytes);
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
  std::byte* base_;
  size_t total_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> used_;  // bitmap
  size_t free_ = 0;
  size_t next_ = 0;
};

/// Physical memory behind one handle (cuMemCreate) or one allocation; freed with its last reference.
class Physical {
 public:
  /// In VRAM; null when the device has too little.
  static std::shared_ptr<Physical> inVram(Device& device, uint64_t bytes);
  /// In VRAM or host RAM, in a memfd that other processes can import.
  static std::shared_ptr<Physical> shared(Device* device, uint64_t bytes, const CUmemAllocationProp& properties);
  static std::shared_ptr<Physical> import(int fd, CUresult* error);
  /// In host RAM, mappable for the CPU at any address.
  static std::shared_ptr<Physical> inHost(uint64_t bytes);
  ~Physical();

  uint64_t bytes() const { return bytes_; }
  /// The bytes of page `i` at their permanent alias.
  std::byte* page(size_t i) const { return frames_.empty() ? base_ + i * kPageBytes : frameAt(i); }
  /// Maps it for the CPU at `address` (which is reserved); host chunks and exported chunks only.
  bool mapForCpu(void* address, int protection) const;
  bool cpuMappable() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  Device* device() const { return device_; }

  CUmemAllocationProp properties{};

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

/// What is known of one allocation. Immutable but for sync_memops.
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
  bool sync_memops = false;
};

class Memory {
 public:
  Memory();

  // --- allocations ---------------------------------------------------------------------------------------------------
  /// Device memory in `context`, zero-filled (`kGlobal`) or undefined, at least 256-byte aligned (512 as native).
  /// CUDA_ERROR_OUT_OF_MEMORY when the VRAM is used up.
  CUresult allocate(Context& context, uint64_t bytes, AllocationKind kind, CUdeviceptr* out);
  /// Frees the allocation that starts at `address`; the caller has waited for its users. CUDA_ERROR_INVALID_VALUE when
  /// none of that kind starts there.
  CUresult free(CUdeviceptr address, AllocationKind kind);
  CUresult allocateHost(Context& context, uint64_t bytes, unsigned flags, void** out);
  CUresult allocateManaged(Context& context, uint64_t bytes, unsigned flags, CUdeviceptr* out);
  CUresult registerHost(Context& context, void* pointer, uint64_t bytes, unsigned flags);
  /// The allocation that holds `address` (mapped VMM ranges are not allocations), or null.
  std::shared_ptr<Allocation> find(uint64_t address) const;
  /// Frees everything of a context that is torn down.
  void freeContext(Context& context);

  // --- copies --------------------------------------------------------------------------------------------------------
  /// Whether any device knows the address (device memory, pinned or managed memory, VMM mappings).
  bool known(uint64_t address) const;
  /// Bytes at `address` as the copy engine of `device` sees them: through its page table, then that of the owner
  /// (peer copies are staged). False when nothing is mapped there.
  bool translate(const Device& device, uint64_t address, Translation* out) const;

 private:
  friend class Vmm;
  struct Block;  // 2 MiB of small allocations
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace olpager::simgpu
