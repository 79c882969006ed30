#include "interpose/forward/libraries.h"

#include <string>
#include <utility>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/known_kernels.h"
#include "interpose/forward/program.h"
#include "interpose/forward/variables.h"

namespace olpager::forward {
namespace {

CommonKernels& kernels() { return *program().parts().common_kernels; }

uint64_t newCommonNumber() { return program().parts().common_numbers.fetch_add(1); }

// In all sessions; what one that is there says counts, an error before a success.
template <typename Make>
CUresult everywhere(Make make) {
  CUresult error = CUDA_SUCCESS;
  bool any = false;
  for (Session* const session : existingSessions()) {
    const CUresult result = make(session);
    any = any || result == CUDA_SUCCESS;
    if (result != CUDA_SUCCESS && (error == CUDA_SUCCESS || error == CUDA_ERROR_DEVICE_UNAVAILABLE))
      error = result;
  }
  return any && error == CUDA_ERROR_DEVICE_UNAVAILABLE ? CUDA_SUCCESS : error;
}

CUresult unload(CUlibrary library, Session* session) {
  Call call(api::Symbol::kCuLibraryUnload, session);
  call.value(library);
  return call.oneWay();
}

CUresult kernelOf(CUlibrary library, const char* name, CUkernel* kernel) {
  CommonKernels& all = kernels();
  const std::pair key(reinterpret_cast<uint64_t>(library), std::string(name));
  {
    std::lock_guard lock(all.mutex);
    if (const auto found = all.numbers.find(key); found != all.numbers.end()) {
      *kernel = reinterpret_cast<CUkernel>(found->second);
      return CUDA_SUCCESS;
    }
  }
  const uint64_t number = newCommonNumber();
  const CUresult result = everywhere([&](Session* session) {
    Call call(Operation::kNameKernel, session);
    call.value(number);
    call.value(library);
    call.string(name);
    return call.sync();
  });
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(all.mutex);
  *kernel = reinterpret_cast<CUkernel>(all.numbers.try_emplace(key, number).first->second);
  return result;
}

}  // namespace

CUresult loadEverywhere(const std::function<CUresult(Session* session, uint64_t number)>& load,
                        void** library) {
  const uint64_t number = newCommonNumber();
  const CUresult result = everywhere([&](Session* session) { return load(session, number); });
  if (result == CUDA_SUCCESS) {
    *library = reinterpret_cast<void*>(number);
  } else {
    for (Session* const session : existingSessions())
      (void)unload(reinterpret_cast<CUlibrary>(number), session);
  }
  return result;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = severalSessions()
                              ? kernelOf(library, name, kernel)
                              : ol_forward_generated_cuLibraryGetKernel(kernel, library, name);
  if (result == CUDA_SUCCESS)
    program().parts().known_kernels->named(reinterpret_cast<uint64_t>(*kernel),
                                           reinterpret_cast<uint64_t>(library), name);
  return result;
}

// One session names them, all have them.
CUresult ol_forward_cuLibraryEnumerateKernels(CUkernel* into, unsigned count, CUlibrary library) {
  const CUresult result = ol_forward_generated_cuLibraryEnumerateKernels(into, count, library);
  if (result != CUDA_SUCCESS || !severalSessions() || into == nullptr) return result;
  for (unsigned i = 0; i < count && into[i] != nullptr; ++i) {
    const char* name = nullptr;
    if (const CUresult error = ol_forward_generated_cuKernelGetName(&name, into[i]);
        error != CUDA_SUCCESS)
      return error;
    if (const CUresult error = kernelOf(library, name, &into[i]); error != CUDA_SUCCESS)
      return error;
  }
  return result;
}

CUresult ol_forward_cuLibraryUnload(CUlibrary library) {
  variablesGone(reinterpret_cast<uint64_t>(library));
  if (!severalSessions()) return ol_forward_generated_cuLibraryUnload(library);
  {
    CommonKernels& all = kernels();
    std::lock_guard lock(all.mutex);
    std::erase_if(all.numbers, [&](const auto& one) {
      return one.first.first == reinterpret_cast<uint64_t>(library);
    });
  }
  return everywhere([&](Session* session) { return unload(library, session); });
}

}  // extern "C"
