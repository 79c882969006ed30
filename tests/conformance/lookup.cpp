// Symbols by name, version and per-thread-stream flag; private tables; the loading mode.
#include <dlfcn.h>

#include "record.h"

namespace conformance {

void sectionLookup() {
  struct Case {
    const char* name;
    int version;
    cuuint64_t flags;
  };
  const Case cases[] = {
      {"", 0, 0},
      {"cuInit", 2000, 0},
      {"cuGetProcAddress", 11030, 0},
      {"cuGetProcAddress", 12000, 0},
      {"cuDeviceTotalMem", 2000, 0},
      {"cuDeviceTotalMem", 3020, 0},
      {"cuDeviceTotalMem", 13000, 0},
      {"cuDeviceTotalMem_v2", 13000, 0},
      {"cuCtxCreate", 2000, 0},
      {"cuCtxCreate", 3020, 0},
      {"cuCtxCreate", 11040, 0},
      {"cuCtxCreate", 12050, 0},
      {"cuCtxCreate", 13000, 0},
      {"cuCtxGetDevice", 2000, 0},
      {"cuCtxGetDevice", 13000, 0},
      {"cuCtxSynchronize", 2000, 0},
      {"cuCtxSynchronize", 13000, 0},
      {"cuMemAlloc", 2000, 0},
      {"cuMemAlloc", 3020, 0},
      {"cuMemAlloc", 13000, 2},
      {"cuMemFree", 3020, 0},
      {"cuMemGetInfo", 3020, 0},
      {"cuMemcpyHtoD", 3020, 0},
      {"cuMemcpyHtoD", 3020, 2},
      {"cuMemcpyHtoD", 7000, 0},
      {"cuMemcpyHtoD", 7000, 1},
      {"cuMemcpyHtoD", 7000, 2},
      {"cuMemcpyHtoDAsync", 7000, 0},
      {"cuMemcpyHtoDAsync", 7000, 2},
      {"cuMemcpyAsync", 7000, 0},
      {"cuMemcpyAsync", 7000, 2},
      {"cuMemsetD8", 7000, 2},
      {"cuMemsetD8Async", 7000, 2},
      {"cuLaunchKernel", 4000, 0},
      {"cuLaunchKernel", 4000, 2},
      {"cuLaunchKernel", 7000, 0},
      {"cuLaunchKernel", 7000, 1},
      {"cuLaunchKernel", 7000, 2},
      {"cuLaunchKernel", 7000, 3},
      {"cuLaunchKernel", 7000, 4},
      {"cuLaunchKernelEx", 11060, 2},
      {"cuLaunchKernelEx", 11050, 2},
      {"cuStreamBeginCapture", 10000, 0},
      {"cuStreamBeginCapture", 10010, 0},
      {"cuStreamBeginCapture", 10010, 2},
      {"cuStreamGetCaptureInfo", 10010, 2},
      {"cuStreamGetCaptureInfo", 11030, 2},
      {"cuStreamGetCaptureInfo", 12030, 2},
      {"cuGraphInstantiate", 10000, 0},
      {"cuGraphInstantiate", 11000, 0},
      {"cuGraphInstantiate", 12000, 0},
      {"cuGraphInstantiateWithFlags", 11040, 0},
      {"cuGraphExecUpdate", 10020, 0},
      {"cuGraphExecUpdate", 12000, 0},
      {"cuGraphAddKernelNode", 10000, 0},
      {"cuGraphAddKernelNode", 12000, 0},
      {"cuMemPrefetchAsync", 8000, 0},
      {"cuMemPrefetchAsync", 12020, 0},
      {"cuMemPrefetchAsync", 12020, 2},
      {"cuMemcpyBatchAsync", 12080, 2},
      {"cuMemcpyBatchAsync", 13000, 2},
      {"cuEventElapsedTime", 2000, 0},
      {"cuEventElapsedTime", 12080, 0},
      {"cuEventRecord", 2000, 2},
      {"cuEventRecord", 7000, 2},
      {"cuDeviceGetUuid", 9020, 0},
      {"cuDeviceGetUuid", 11040, 0},
      {"cuStreamWaitValue32", 8000, 0},
      {"cuStreamWaitValue32", 11070, 0},
      {"cuStreamWaitValue32", 11070, 2},
      {"cuMemAllocAsync", 11020, 0},
      {"cuMemAllocAsync", 11020, 2},
      {"cuModuleGetGlobal", 3020, 0},
      {"cuMemcpy2DUnaligned", 7000, 2},
      {"cuCtxDestroy", 4000, 0},
      {"cuIpcOpenMemHandle", 4010, 0},
      {"cuIpcOpenMemHandle", 11000, 0},
      {"cuMemHostRegister", 4000, 0},
      {"cuMemHostRegister", 6050, 0},
      {"cuNoSuchFunction", 13000, 0},
      {"cuLaunchKernel", 1000, 0},
      {"cuLaunchKernel", 99000, 0},
      {"culaunchkernel", 13000, 0},
      {"cuLaunchKernel_ptsz", 13000, 0},
      {"cuGetExportTable", 3000, 0},
      {"cuGLGetDevices", 6050, 0},
  };
  record("lookup.init", api.cuInit(0));
  for (const Case& query : cases) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    const CUresult rc =
        api.cuGetProcAddress_v2(query.name, &found, query.version, query.flags, &status);
    const std::string key = std::string("lookup.") + (query.name[0] == 0 ? "empty" : query.name) +
                            "." + std::to_string(query.version) + ".flags_" +
                            std::to_string(query.flags);
    std::string value = text(rc) + " status " + std::to_string(status);
    if (found != nullptr) {
      // Which exported symbol is it?
      std::string symbol = "no exported symbol";
      for (const char* version : {"", "_v2", "_v3", "_v4"}) {
        for (const char* per_thread : {"", "_ptds", "_ptsz"}) {
          const std::string candidate = std::string(query.name) + version + per_thread;
          if (dlsym(api.library, candidate.c_str()) == found) symbol = candidate;
        }
      }
      // cuGraphInstantiate of 12.0 is cuGraphInstantiateWithFlags.
      if (dlsym(api.library, "cuGraphInstantiateWithFlags") == found)
        symbol = "cuGraphInstantiateWithFlags";
      value += " " + symbol;
    }
    record(key, value);
  }
  void* found = nullptr;
  record("lookup.null_status", api.cuGetProcAddress_v2("cuInit", &found, 13000, 0, nullptr));
  record("lookup.null_status_absent",
         api.cuGetProcAddress_v2("cuNoSuchFunction", &found, 13000, 0, nullptr));
  CUuuid unknown{};
  const void* table = nullptr;
  record("lookup.export_table_unknown", api.cuGetExportTable(&table, &unknown));
  CUmoduleLoadingMode mode{};
  const CUresult rc = api.cuModuleGetLoadingMode(&mode);
  recordNumberOr("lookup.loading_mode", rc, mode);
}

}  // namespace conformance
