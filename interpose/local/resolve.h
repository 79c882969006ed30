// Names of libcuda to functions. Thread-safe; may load the driver at first use.
#pragma once

#include <cuda.h>

#include "interpose/api/driver_symbols.h"

namespace olpager::local {

/// The function that stands for `symbol`; nullptr when the driver has none of that name.
void* resolve(api::Symbol symbol);

/// cuGetProcAddress_v2. Consistent with resolve().
CUresult getProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult* status);

}  // namespace olpager::local
