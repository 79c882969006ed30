// Code of a view over several executors: what is of a module or a library that has variables is
// noted as having state (forward::GroupCode), whichever way the program comes by it. Addresses of
// variables that the program asks for.
#include <memory>
#include <span>
#include <utility>

#include "interpose/api/forward_functions.h"
#include "interpose/api/unified_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/group.h"
#include "interpose/forward/session.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/sessions.h"
#include "interpose/forward/variables.h"

namespace olpager::unified {
namespace {

using forward::VariableKind;

// `made` are of `owner`.
template <typename Made, typename Owner>
CUresult noted(CUresult result, std::span<const Made> made, Owner owner) {
  const forward::Session* const session = forward::sessionOfGroup();
  if (result != CUDA_SUCCESS || session == nullptr) return result;
  forward::Group& group = *session->group();
  const auto state = group.code().stateOf(reinterpret_cast<uint64_t>(owner));
  if (state == nullptr) return result;
  for (const Made one : made) group.code().noteState(reinterpret_cast<uint64_t>(one), state);
  return result;
}
template <typename Made, typename Owner>
CUresult noted(CUresult result, const Made* made, Owner owner) {
  return noted(result, std::span<const Made>(made, made != nullptr ? 1 : 0), owner);
}

void ownerGone(uint64_t owner) {
  if (const forward::Session* const session = forward::sessionOfGroup(); session != nullptr)
    session->group()->ownerGone(owner);
}

// All have it at one address, or else the program gets executor 0's, and whatever is sent to
// another one has its address there. A variable that is managed, or otherwise at one alone, binds
// the program (findVariable).
CUresult addressOf(VariableKind kind, uint64_t owner, const char* name, CUdeviceptr* address,
                   size_t* bytes) {
  forward::Session* const session = forward::sessionOfGroup();
  if (session == nullptr || session->group()->bound())
    return forward::findVariable(kind, owner, name, address, bytes);
  forward::Group& group = *session->group();
  // Checks if there is one at all: programs ask for what they need not have. Each executor is
  // asked: a question makes its driver place what the code has.
  CUresult result = CUDA_SUCCESS;
  for (unsigned executor = 0; executor < session->executors().size(); ++executor) {
    forward::Call call(forward::Operation::kVariable, session);
    call.only(executor);
    call.value(kind);
    call.value(owner);
    call.string(name);
    const CUresult its = call.sync();
    if (result == CUDA_SUCCESS) result = its;
  }
  if (result != CUDA_SUCCESS) return result;
  forward::CodeThere code{group.code().stateOf(owner), forward::currentContext()};
  if (code.state == nullptr) {
    auto state = std::make_shared<forward::CodeState>();
    state->kind = kind;
    state->owner = owner;
    code.state = std::move(state);
  }
  const auto shared = group.share(code, name);
  if (shared == nullptr) return forward::findVariable(kind, owner, name, address, bytes);
  session->parts().driver_memory->note(shared->address, shared->bytes);
  if (address != nullptr) *address = shared->address;
  if (bytes != nullptr) *bytes = shared->bytes;
  return result;
}

}  // namespace
}  // namespace olpager::unified

using namespace olpager::unified;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_unified_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return noted(ol_forward_cuModuleGetFunction(function, module, name), function, module);
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
CUresult ol_unified_cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                         const char* name) {
  return addressOf(VariableKind::kModule, reinterpret_cast<uint64_t>(module), name, address, bytes);
}
CUresult ol_unified_cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                       const char* name) {
  return addressOf(VariableKind::kLibrary, reinterpret_cast<uint64_t>(library), name, address,
                   bytes);
}
CUresult ol_unified_cuModuleUnload(CUmodule module) {
  ownerGone(reinterpret_cast<uint64_t>(module));
  return ol_forward_cuModuleUnload(module);
}
CUresult ol_unified_cuLibraryUnload(CUlibrary library) {
  ownerGone(reinterpret_cast<uint64_t>(library));
  return ol_forward_cuLibraryUnload(library);
}
CUresult ol_unified_cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return noted(ol_forward_cuLibraryGetModule(module, library), module, library);
}
CUresult ol_unified_cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return noted(ol_forward_cuKernelGetFunction(function, kernel), function, kernel);
}

}  // extern "C"
