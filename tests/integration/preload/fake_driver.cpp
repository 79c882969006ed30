// A stand-in for the driver's libcuda, for tests of the interposer alone: device memory is memory
// of the process, mapped at the very addresses that the pager asks for, so a call that got an
// address where nothing is mapped faults. Work is done at once. Kernels are known by name (kernels
// below). Nothing here is a GPU; the simulated GPU is elsewhere.
//
// Exported besides: fakeCalls(name), how often a function was called.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Kernel {
  const char* name;
  std::vector<size_t> sizes;
};

// Parameter sizes in bytes. `scatter` takes a struct with two pointers at 4-byte steps behind an
// int.
const Kernel kKernels[] = {
    {"fill", {8, 8, 4}},  // address, count of words, value
    {"add", {8, 8, 8, 8}},
    {"chase", {8, 8}},  // address of a pointer, where to put what it points to
    {"empty", {}},
    {"hidden", {4, 24}},
    {"eight", {8, 8, 8, 8, 8, 8, 8, 8}},  // addresses, which it does nothing with
};

struct Function {
  const Kernel* kernel = nullptr;
};

struct State {
  std::mutex mutex;
  std::map<std::string, unsigned> calls;
  std::map<std::string, Function> functions;
  std::set<uint64_t> chunks;
  int initialized = 0;
  int primary_uses = 0;
  uint64_t next_handle = 0x1000;
  uint64_t capture_id = 0;
  std::map<CUstream, uint64_t> capturing;
  bool forked = false;
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

thread_local std::vector<CUcontext> t_contexts;

void* handle() { return reinterpret_cast<void*>(state().next_handle += 16); }
const auto kPrimary = reinterpret_cast<CUcontext>(0x900);

void count(const char* name) {
  std::lock_guard lock(state().mutex);
  ++state().calls[name];
}

bool ready() { return state().initialized != 0 && !state().forked; }

#define CALLED()   \
  count(__func__); \
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED

void run(const Kernel& kernel, void** p) {
  const std::string name = kernel.name;
  const auto word = [&](size_t i) {
    uint64_t value = 0;
    memcpy(&value, p[i], kernel.sizes[i]);
    return value;
  };
  if (name == "fill") {
    auto* out = reinterpret_cast<uint32_t*>(word(0));
    for (uint64_t i = 0; i < word(1); ++i) out[i] = static_cast<uint32_t>(word(2));
  } else if (name == "add") {
    const auto* a = reinterpret_cast<const uint32_t*>(word(0));
    const auto* b = reinterpret_cast<const uint32_t*>(word(1));
    auto* c = reinterpret_cast<uint32_t*>(word(2));
    for (uint64_t i = 0; i < word(3); ++i) c[i] = a[i] + b[i];
  } else if (name == "chase") {
    const auto* target = *reinterpret_cast<const uint32_t* const*>(word(0));
    *reinterpret_cast<uint32_t*>(word(1)) = *target;
  }
}

}  // namespace

EXPORT unsigned fakeCalls(const char* name) {
  std::lock_guard lock(state().mutex);
  return state().calls[name];
}

EXPORT CUresult cuInit(unsigned) {
  count(__func__);
  if (state().initialized != 0) return ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  state().initialized = 1;
  pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                 [] {
                   state().forked = true;
                   state().mutex.unlock();
                 });
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetProcAddress_v2(const char* name, void** out, int, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* status) {
  const std::string base = name;
  *out = nullptr;
  const char* thread[] = {"_v2_ptsz", "_ptsz", "_v2_ptds", "_ptds"};
  const char* plain[] = {"_v2", ""};
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
    for (const char* suffix : thread) {
      if (*out == nullptr) *out = dlsym(RTLD_DEFAULT, (base + suffix).c_str());
    }
  }
  Dl_info own{};
  dladdr(reinterpret_cast<void*>(&fakeCalls), &own);
  void* self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  for (const char* suffix : plain) {
    if (*out == nullptr) *out = dlsym(self, (base + suffix).c_str());
  }
  if (status != nullptr) {
    *status = *out != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* n) {
  CALLED();
  *n = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  CALLED();
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  CALLED();
  *value = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  CALLED();
  *bytes = size_t{1} << 30;
  return CUDA_SUCCESS;
}

// --- contexts ------------------------------------------------------------------------------------
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice) {
  CALLED();
  ++state().primary_uses;
  *out = kPrimary;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  CALLED();
  return --state().primary_uses < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* out) {
  if (!ready()) return CUDA_ERROR_NOT_INITIALIZED;
  *out = t_contexts.empty() ? nullptr : t_contexts.back();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  CALLED();
  t_contexts.clear();
  if (context != nullptr) t_contexts.push_back(context);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CALLED();
  t_contexts.push_back(context);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  CALLED();
  if (t_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = t_contexts.back();
  t_contexts.pop_back();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  CALLED();
  if (t_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSynchronize() {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxDestroy_v2(CUcontext) {
  CALLED();
  return CUDA_SUCCESS;
}

// --- memory --------------------------------------------------------------------------------------
EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  CALLED();
  *free_bytes = *total = size_t{1} << 30;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t, CUdeviceptr hint,
                                    unsigned long long) {
  CALLED();
  void* at = mmap(
      reinterpret_cast<void*>(hint), bytes, PROT_NONE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (hint != 0 ? MAP_FIXED_NOREPLACE : 0), -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(at);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
  CALLED();
  munmap(reinterpret_cast<void*>(at), bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                            const CUmemAllocationProp*, unsigned long long) {
  CALLED();
  const int fd = memfd_create("fake", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = static_cast<CUmemGenericAllocationHandle>(fd);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle memory) {
  CALLED();
  close(static_cast<int>(memory));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle memory, unsigned long long) {
  CALLED();
  void* mapped = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, static_cast<int>(memory), static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  CALLED();
  void* mapped = mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return mapped == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  CALLED();
  *can = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  CALLED();
  *out = reinterpret_cast<CUdeviceptr>(calloc(1, bytes));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
  CALLED();
  free(reinterpret_cast<void*>(at));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream) {
  CALLED();
  *out = reinterpret_cast<CUdeviceptr>(calloc(1, bytes));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr at, CUstream) {
  CALLED();
  free(reinterpret_cast<void*>(at));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  CALLED();
  *out = calloc(1, bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostRegister_v2(void*, size_t, unsigned) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostUnregister(void*) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFreeHost(void* at) {
  CALLED();
  free(at);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetHandleForAddressRange(void*, CUdeviceptr, size_t, CUmemRangeHandleType,
                                              unsigned long long) {
  CALLED();
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget,
                                           CUflushGPUDirectRDMAWritesScope) {
  CALLED();
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuPointerGetAttribute(void*, CUpointer_attribute, CUdeviceptr) {
  CALLED();
  return CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuPointerGetAttributes(unsigned, CUpointer_attribute*, void**, CUdeviceptr) {
  CALLED();
  return CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr*, size_t*, CUdeviceptr) {
  CALLED();
  return CUDA_ERROR_NOT_FOUND;
}

namespace {
CUresult copy(CUdeviceptr to, const void* from, size_t bytes) {
  memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
}  // namespace

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  CALLED();
  return copy(to, from, bytes);
}
EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  CALLED();
  return copy(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<void*>(from), bytes);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                     CUstream stream) {
  CALLED();
  return state().capturing.count(stream) != 0 ? CUDA_SUCCESS : copy(to, from, bytes);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  CALLED();
  return copy(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<void*>(from), bytes);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  CALLED();
  return copy(to, reinterpret_cast<void*>(from), bytes);
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream) {
  CALLED();
  memset(reinterpret_cast<void*>(to), value, bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t n) {
  CALLED();
  for (size_t i = 0; i < n; ++i) reinterpret_cast<unsigned*>(to)[i] = value;
  return CUDA_SUCCESS;
}

// --- streams, events -----------------------------------------------------------------------------
EXPORT CUresult cuStreamCreate(CUstream* out, unsigned) {
  CALLED();
  *out = static_cast<CUstream>(handle());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream* out, unsigned, int) {
  CALLED();
  *out = static_cast<CUstream>(handle());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamDestroy_v2(CUstream) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamQuery(CUstream) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamSynchronize(CUstream) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                                    unsigned) {
  CALLED();
  callback(stream, CUDA_SUCCESS, data);  // all work is over at once
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  CALLED();
  *status = state().capturing.count(stream) != 0 ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                 : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                          cuuint64_t* id, CUgraph*, const CUgraphNode**, size_t*) {
  CALLED();
  const auto found = state().capturing.find(stream);
  *status = found != state().capturing.end() ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                             : CU_STREAM_CAPTURE_STATUS_NONE;
  if (found != state().capturing.end()) *id = found->second;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  CALLED();
  state().capturing[stream] = ++state().capture_id;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* out) {
  CALLED();
  state().capturing.erase(stream);
  *out = static_cast<CUgraph>(handle());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph, unsigned long long) {
  CALLED();
  *out = static_cast<CUgraphExec>(handle());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphLaunch(CUgraphExec, CUstream) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphDestroy(CUgraph) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphExecDestroy(CUgraphExec) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventCreate(CUevent* out, unsigned) {
  CALLED();
  *out = static_cast<CUevent>(handle());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventRecord(CUevent, CUstream) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventQuery(CUevent) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventSynchronize(CUevent) {
  CALLED();
  return CUDA_SUCCESS;
}
#undef cuEventElapsedTime  // a driver of CUDA 12.4 has the first version only
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
  CALLED();
  *milliseconds = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventDestroy_v2(CUevent) {
  CALLED();
  return CUDA_SUCCESS;
}

// --- modules, launches ---------------------------------------------------------------------------
EXPORT CUresult cuModuleLoadData(CUmodule* out, const void*) {
  CALLED();
  *out = static_cast<CUmodule>(handle());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleUnload(CUmodule) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetFunction(CUfunction* out, CUmodule, const char* name) {
  CALLED();
  Function& function = state().functions[name];
  for (const Kernel& kernel : kKernels) {
    if (strcmp(kernel.name, name) == 0) function.kernel = &kernel;
  }
  *out = reinterpret_cast<CUfunction>(&function);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t* offset, size_t* bytes) {
  CALLED();
  const Kernel* kernel = reinterpret_cast<Function*>(f)->kernel;
  if (kernel == nullptr || index >= kernel->sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  for (size_t i = 0; i < index; ++i) *offset = (*offset + kernel->sizes[i] + 7) / 8 * 8;
  *bytes = kernel->sizes[index];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetParamInfo(CUkernel, size_t, size_t*, size_t*) {
  CALLED();
  return CUDA_ERROR_INVALID_HANDLE;
}
EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, unsigned, CUstream stream, void** parameters, void**) {
  CALLED();
  const Kernel* kernel = reinterpret_cast<Function*>(f)->kernel;
  if (kernel != nullptr && parameters != nullptr && state().capturing.count(stream) == 0)
    run(*kernel, parameters);
  return CUDA_SUCCESS;
}
