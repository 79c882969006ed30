// Memory of cuMemCreate that other programs, or this one, get by a file descriptor: between
// programs of one gpunode, of one key.
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/export_descriptors.h"

namespace olpager::forward {
namespace {

// True for a type that is not there: names of fabrics and of another system.
bool isOtherType(CUmemAllocationHandleType type) {
  return type == CU_MEM_HANDLE_TYPE_WIN32 || type == CU_MEM_HANDLE_TYPE_WIN32_KMT ||
         type == CU_MEM_HANDLE_TYPE_FABRIC;
}

CUresult exportMemory(void* out, CUmemGenericAllocationHandle handle,
                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (isOtherType(type))
    return refused("cuMemExportToShareableHandle to something else than a descriptor", true);
  if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Session* const session = Route().handle(handle).session();
  Call call(Operation::kExportMemory, session);
  call.handle(handle);
  const CUresult result = call.sync();
  if (result == CUDA_ERROR_NOT_SUPPORTED)
    base::warnOnce("cuMemExportToShareableHandle",
                   "cuMemExportToShareableHandle: memory that the gpunode's pager moves can't be "
                   "exported: exportable "
                   "memory is the pager's under "
                   "OL_EXPORTABLE=pager (here, or at the gpunode; olrun --exportable driver says "
                   "otherwise) and where "
                   "VRAM has no room for it");
  if (!call.answered()) return result;
  const auto token = call.reply().value<ExportToken>();
  const int descriptor = exportDescriptor(session, token);
  if (descriptor < 0) {
    base::logError("cuMemExportToShareableHandle: no descriptor for it: %s", strerror(errno));
    session->exportGone(token.number);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(out) = descriptor;
  return result;
}

CUresult importFrom(Session* session, const ExportToken& token, CUmemGenericAllocationHandle* out) {
  Call call(Operation::kImportMemory, session);
  call.value(token);
  call.mayWait();  // for the other worker
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  *out = call.takeHandle<CUmemGenericAllocationHandle>();
  return call.taken(result);
}

// Only the gpunodes know on which of them it is.
CUresult importMemory(CUmemGenericAllocationHandle* out, void* os_handle,
                      CUmemAllocationHandleType type) {
  if (isOtherType(type))
    return refused("cuMemImportFromShareableHandle of something else than a descriptor", true);
  if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  Session* const first = currentSession();
  if (first == nullptr || !first->initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  ExportToken token;
  if (!tokenIn(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), &token)) {
    base::logWarn(
        "cuMemImportFromShareableHandle: the descriptor is none that a program with a gpunode has "
        "exported");
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = importFrom(first, token, out);
  for (Session* const session : existingSessions()) {
    if (result != CUDA_ERROR_INVALID_VALUE) break;
    if (session != first) result = importFrom(session, token, out);
  }
  if (result == CUDA_ERROR_INVALID_VALUE)
    base::logWarn(
        "cuMemImportFromShareableHandle: the program that exported the memory has ended, or is on "
        "another gpunode, or "
        "comes with another key; the gpunode's log says which");
  return result;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                                 CUmemAllocationHandleType type,
                                                 unsigned long long flags) {
  return exportMemory(out, handle, type, flags);
}

CUresult ol_forward_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out,
                                                   void* os_handle,
                                                   CUmemAllocationHandleType type) {
  return importMemory(out, os_handle, type);
}

}  // extern "C"
