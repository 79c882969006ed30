// Shared by the pager's tests: a driver by path (the simulated GPU unless OL_TEST_LIBCUDA names
// another), a context and a pool in it, and operations that go through pager::Access as an
// interposed program's do. A test that lasts longer than its time ends the process with its name.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/sanitizer.h"
#include "pager/counters/counters.h"
#include "pager/driver_api.h"
#include "pager/pool.h"
#include "tests/catch.h"

namespace olpager::pager {
/// The inside of a pool (pool_state.h), for tests that look into it.
struct PoolInside {
  static PoolState& of(Pool& pool) { return *pool.state_; }
};
}  // namespace olpager::pager

namespace olpager::pager::test {

inline constexpr uint64_t kMiB = 1ull << 20;
/// Words between two values that a kernel touches: a few of each page.
inline constexpr uint64_t kStep = 32768;
/// In an instrumented build launches lose patience that do not elsewhere: what is a matter of speed
/// is not asked.
inline constexpr bool kInstrumented = base::kThreadSanitizer || base::kAddressSanitizer;
/// How much longer things may take there.
inline constexpr int kPatience = kInstrumented ? 10 : 1;

// Driver functions that tests call besides the pager's own.
#define OLPAGER_TEST_FUNCTIONS(X) \
  X(cuInit)                       \
  X(cuDeviceGet)                  \
  X(cuCtxCreate_v4)               \
  X(cuCtxDestroy_v2)              \
  X(cuCtxSetCurrent)              \
  X(cuStreamCreate)               \
  X(cuStreamBeginCapture_v2)      \
  X(cuStreamEndCapture)           \
  X(cuGraphDestroy)               \
  X(cuModuleGetGlobal_v2)         \
  X(cuMemcpyHtoD_v2)              \
  X(cuMemHostGetDevicePointer_v2) \
  X(cuLaunchHostFunc)

/// The driver, loaded once in a process.
struct Driver {
  DriverApi api;
#define OLPAGER_MEMBER(name) decltype(&::name) name = nullptr;
  OLPAGER_TEST_FUNCTIONS(OLPAGER_MEMBER)
#undef OLPAGER_MEMBER
};
Driver& driver();

/// Ends the process with the test's name unless it is destroyed in time.
class Watchdog {
 public:
  explicit Watchdog(unsigned seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// True if an address lies in the range of a rig's pool.
bool inTestRange(CUdeviceptr address);

/// Catch's assertions are for one thread at a time, and threads use rigs: none is made where all is
/// well.
inline void mustSucceed(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) FAIL(what << ": CUDA error " << result);
}

/// As the kernels' mix().
uint64_t mix(uint64_t x);

/// Later work in the stream waits until `open`.
void holdUntil(const std::atomic<bool>& open, CUstream stream);

/// The seed of a randomised test: OL_TEST_SEED, else `fallback`. Printed.
uint64_t seedOr(uint64_t fallback);

struct RigOptions {
  uint64_t vram = 8 * kMiB;
  uint64_t host = 256 * kMiB;
  Reach reach = Reach::kTraced;
  Report report = Report::kNode;
  Packing packing = {};
  bool stream_arenas = false;
  Waits waits = {};
  unsigned seconds = 120;
  std::shared_ptr<LowerTier> remote = nullptr;
  bool require_direct = false;
  void (*alter)(DriverApi& api) = nullptr;  // puts functions that fail in the pager's table
};

class Rig {
 public:
  explicit Rig(const RigOptions& options = {});
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  Pool& pool() { return *pool_; }
  CUcontext context() const { return context_; }
  DeviceCounters& figures() { return counters().device(0); }
  /// A kernel of kernels.cu.
  CUfunction kernel(const char* name);
  CUmodule module() const { return module_; }
  /// The image from which the module was loaded.
  static std::string image();
  /// Makes the context current on the calling thread.
  void enterThread();
  CUstream makeStream();
  StreamKey key(CUstream stream) const { return {context_, stream, 0}; }

  CUresult tryAllocate(uint64_t bytes, CUdeviceptr* out,
                       AllocationKind kind = AllocationKind::kDevice) {
    return pool_->allocate(context_, 0, bytes, kind, out);
  }
  CUdeviceptr allocate(uint64_t bytes);
  void free(CUdeviceptr address) { mustSucceed(pool_->free(address), "free"); }

  /// A kernel with one block unless `grid` says otherwise. Returns the answer of acquire() or the
  /// driver.
  template <typename... Arguments>
  CUresult tryLaunch(const StreamKey& stream, CUfunction function, Arguments... arguments) {
    Access access(*pool_, stream);
    access.setFunction(function);
    (access.addParameter(&arguments, sizeof(arguments)), ...);
    if (const CUresult result = access.acquire(); result != CUDA_SUCCESS) return result;
    std::array<void*, sizeof...(arguments) + 1> pointers = {static_cast<void*>(&arguments)...,
                                                            nullptr};
    const CUresult result = driver().api.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0,
                                                        stream.stream, pointers.data(), nullptr);
    access.submitted(result);
    return result;
  }
  template <typename... Arguments>
  void launch(CUstream stream, const char* name, Arguments... arguments) {
    mustSucceed(tryLaunch(key(stream), kernel(name), arguments...), name);
  }

  CUresult copyIn(CUstream stream, CUdeviceptr to, const void* from, uint64_t bytes, bool stable);
  CUresult copyOut(CUstream stream, void* to, CUdeviceptr from, uint64_t bytes);
  CUresult copyWithin(CUstream stream, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
  CUresult zero(CUstream stream, CUdeviceptr at, uint64_t bytes);
  void synchronize() { mustSucceed(driver().api.cuCtxSynchronize(), "cuCtxSynchronize"); }

  /// Writes and reads back single words, synchronously.
  void put(CUdeviceptr at, uint64_t value);
  uint64_t get(CUdeviceptr at);
  /// The data that kernel `fill` writes, `bytes` long.
  void fill(CUdeviceptr at, uint64_t bytes, uint64_t seed, CUstream stream = CU_STREAM_LEGACY);
  /// True when `at` holds what fill(seed) wrote plus `added`.
  bool holds(CUdeviceptr at, uint64_t bytes, uint64_t seed, uint64_t added = 0);
  /// The same where the copy to the host may be refused: what it answered.
  CUresult tryHolds(CUdeviceptr at, uint64_t bytes, uint64_t seed, uint64_t added, bool* holds);
  /// Uses enough other memory that what is not used meanwhile leaves VRAM.
  void press();

  /// Drops the pool's objects in the context before its end; the rig's destructor does so
  /// otherwise.
  void end();

 private:
  Watchdog watchdog_;
  RigOptions options_;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  std::unique_ptr<Pool> pool_;
  std::vector<CUdeviceptr> pressure_;
};

}  // namespace olpager::pager::test
