#include "gpunode/simgpu/api.h"

#include <optional>

#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/export_tables.h"
#include "gpunode/simgpu/symbol_addresses.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/error_names.h"
#include "interpose/api/proc_address.h"

using olpager::simgpu::Driver;

namespace {

constexpr int kDriverVersion = 13000;

CUresult procAddress(const char* symbol, void** function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  if (!olpager::api::isProcAddressQuestion(version, flags, kDriverVersion))
    return CUDA_ERROR_INVALID_VALUE;
  CUdriverProcAddressQueryResult why = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (const auto found = olpager::api::lookupProcAddress(symbol, version, flags, &why)) {
    *function = olpager::simgpu::symbolAddress(*found);
    why = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  if (status != nullptr) {
    *status = why;
    return CUDA_SUCCESS;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

CUresult CUDAAPI cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Driver::init();
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = olpager::api::errorName(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = olpager::api::errorText(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  const CUresult result = procAddress(symbol, function, version, flags, status);
  return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;  // the null pointer says so
}

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function, int version,
                                  cuuint64_t flags) {
  return procAddress(symbol, function, version, flags, nullptr);
}

CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return olpager::simgpu::privateTables().find(id, table);
}

CUresult CUDAAPI cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
  return CUDA_ERROR_NOT_SUPPORTED;  // as drivers answer since 11.0
}

CUresult CUDAAPI cuProfilerStart(void) { return olpager::simgpu::requireInit(); }
CUresult CUDAAPI cuProfilerStop(void) { return olpager::simgpu::requireInit(); }

extern "C" CUresult olsim_not_supported(olpager::api::Symbol symbol) {
  return olpager::simgpu::notSupported(olpager::api::symbolName(symbol));
}
