// A launch on its way from the program's side (interpose/forward/launch.cpp encodes the launch) to
// a worker (gpunode/worker/launches.cpp decodes it).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::forward {

enum class LaunchKind : uint8_t { kKernel, kCooperative, kEx };

/// Arguments of kLaunch; behind it the attributes (kEx), the block of parameters, and the addresses
/// of all pinned blocks that kernels can reach.
struct LaunchHead {
  uint64_t function = 0;
  uint64_t stream = 0;
  uint32_t grid[3] = {}, block[3] = {};
  uint32_t shared = 0;
  uint32_t attributes = 0;
  uint32_t parameter_bytes = 0;
  LaunchKind kind = LaunchKind::kKernel;
  uint8_t per_thread = 0;
  uint8_t by_pointers = 0;  // the program gave kernelParams: so the driver gets them. Else it gave
                            // the block itself (`extra`), or nothing
  uint8_t reserved = 0;
  uint32_t pinned =
      0;  // blocks; 0 where it may be captured. Else an answer with their changes comes
  uint32_t reserved_word = 0;
};
static_assert(sizeof(LaunchHead) == 64);

/// The head of kLaunchOnDevices; behind it for each a LaunchHead (its `pinned` and `attributes` are
/// none) and its block of parameters, then the addresses of the pinned blocks, which are the same
/// for all: where there are some, as many answers with changes come as there are launches.
struct DevicesLaunchHead {
  uint32_t flags = 0;
  uint32_t count = 0;
  uint32_t pinned = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(DevicesLaunchHead) == 16);
inline constexpr uint32_t kMostLaunchDevices = 64;

/// For kClusters; behind it a LaunchHead and its attributes.
enum class ClusterQuestion : uint8_t { kMostActive, kLargest };

/// The kind of call about a graph's node.
enum class NodeCall : uint8_t { kAdd, kSet, kSetExec };

/// For kGraphKernelNode; behind it the parameters. For kAdd the dependencies travel before it.
struct KernelNodeHead {
  uint64_t function = 0;
  uint64_t context = 0;
  uint32_t grid[3] = {}, block[3] = {};
  uint32_t shared = 0;
  uint32_t parameter_bytes = 0;
  uint8_t by_pointers = 0;  // as in LaunchHead
  uint8_t as_kernel = 0;    // to the worker: the program gave `kern`, not `func`
  uint16_t reserved = 0;
  uint32_t reserved_word = 0;
};
static_assert(sizeof(KernelNodeHead) == 56);

/// For kGraphNodeParameters: the kind that is asked for. The reply has for a kernel KernelNodeHead,
/// which has the kernel's function in it, the function by its other name, and the parameters; for a
/// copy CUDA_MEMCPY3D; for a host function its number; for an allocation CUmemPoolProps, bytes and
/// address (8 each), and a CUmemAccessDesc for each that may use it; for operations of streams what
/// kGraphBatchNode has behind its target.
enum class NodeKind : uint8_t { kKernel, kMemcpy, kHost, kAlloc, kBatch };

/// For kGraphBatchNode, behind the target; then come the operations (CUstreamBatchMemOpParams).
struct BatchNodeHead {
  uint64_t context = 0;
  uint32_t flags = 0;
  uint32_t count = 0;
};
static_assert(sizeof(BatchNodeHead) == 16);
/// The driver takes no more in one call.
inline constexpr uint32_t kMostBatchOperations = 256;

/// In the reply to kParameters, one for each parameter.
struct ParameterPlace {
  uint32_t offset = 0, bytes = 0;
};

inline constexpr uint32_t kMostAttributes = 64, kMostParameters = 4096, kMostParameterBytes = 32764;

}  // namespace olpager::forward
