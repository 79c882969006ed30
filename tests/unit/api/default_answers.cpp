// The functions behind the simulated GPU's defaults in the test: remembers the symbol; and one
// function of its own.
#define __CUDA_API_VERSION_INTERNAL
#include "interpose/api/driver_declarations.h"
#include "interpose/api/driver_symbols.h"

namespace {
olpager::api::Symbol g_last;
}  // namespace

extern "C" CUresult olsim_not_supported(olpager::api::Symbol symbol) {
  g_last = symbol;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(g_last);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord_ptsz(CUevent, CUstream) { return CUDA_ERROR_NOT_READY; }
