// Texture and surface objects, as kernels find them.
//
// An object may be destroyed while kernels that were submitted before still use it: they find it
// until they have ended. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <memory>

#include "gpunode/simgpu/ptx/texture.h"

namespace olpager::simgpu {

/// The objects for a launch, to be made when it is submitted and kept until it has ended; null
/// where there are no objects.
std::unique_ptr<ptx::TextureTable> texturesForLaunch();

/// Destroys the objects of a context that is torn down.
void forgetTextures(CUcontext context);

}  // namespace olpager::simgpu
