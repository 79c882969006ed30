// Parameters of kernels as launches and graphs send them. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "forwarding/wire/launch_wire.h"

namespace olpager::forward {

struct ParameterLayout {
  std::vector<ParameterPlace> places;
  uint32_t bytes = 0;
};

/// Layouts that workers have told, by kernel: of a library's kernel it is the same in all sessions.
struct ParameterLayouts {
  std::shared_mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<const ParameterLayout>> of;
};

/// Launches that drivers have taken: the answer to the same again, in the same context and but for
/// the grid, is known.
struct TakenLaunches {
  struct Launch {
    uint64_t function;
    uint32_t shared;
  };
  std::shared_mutex mutex;
  std::unordered_map<uint64_t, Launch> launches;  // by their hashes

  bool has(uint64_t hash);
  void note(uint64_t hash, const LaunchHead& head);
};

/// A kernel's parameters, each at its place. Small ones live on the stack.
class ParameterBlock {
 public:
  void resize(size_t bytes) {
    bytes_ = bytes;
    if (bytes > sizeof small_) large_.resize(bytes);
  }
  std::byte* data() { return bytes_ > sizeof small_ ? large_.data() : small_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte small_[512] = {};
  std::vector<std::byte> large_;
  size_t bytes_ = 0;
};

/// Attributes whose values hold handles don't travel.
bool travels(const CUlaunchAttribute& attribute);
/// A launch as cuLaunchKernelEx is told it, without what comes behind it.
LaunchHead headOf(const CUlaunchConfig& config, CUfunction function, bool per_thread = false);

CUresult layoutOf(CUfunction function, std::shared_ptr<const ParameterLayout>* out);
/// From an array of pointers, or the buffer that `extra` names.
CUresult packParameters(CUfunction function, void* const* parameters, void* const* extra,
                        ParameterBlock& block);
/// Forgets the driver's answers to launches for which this is true: what their kernels may use has
/// changed.
void forgetTakenIf(const std::function<bool(uint64_t function, uint32_t shared)>& is);
/// Handles may be given out again for other kernels.
void forgetLayouts();

/// The result of a launch in this stream that the driver has taken: with CUDA_LAUNCH_BLOCKING it is
/// over then, and its failure is told. `per_thread`: what NULL stands for.
CUresult launchTaken(CUstream stream, bool per_thread);

}  // namespace olpager::forward
