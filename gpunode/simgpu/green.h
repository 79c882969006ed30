// Green contexts: contexts with some of their device's multiprocessors. Green contexts share the
// primary context's memory; kernels are as fast in all of them, as the simulated GPU has no
// multiprocessors to keep apart.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/handles.h"

namespace olpager::simgpu {

/// The opaque bytes of a resource. In a resource of this driver's alone: what else is there is
/// refused.
struct SmShare {
  uint64_t magic = 0;
  int32_t device = 0;
  uint32_t first = 0;  // of the device's multiprocessors
  uint32_t count = 0;
  uint32_t reserved = 0;
  uint64_t split = 0;  // which split it came out of; 0: none, and it can be split
};

struct ResourceDesc {
  SmShare share;
};

struct GreenContext {
  SmShare share;
  std::shared_ptr<Context> context;
};

HandleTable<ResourceDesc>& resourceDescs();
HandleTable<GreenContext>& greenContexts();

}  // namespace olpager::simgpu
