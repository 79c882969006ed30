// The driver under test: every function by name from one libcuda, opened at run time, so that the
// same program asks the real driver, the simulated GPU, or either of them through the pager.
#pragma once

#include <cuda.h>

namespace conformance {

// cuda.h renames most functions to their newest version; #name below is expanded after that.
// clang-format off
#define CONFORMANCE_FUNCTIONS(X) \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) \
  X(cuDeviceGetAttribute) X(cuDeviceTotalMem) X(cuDeviceGetUuid_v2) X(cuGetErrorName) \
  X(cuGetErrorString) X(cuGetProcAddress_v2) X(cuGetExportTable) X(cuModuleGetLoadingMode) \
  X(cuCtxCreate) X(cuCtxDestroy) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent) \
  X(cuCtxPopCurrent) X(cuCtxSynchronize) X(cuCtxGetDevice) X(cuCtxGetFlags) X(cuCtxGetId) \
  X(cuCtxGetApiVersion) X(cuCtxGetStreamPriorityRange) X(cuDevicePrimaryCtxRetain) \
  X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxGetState) \
  X(cuMemAlloc) X(cuMemAllocPitch) X(cuMemFree) X(cuMemGetInfo) X(cuMemGetAddressRange) \
  X(cuMemHostAlloc) X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemHostRegister) \
  X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuMemHostGetFlags) X(cuMemAllocManaged) \
  X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuPointerSetAttribute) X(cuMemAdvise) \
  X(cuMemPrefetchAsync) X(cuMemRangeGetAttribute) X(cuMemcpy) X(cuMemcpyHtoD) X(cuMemcpyDtoH) \
  X(cuMemcpyDtoD) X(cuMemcpyAsync) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) \
  X(cuMemcpy2D) X(cuMemcpy2DUnaligned) X(cuMemcpy3D) X(cuMemsetD8) X(cuMemsetD16) X(cuMemsetD32) \
  X(cuMemsetD2D8) X(cuMemsetD2D32) X(cuMemsetD8Async) X(cuMemAddressReserve) X(cuMemAddressFree) \
  X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess) \
  X(cuMemGetAllocationGranularity) X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemRetainAllocationHandle) X(cuMemExportToShareableHandle) \
  X(cuMemImportFromShareableHandle) X(cuMemGetHandleForAddressRange) X(cuIpcGetMemHandle) \
  X(cuIpcOpenMemHandle) X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemAllocFromPoolAsync) \
  X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolGetAttribute) X(cuMemPoolSetAttribute) \
  X(cuMemPoolTrimTo) X(cuMemPoolGetAccess) X(cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool) \
  X(cuDeviceSetMemPool) X(cuModuleLoadData) X(cuModuleLoadDataEx) X(cuModuleUnload) \
  X(cuModuleGetFunction) X(cuModuleGetGlobal) X(cuModuleGetFunctionCount) X(cuLibraryLoadData) \
  X(cuLibraryUnload) X(cuLibraryGetKernel) X(cuLibraryGetGlobal) X(cuLibraryGetModule) \
  X(cuLibraryGetKernelCount) X(cuKernelGetFunction) X(cuKernelGetName) X(cuKernelGetParamInfo) \
  X(cuFuncGetParamInfo) X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuFuncGetName) \
  X(cuFuncGetModule) X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuOccupancyMaxPotentialBlockSize) X(cuLaunchKernel) X(cuLaunchKernelEx) \
  X(cuLaunchCooperativeKernel) X(cuLaunchHostFunc) X(cuStreamCreate) \
  X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize) \
  X(cuStreamWaitEvent) X(cuStreamGetFlags) X(cuStreamGetPriority) X(cuStreamGetCtx) \
  X(cuStreamGetId) X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuStreamIsCapturing) \
  X(cuStreamGetCaptureInfo) X(cuThreadExchangeStreamCaptureMode) X(cuStreamWaitValue32) \
  X(cuStreamWriteValue32) X(cuStreamAddCallback) X(cuEventCreate) X(cuEventDestroy) \
  X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime) X(cuGraphCreate) \
  X(cuGraphDestroy) X(cuGraphAddKernelNode) X(cuGraphAddMemsetNode) X(cuGraphAddMemcpyNode) \
  X(cuGraphAddHostNode) X(cuGraphAddEmptyNode) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) \
  X(cuGraphUpload) X(cuGraphExecDestroy) X(cuGraphGetNodes) X(cuGraphGetEdges) \
  X(cuGraphNodeGetType) X(cuGraphKernelNodeGetParams) X(cuGraphKernelNodeSetParams) \
  X(cuGraphExecKernelNodeSetParams) X(cuGraphExecUpdate) X(cuGraphClone) \
  X(cuGraphAddDependencies) X(cuGraphAddMemAllocNode) X(cuGraphAddMemFreeNode) \
  X(cuGraphAddChildGraphNode) X(cuGraphExecMemsetNodeSetParams) X(cuGraphExecMemcpyNodeSetParams) \
  X(cuGraphMemsetNodeSetParams) X(cuGraphMemcpyNodeSetParams) X(cuTexObjectCreate) \
  X(cuTexObjectDestroy) X(cuArrayCreate) X(cuArrayDestroy)
// clang-format on
/// Function pointers of the libcuda under test; members have the versioned names that cuda.h maps
/// to.
struct Driver {
#define CONFORMANCE_MEMBER(name) decltype(&::name) name = nullptr;
  CONFORMANCE_FUNCTIONS(CONFORMANCE_MEMBER)
#undef CONFORMANCE_MEMBER
  void* library = nullptr;
};

/// The one driver of this process; filled by openDriver before any section runs.
extern Driver api;

/// Opens `path` (as dlopen takes it) and finds every function. Ends the process with 2 and a line
/// when it can't.
void openDriver(const char* path);

}  // namespace conformance
