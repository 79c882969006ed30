// The root of the simulated GPU: the settings, the devices, the process-wide tables. Made by
// cuInit, never destroyed (programs call the driver from exit handlers); a forked child has none.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpunode/simgpu/array.h"
#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/event.h"
#include "gpunode/simgpu/handles.h"
#include "gpunode/simgpu/memory.h"
#include "gpunode/simgpu/page_table.h"
#include "gpunode/simgpu/ptx/ptx.h"
#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

class MemPool;

/// OL_SIM_*; see README.md in this folder.
struct Settings {
  int devices = 1;
  uint64_t vram_bytes = 8ull << 30;
  uint64_t seed = 1;
  bool lazy = false;
  bool jitter = false;
  bool scribble = false;
  bool context_lock = false;
  bool peers = true;
  bool host_numa = true;
  bool param_info = true;
  int capability = 90;  // compute capability, 10 * major + minor
  // Most shared memory of a block, in bytes, when a kernel has opted in: of each of the machine's
  // devices, the last of all others.
  std::vector<int> shared_memory = {232448};
  unsigned shared_pins =
      1;  // of memory that is mapped shared: 0 none can be registered, 1 all, 2 every second
  unsigned connections = 0;        // queues that the streams of a device share; 0: one each
  double bandwidth = 0;            // bytes per second of a link, each way; 0: as fast as the host
  double host_making = 0;          // bytes per second of host memory made by cuMemCreate; likewise
  double mapping = 0;              // seconds of a call that maps or unmaps; 0: as fast as it is
  double speed = 1;                // events tell the time as of a GPU so many times as fast
  unsigned threads = 0;            // of the worker pool; 0: one per core
  bool dead_contexts_end = false;  // a destroyed context that is named again ends the process
  bool dma_buf = false;  // memory that is made for GPUDirect RDMA has a memfd in a dma-buf's place
  bool extras = false;   // what an H200 can't do: decompression, one kernel on several devices
};

/// A device's page table as kernels see it.
class KernelAddressSpace final : public ptx::AddressSpace {
 public:
  explicit KernelAddressSpace(PageTable& pages) : pages_(pages) {}
  bool translate(std::uint64_t va, bool write, ptx::Translation& out) override;
  const std::atomic<std::uint64_t>& generation() const override {
    return pages_.generationCounter();
  }
  void enterSlice() override { pages_.enterSlice(); }
  void leaveSlice() override { pages_.leaveSlice(); }

 private:
  PageTable& pages_;
};

class Device {
 public:
  /// `device_number`: of the machine's; what the process calls `device_ordinal`.
  Device(int device_ordinal, int device_number, const Settings& settings);

  const int ordinal;
  const int number;
  CUdevice handle() const { return ordinal; }
  const std::array<uint8_t, 16> uuid;
  static std::array<uint8_t, 16> uuidOf(const Settings& settings, int device_number);
  std::string name;
  int pciDomain() const { return 0; }
  int pciBus() const { return 1 + number; }
  int pciDevice() const { return 0; }

  PageTable pages;
  KernelAddressSpace kernel_memory{pages};  ///< for ptx::run
  Vram vram;
  /// The primary context: one object, and so one handle, for the life of the process.
  std::shared_ptr<Context> primary;
  int primary_references = 0;  // under Driver::primary_mutex
  /// The fault that a kernel ended with, else CUDA_SUCCESS. As on hardware nothing brings the
  /// device back to this process after one: no reset, no new context.
  std::atomic<CUresult> lost{CUDA_SUCCESS};

  /// OL_SIM_CONNECTIONS: what each queue that streams share ends with. Empty: each stream has its
  /// own.
  struct Connections {
    std::mutex mutex;  // in submission only, over Stream::mutex
    std::vector<StreamPoint> last;
  };
  Connections connections;

  /// OL_SIM_BANDWIDTH: one way of the device's link to the host, which all copies share.
  class Link {
   public:
    /// Waits until these bytes have crossed it, behind what others have sent before.
    void cross(uint64_t bytes, double bytes_per_second);

   private:
    std::mutex mutex_;
    std::chrono::steady_clock::time_point free_;  // from then on
  };
  Link link_in, link_out;  // to the device, from it

  /// CUDA_ERROR_INVALID_VALUE for an attribute that does not exist.
  CUresult attribute(CUdevice_attribute attribute, int* value) const;
};

/// The process's simulated GPUs.
class Driver {
 public:
  /// After a successful requireInit().
  static Driver& get();
  /// As cuInit: makes the driver once; CUDA_ERROR_NO_DEVICE or INVALID_VALUE for settings that make
  /// no sense (with a line on stderr).
  static CUresult init();
  static bool initialized();

  const Settings settings;
  std::vector<std::unique_ptr<Device>> devices;
  Device* device(CUdevice ordinal);
  Memory memory;
  HandleTable<Context> contexts{HandleKind::kContext};
  HandleTable<Stream> streams{HandleKind::kStream};
  HandleTable<Event> events{HandleKind::kEvent};
  HandleTable<Array> arrays{HandleKind::kArray};
  HandleTable<MemPool> pools{HandleKind::kMemPool};
  std::recursive_mutex primary_mutex;  // a library's teardown hook may ask for the state
  /// Threads that kernels run on; shared by all devices. Started by the first use.
  ptx::Executor& executor();

 private:
  explicit Driver(Settings chosen);
  std::once_flag executor_once_;
  std::unique_ptr<ptx::Executor> executor_;
};

/// Bytes of one piece that a device decompresses (OL_SIM_EXTRAS).
inline constexpr size_t kMostDecompressed = 4 << 20;

/// A driver function that is not there: logs the name once (stderr), CUDA_ERROR_NOT_SUPPORTED.
CUresult notSupported(const char* function);

}  // namespace olpager::simgpu
