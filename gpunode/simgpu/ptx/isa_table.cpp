// The table of the families compiled for one level of vector instructions.
#include "gpunode/simgpu/ptx/lanes.h"

namespace olpager::simgpu::ptx::PTX_ISA {

extern const IsaOps kOps;
const IsaOps kOps{integerOp, floatingOp, halfOp, convertOp, compareOp, setOp, memoryOp};

}  // namespace olpager::simgpu::ptx::PTX_ISA
