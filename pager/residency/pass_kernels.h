// The GPU's part of a pass: kernels that hash pages and look for addresses in them, the stream that
// they run in, and the buffers that they read and write (kernels/hash_and_scan.h says what they
// do).
//
// Locks: scratch buffers and slots are taken and given back under PoolState::mutex. Members that
// launch something are called without it, since a driver call may wait.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pager/driver_api.h"
#include "pager/kernels/hash_and_scan.h"
#include "pager/space/region.h"

namespace olpager::pager {

class PassKernels {
 public:
  /// Buffers of one pass, in pinned memory that the GPU reads and writes directly.
  struct Scratch {
    uint64_t pages = 0;  // room of `hashes` and `jobs`
    ContentHash* hashes = nullptr;
    uint32_t* found = nullptr;
    kernels::PagePassJob* jobs = nullptr;
    kernels::ScanJob* roots = nullptr;
    bool busy = false;
  };
  static constexpr size_t kPasses = 4;             // in flight
  static constexpr size_t kRootJobs = 4096;        // small roots that go in one launch
  static constexpr uint32_t kGranules = 1u << 14;  // of the addresses between which roots lie
  /// A bit for each page of 16 TiB, and for each granule.
  static constexpr uint64_t kFoundBytes = (1u << 20) + kGranules / 8;
  static constexpr int kFetchHashes = 64;  // at a time

  explicit PassKernels(const DriverApi& driver) : driver_(driver) {}

  /// Stream, kernels and buffers for passes over so many pages, in the current context.
  CUresult makeObjects(uint64_t pages);
  /// In the current context. Nothing runs any more.
  void destroyObjects();
  CUstream stream() const { return stream_; }

  /// nullptr: all are busy.
  Scratch* freeScratch();

  /// The jobs [first, first + count) of the buffer, then the event, where one is given.
  CUresult launchPass(const Scratch& scratch, size_t first, size_t count,
                      const kernels::ScanScope& scope, CUevent event) const;
  /// Small ones share a launch, as many as the buffer holds from slot `first` on; each of the
  /// others has one of its own.
  CUresult launchScans(const Scratch& scratch, size_t first,
                       const std::vector<kernels::ScanJob>& jobs,
                       const kernels::ScanScope& scope) const;
  /// Waits for all that was launched.
  CUresult synchronize() const { return driver_.cuStreamSynchronize(stream_); }

  // --- what a copy has brought to VRAM is hashed there -------------------------------------------
  /// A slot for one hash; -1: there is none free.
  int takeHashSlot();
  void giveHashSlot(int slot) { free_hashes_.push_back(slot); }
  /// Behind `copied`, which is recorded again behind the kernel. False: the driver refused; the
  /// kernel may have been launched, and the slot is not to be used again.
  bool launchHash(const Extent& extent, CUevent copied, int slot) const;
  /// Takes what the kernel of a slot found. The slot is free again.
  ContentHash takeHash(const Extent& extent, int slot);

 private:
  const DriverApi& driver_;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction pass_ = nullptr, scan_ = nullptr, scan_roots_ = nullptr;
  std::array<Scratch, kPasses> scratch_;
  kernels::PagePassJob* hash_jobs_ = nullptr;  // one for each slot
  ContentHash* hashes_ = nullptr;              // of pages, kLargestArenaExtentPages for each slot
  std::vector<int> free_hashes_;
};

}  // namespace olpager::pager
