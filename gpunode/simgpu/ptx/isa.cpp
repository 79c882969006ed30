#include "gpunode/simgpu/ptx/ops.h"

namespace olpager::simgpu::ptx {

namespace isa_base {
extern const IsaOps kOps;
}
#ifdef PTX_HAVE_AVX2
namespace isa_avx2 {
extern const IsaOps kOps;
}
#endif

const IsaOps& isaOps() {
#ifdef PTX_HAVE_AVX2
  static const bool avx2 =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
      __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0;
  if (avx2) return isa_avx2::kOps;
#endif
  return isa_base::kOps;
}

}  // namespace olpager::simgpu::ptx
