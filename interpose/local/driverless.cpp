#include "interpose/local/driverless.h"

#include "interpose/api/error_names.h"
#include "interpose/api/local_functions.h"

namespace olpager::local {

namespace {

// The version is that of the headers that this was built with: a runtime of that version then goes
// on to cuInit, whose answer says what is wrong better than "driver too old".
CUresult driverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult getErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = api::errorName(error);
  return *name != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult getErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = api::errorText(error);
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Takes the place of functions with any parameters: the caller clears the stack, and nothing is
// read.
CUresult notInitialized() { return CUDA_ERROR_NOT_INITIALIZED; }

CUresult noExportTable(const void** table, const CUuuid* /*id*/) {
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

}  // namespace

void* driverlessFunction(api::Symbol symbol) {
  switch (symbol) {
    case api::Symbol::kCuInit:
    case api::Symbol::kCuGetProcAddress:
    case api::Symbol::kCuGetProcAddress_v2:
      return localFunction(symbol);
    case api::Symbol::kCuDriverGetVersion:
      return reinterpret_cast<void*>(&driverGetVersion);
    case api::Symbol::kCuGetErrorName:
      return reinterpret_cast<void*>(&getErrorName);
    case api::Symbol::kCuGetErrorString:
      return reinterpret_cast<void*>(&getErrorString);
    case api::Symbol::kCuGetExportTable:
      return reinterpret_cast<void*>(&noExportTable);
    default:
      return reinterpret_cast<void*>(&notInitialized);
  }
}

}  // namespace olpager::local
