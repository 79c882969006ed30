// Code of a view over several executors: what is of a module or a library that has variables is
// noted as having state (forward::Group::noteState), whichever way the program comes by it.
#include <span>

#include "interpose/api/forward_functions.h"
#include "interpose/api/unified_functions.h"
#include "interpose/forward/group.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"

namespace olpager::unified {
namespace {

// `made` are of `owner`.
template <typename Made, typename Owner>
CUresult noted(CUresult result, std::span<const Made> made, Owner owner) {
  const forward::Session* const session = forward::sessionOfGroup();
  if (result != CUDA_SUCCESS || session == nullptr) return result;
  forward::Group& group = *session->group();
  const auto state = group.stateOf(reinterpret_cast<uint64_t>(owner));
  if (state == nullptr) return result;
  for (const Made one : made) group.noteState(reinterpret_cast<uint64_t>(one), state);
  return result;
}
template <typename Made, typename Owner>
CUresult noted(CUresult result, const Made* made, Owner owner) {
  return noted(result, std::span<const Made>(made, made != nullptr ? 1 : 0), owner);
}

void dropState(uint64_t owner) {
  if (const forward::Session* const session = forward::sessionOfGroup(); session != nullptr)
    session->group()->dropState(owner);
}

}  // namespace
}  // namespace olpager::unified

using namespace olpager::unified;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_unified_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return noted(ol_forward_generated_cuModuleGetFunction(function, module, name), function, module);
}
CUresult ol_unified_cuModuleEnumerateFunctions(CUfunction* functions, unsigned count,
                                               CUmodule module) {
  return noted(ol_forward_generated_cuModuleEnumerateFunctions(functions, count, module),
               std::span<const CUfunction>(functions, functions != nullptr ? count : 0), module);
}
CUresult ol_unified_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return noted(ol_forward_cuLibraryGetKernel(kernel, library, name), kernel, library);
}
CUresult ol_unified_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count,
                                              CUlibrary library) {
  return noted(ol_forward_cuLibraryEnumerateKernels(kernels, count, library),
               std::span<const CUkernel>(kernels, kernels != nullptr ? count : 0), library);
}
CUresult ol_unified_cuModuleUnload(CUmodule module) {
  dropState(reinterpret_cast<uint64_t>(module));
  return ol_forward_cuModuleUnload(module);
}
CUresult ol_unified_cuLibraryUnload(CUlibrary library) {
  dropState(reinterpret_cast<uint64_t>(library));
  return ol_forward_cuLibraryUnload(library);
}
CUresult ol_unified_cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return noted(ol_forward_cuLibraryGetModule(module, library), module, library);
}
CUresult ol_unified_cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return noted(ol_forward_cuKernelGetFunction(function, kernel), function, kernel);
}

}  // extern "C"
