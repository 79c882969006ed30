// By what other processes and devices reach pool memory.
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/foreign_maps.h"
#include "interpose/local/hook.h"
#include "interpose/local/ipc_exports.h"
#include "interpose/local/ipc_imports.h"
#include "interpose/local/memory_pools.h"
#include "interpose/local/pinned_users.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::Pool;

namespace {

bool mayExport(CUdeviceptr address) {
  const Pool* running = pool();
  return running != nullptr && running->contains(address) && !foreignMapped(address);
}

}  // namespace

// A driver's handle names a piece of VRAM, and an allocation here has none of its own: the handle
// is ours, and names this process and the allocation.
OLPAGER_HOOK(cuIpcGetMemHandle)(CUipcMemHandle* handle, CUdeviceptr address) {
  if (!mayExport(address)) return driver().cuIpcGetMemHandle(handle, address);
  // Natively only what cuMemAlloc gave has handles of this kind.
  olpager::pager::AllocationInfo info;
  if (handle == nullptr || !pool()->describe(address, &info) ||
      info.kind != olpager::pager::AllocationKind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return ipcExport(address, handle);
}

// Another process's memory: its user here may find addresses in it that its kernels here have put
// there.
namespace {
template <typename Open>
CUresult openForeign(CUdeviceptr* out, Open open) {
  const CUresult result = open();
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (result == CUDA_SUCCESS && pool() != nullptr &&
      driver().cuMemGetAddressRange_v2(&base, &bytes, *out) == CUDA_SUCCESS)
    pool()->addRoot(memoryContext(), *out, bytes, olpager::pager::RootKind::kDevice);
  return result;
}
}  // namespace

OLPAGER_HOOK(cuIpcOpenMemHandle_v2)(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  if (pool() != nullptr && ipcNamesImport(handle)) return ipcOpen(out, handle, flags);
  return openForeign(out, [&] { return driver().cuIpcOpenMemHandle_v2(out, handle, flags); });
}

OLPAGER_HOOK(cuIpcOpenMemHandle)(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  if (pool() != nullptr && ipcNamesImport(handle)) return ipcOpen(out, handle, flags);
  return openForeign(out, [&] { return driver().cuIpcOpenMemHandle(out, handle, flags); });
}

OLPAGER_HOOK(cuIpcCloseMemHandle)(CUdeviceptr address) {
  CUresult result = CUDA_SUCCESS;
  if (pool() != nullptr && ipcClose(address, &result)) return result;
  if (pool() != nullptr) pool()->removeRoot(address);
  return driver().cuIpcCloseMemHandle(address);
}

// The driver exports what is mapped in the range: it has to be there and to stay.
OLPAGER_HOOK(cuMemGetHandleForAddressRange)
(void* handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
 unsigned long long flags) {
  if (mayExport(address)) {
    const CUresult pinned = pinForLife(address);
    if (pinned != CUDA_SUCCESS) return pinned;
  }
  return driver().cuMemGetHandleForAddressRange(handle, address, bytes, type, flags);
}

// Memory that the pager serves from a pool lies among all memory of its device, and the other
// device gets access to that.
OLPAGER_HOOK(cuMemPoolSetAccess)
(CUmemoryPool memory_pool, const CUmemAccessDesc* descriptors, size_t count) {
  const CUresult result = driver().cuMemPoolSetAccess(memory_pool, descriptors, count);
  Pool* const running = pool();
  CUdevice owner = 0;
  if (result != CUDA_SUCCESS || running == nullptr || !poolDevice(memory_pool, &owner))
    return result;
  RelaxedCapture relaxed;
  for (size_t i = 0; i < count; ++i) {
    const CUmemAccessDesc& given = descriptors[i];
    const bool to_device =
        given.location.type == CU_MEM_LOCATION_TYPE_DEVICE && given.location.id != owner;
    if (!to_device || given.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    if (const CUresult mapped = running->peerEnabled(given.location.id, owner);
        mapped != CUDA_SUCCESS)
      return mapped;
  }
  return CUDA_SUCCESS;
}

OLPAGER_HOOK(cuMemPoolExportPointer)(CUmemPoolPtrExportData* out, CUdeviceptr address) {
  // Pools whose memory can be exported are the driver's: what comes from the others can't be,
  // natively neither.
  if (mayExport(address)) return CUDA_ERROR_INVALID_VALUE;
  return driver().cuMemPoolExportPointer(out, address);
}
