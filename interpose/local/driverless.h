// Functions for libcuda's names when no driver could be loaded: enough for a program to come to
// cuInit and be told.
#pragma once

#include "interpose/api/driver_symbols.h"

namespace olpager::local {

/// A function for `symbol` that needs no driver: cuInit, cuDriverGetVersion, cuGetProcAddress and
/// the texts of errors work, all others return CUDA_ERROR_NOT_INITIALIZED. Never nullptr for a
/// function.
void* driverlessFunction(api::Symbol symbol);

}  // namespace olpager::local
