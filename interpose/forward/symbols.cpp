#include "interpose/forward/symbols.h"

#include <algorithm>

#include "base/log.h"
#include "interpose/api/error_names.h"
#include "interpose/api/forward_functions.h"
#include "interpose/api/proc_address.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/driver_tables.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/program.h"

namespace olpager::forward {
namespace {

// The newest version whose functions the specification knows: what a program is told even where the
// gpunode has a newer one.
constexpr int kKnownVersion = 13000;

interpose::PrivateTables& privateTables() { return program().parts().driver_tables->tables; }

CUresult answer(void* found, CUdriverProcAddressQueryResult why, void** function,
                CUdriverProcAddressQueryResult* status) {
  *function = found;
  if (status != nullptr) *status = why;
  return CUDA_SUCCESS;
}

}  // namespace

void setExported(ExportedSymbol exported) {
  program().exported.store(exported, std::memory_order_release);
}

void* resolve(api::Symbol symbol) {
  if (!api::isDeclared(symbol)) return nullptr;
  // cuInit says why there is no session; until then everything has a function.
  for (const Session* const session : sessions()) {
    if (!session->executor().offers(static_cast<size_t>(symbol))) return nullptr;
  }
  const View& view = program().parts().connecting->view;  // set before anything is resolved
  void* const its = view.function != nullptr ? view.function(symbol) : nullptr;
  return its != nullptr ? its : forwardFunction(symbol);
}

CUresult getProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int driver_version = 0;
  (void)ol_forward_cuDriverGetVersion(&driver_version);
  if (!api::isProcAddressQuestion(version, flags, driver_version)) {
    *function = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUdriverProcAddressQueryResult why{};
  const auto symbol = api::lookupProcAddress(name, version, flags, &why);
  if (!symbol) return answer(nullptr, why, function, status);
  void* found = resolve(*symbol);
  const auto exported = program().exported.load(std::memory_order_acquire);
  if (void* const ours = found != nullptr && exported != nullptr ? exported(*symbol) : nullptr;
      ours != nullptr)
    found = ours;
  return answer(found, found != nullptr ? why : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, function,
                status);
}

void contextGone(CUcontext context) { privateTables().contextGone(context); }

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto all = sessions();
  // Without a session a runtime is to come as far as cuInit, which says what is wrong.
  *version = all.empty() ? CUDA_VERSION : kKnownVersion;
  for (const Session* const session : all)
    *version = std::min(*version, session->executor().description().driver_version);
  return CUDA_SUCCESS;
}

// A program that reports a failure asks for its name, also where no session came to be or it is
// lost. The gpunode's driver may know more codes than we.
CUresult ol_forward_cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = olpager::api::errorName(error);
  return *name != nullptr ? CUDA_SUCCESS : ol_forward_generated_cuGetErrorName(error, name);
}

CUresult ol_forward_cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = olpager::api::errorText(error);
  return *text != nullptr ? CUDA_SUCCESS : ol_forward_generated_cuGetErrorString(error, text);
}

CUresult ol_forward_cuGetProcAddress_v2(const char* name, void** function, int version,
                                        cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return getProcAddress(name, function, version, flags, status);
}

// The first form reports a missing name by its result.
CUresult ol_forward_cuGetProcAddress(const char* name, void** function, int version,
                                     cuuint64_t flags) {
  CUdriverProcAddressQueryResult status{};
  const CUresult result = getProcAddress(name, function, version, flags, &status);
  if (result != CUDA_SUCCESS) return result;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult ol_forward_cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = privateTables().find(id, table);
  if (result != CUDA_SUCCESS && olpager::interpose::isProfilers(*id))
    olpager::base::warnOnce(
        "CUPTI",
        "the program uses CUPTI (a profiler): its kernels run at the gpunode, where CUPTI does not "
        "see them; profile the program on a machine with a GPU");
  return result;
}

}  // extern "C"
