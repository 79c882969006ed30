// Resolves libcuda's names in forwarded mode, and the driver's private tables as a client without a
// driver gives them. Thread-safety: any thread. May connect to the gpunode at first use.
#pragma once

#include <cuda.h>

#include "interpose/api/driver_symbols.h"

namespace olpager::forward {

/// The function for `symbol`; nullptr where the gpunode's driver has none of that name, or
/// libcuda's object is meant.
void* resolve(api::Symbol symbol);
/// The address that dlsym gives for the symbol in this library; nullptr: it can't be told.
using ExportedSymbol = void* (*)(api::Symbol);
/// From now on cuGetProcAddress answers with these where there are any, as a driver does: a
/// function has one address.
void setExported(ExportedSymbol exported);
/// As cuGetProcAddress_v2.
CUresult getProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult* status);
/// The context is about to be reset or destroyed: objects that libraries attached to it are let go.
void contextGone(CUcontext context);

}  // namespace olpager::forward
