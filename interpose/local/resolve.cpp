// Resolves a name of libcuda: ours where local mode has a function, else the driver's own; by the
// exported stubs' first call (olpager_resolve_symbol) and by cuGetProcAddress, with the same
// answers.
#include "interpose/local/resolve.h"

#include <dlfcn.h>

#include <exception>

#include "base/log.h"
#include "interpose/api/local_functions.h"
#include "interpose/api/proc_address.h"
#include "interpose/forward/symbols.h"
#include "interpose/local/dlopen_hook.h"
#include "interpose/local/driverless.h"
#include "interpose/local/hook.h"
#include "interpose/local/local_runtime.h"
#include "interpose/local/own_file.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

// The newest version whose signatures the specification knows.
constexpr int kKnownVersion = 13000;

CUresult askDriver(const char* name, void** function, int version, cuuint64_t flags,
                   CUdriverProcAddressQueryResult* status) {
  *function = nullptr;
  if (driver().cuGetProcAddress_v2 == nullptr) return CUDA_ERROR_NOT_FOUND;
  return driver().cuGetProcAddress_v2(name, function, version, flags, status);
}

// A driver newer than the specification may give a newer form of a function, with parameters that
// are not known here.
bool isUnknownForm(const char* name, const void* given, int version, cuuint64_t flags) {
  if (version <= kKnownVersion) return false;
  void* known = nullptr;
  return askDriver(name, &known, kKnownVersion, flags, nullptr) != CUDA_SUCCESS || known != given;
}

// Our export under the name: the address that dlsym gives, and that a function keeps.
void* exported(api::Symbol symbol) {
  static void* const self = nextDlopen()(ownFile().c_str(), RTLD_NOW | RTLD_NOLOAD);
  return self != nullptr ? dlsym(self, api::symbolName(symbol)) : nullptr;
}

bool isForwarded() {
  if (forwarded()) forward::setExported(exported);
  return forwarded();
}

CUresult answer(void* found, CUdriverProcAddressQueryResult why, void** function,
                CUdriverProcAddressQueryResult* status) {
  *function = found;
  if (status != nullptr) *status = why;
  return CUDA_SUCCESS;
}

}  // namespace

void* resolve(api::Symbol symbol) {
  if (!ensureDriver()) return isForwarded() ? forward::resolve(symbol) : driverlessFunction(symbol);
  void* native = driverSymbol(api::symbolName(symbol));
  // A function that the driver lacks is lacking here too, or ours would be promising what it can't
  // do.
  if (native == nullptr) return nullptr;
  if (void* own = localFunction(symbol); own != nullptr) return own;
  void* held = heldFunction(symbol);
  return held != nullptr ? held : native;
}

CUresult getProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ensureDriver() && isForwarded())
    return forward::getProcAddress(name, function, version, flags, status);
  CUdriverProcAddressQueryResult why{};
  const std::optional<api::Symbol> symbol = api::lookupProcAddress(name, version, flags, &why);
  if (!ensureDriver())
    return answer(symbol ? driverlessFunction(*symbol) : nullptr, why, function, status);
  // The driver says what there is and what an answer looks like; the code behind it is ours.
  const CUresult result = askDriver(name, function, version, flags, status);
  if (result != CUDA_SUCCESS || *function == nullptr || !symbol) return result;
  if (isUnknownForm(name, *function, version, flags)) {
    if (localFunction(*symbol) == nullptr) return result;
    base::warnOnce(name,
                   "the program asks for %s of CUDA %d.%d, which this version of olpager does not "
                   "know: refused",
                   name, version / 1000, version % 1000 / 10);
    return answer(nullptr, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, function, status);
  }
  if (void* ours = exported(*symbol)) {
    *function = ours;
  } else if (void* own = localFunction(*symbol)) {
    *function = own;  // our own file can't be named any more
  }
  return CUDA_SUCCESS;
}

}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

extern "C" __attribute__((visibility("hidden"))) void* olpager_resolve_symbol(unsigned index) {
  const auto symbol = static_cast<olpager::api::Symbol>(index);
  try {
    return resolve(symbol);
  } catch (const std::exception& error) {
    (void)failed(olpager::api::symbolName(symbol), error);
    return nullptr;  // asked again by the next call
  }
}

OLPAGER_HOOK(cuInit)(unsigned int flags) { return initialize(flags); }

OLPAGER_HOOK(cuGetProcAddress_v2)
(const char* name, void** function, int version, cuuint64_t flags,
 CUdriverProcAddressQueryResult* status) {
  return getProcAddress(name, function, version, flags, status);
}

// The first form reports a missing name by its result.
OLPAGER_HOOK(cuGetProcAddress)(const char* name, void** function, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status{};
  const CUresult result = getProcAddress(name, function, version, flags, &status);
  if (result != CUDA_SUCCESS) return result;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// Local mode leaves the driver's private tables as they are: they allocate nothing that a program
// could name.
OLPAGER_HOOK(cuGetExportTable)(const void** table, const CUuuid* id) {
  if (driver().cuGetExportTable == nullptr) return CUDA_ERROR_NOT_FOUND;
  return driver().cuGetExportTable(table, id);
}
