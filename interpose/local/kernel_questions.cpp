// Questions about kernels. A driver may load a kernel's code for the first question, behind all
// that runs, and answer no other call meanwhile: so it is loaded before, as for a launch
// (kernelIsAsked).
#include "interpose/local/context.h"
#include "interpose/local/hook.h"
#include "interpose/local/launch.h"
#include "interpose/local/root.h"

namespace olpager::local {
namespace {

void isAsked(CUfunction function) { kernelIsAsked(function); }
void isAsked(CUkernel kernel) { kernelIsAsked(reinterpret_cast<CUfunction>(kernel)); }

}  // namespace
}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

OLPAGER_HOOK(cuFuncGetAttribute)(int* value, CUfunction_attribute attribute, CUfunction function) {
  isAsked(function);
  return driver().cuFuncGetAttribute(value, attribute, function);
}
OLPAGER_HOOK(cuFuncGetModule)(CUmodule* module, CUfunction function) {
  isAsked(function);
  return driver().cuFuncGetModule(module, function);
}
OLPAGER_HOOK(cuFuncSetAttribute)(CUfunction function, CUfunction_attribute attribute, int value) {
  isAsked(function);
  return driver().cuFuncSetAttribute(function, attribute, value);
}
OLPAGER_HOOK(cuFuncSetCacheConfig)(CUfunction function, CUfunc_cache config) {
  isAsked(function);
  return driver().cuFuncSetCacheConfig(function, config);
}
OLPAGER_HOOK(cuFuncSetSharedMemConfig)(CUfunction function, CUsharedconfig config) {
  isAsked(function);
  return driver().cuFuncSetSharedMemConfig(function, config);
}
OLPAGER_HOOK(cuFuncGetParamInfo)
(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  isAsked(function);
  return driver().cuFuncGetParamInfo(function, index, offset, bytes);
}
OLPAGER_HOOK(cuKernelGetParamInfo)(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  isAsked(kernel);
  return driver().cuKernelGetParamInfo(kernel, index, offset, bytes);
}
OLPAGER_HOOK(cuKernelGetAttribute)
(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  isAsked(kernel);
  return driver().cuKernelGetAttribute(value, attribute, kernel, device);
}
OLPAGER_HOOK(cuKernelSetAttribute)
(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  isAsked(kernel);
  return driver().cuKernelSetAttribute(attribute, value, kernel, device);
}
OLPAGER_HOOK(cuKernelSetCacheConfig)(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  isAsked(kernel);
  return driver().cuKernelSetCacheConfig(kernel, config, device);
}
OLPAGER_HOOK(cuOccupancyAvailableDynamicSMemPerBlock)
(size_t* bytes, CUfunction function, int blocks, int block_size) {
  isAsked(function);
  return driver().cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, block_size);
}
OLPAGER_HOOK(cuOccupancyMaxActiveBlocksPerMultiprocessor)
(int* blocks, CUfunction function, int block_size, size_t dynamic) {
  isAsked(function);
  return driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size,
                                                              dynamic);
}
OLPAGER_HOOK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int* blocks, CUfunction function, int block_size, size_t dynamic, unsigned int flags) {
  isAsked(function);
  return driver().cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                       dynamic, flags);
}
OLPAGER_HOOK(cuOccupancyMaxActiveClusters)
(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  isAsked(function);
  return driver().cuOccupancyMaxActiveClusters(clusters, function, config);
}
OLPAGER_HOOK(cuOccupancyMaxPotentialClusterSize)
(int* size, CUfunction function, const CUlaunchConfig* config) {
  isAsked(function);
  return driver().cuOccupancyMaxPotentialClusterSize(size, function, config);
}
OLPAGER_HOOK(cuOccupancyMaxPotentialBlockSize)
(int* grid, int* block, CUfunction function, CUoccupancyB2DSize dynamic_of, size_t dynamic,
 int limit) {
  isAsked(function);
  return driver().cuOccupancyMaxPotentialBlockSize(grid, block, function, dynamic_of, dynamic,
                                                   limit);
}
OLPAGER_HOOK(cuOccupancyMaxPotentialBlockSizeWithFlags)
(int* grid, int* block, CUfunction function, CUoccupancyB2DSize dynamic_of, size_t dynamic,
 int limit, unsigned int flags) {
  isAsked(function);
  return driver().cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, dynamic_of,
                                                            dynamic, limit, flags);
}
