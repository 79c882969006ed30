// Declares and defines functions of ours for names that the specification passes to the driver: it has to be known that
// they were called, what they do stays the driver's.
#pragma once

#include "interpose/api/local_runtime.h"

#define OLPAGER_EXTRA_HOOK(symbol) extern "C" __attribute__((visibility("hidden"))) CUresult ol_extra_##symbol

OLPAGER_EXTRA_HOOK(cuMemPoolCreate)(CUmemoryPool* out, const CUmemPoolProps* props);
OLPAGER_EXTRA_HOOK(cuMemPoolDestroy)(CUmemoryPool memory_pool);
OLPAGER_EXTRA_HOOK(cuDevicePrimaryCtxRetain)(CUcontext* out, CUdevice device);
OLPAGER_EXTRA_HOOK(cuLibraryGetModule)(CUmodule* out, CUlibrary library);
OLPAGER_EXTRA_HOOK(cuKernelGetFunction)(CUfunction* out, CUkernel kernel);
