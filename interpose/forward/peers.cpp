// Peer access between two devices of two gpunodes: no access to each other's memory, but waits for
// each other's events, and copies. Within one gpunode its worker answers.
#include <algorithm>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/crossings.h"

namespace olpager::forward {
namespace {

bool ofTwoSessions(CUdevice one, CUdevice other) {
  Session *first = nullptr, *second = nullptr;
  CUdevice at_worker = 0;
  return severalSessions() && placeOf(one, &first, &at_worker) &&
         placeOf(other, &second, &at_worker) && first != second;
}

// The session of a context that is not of the current one's; null: of that.
Session* elsewhere(CUcontext context) {
  Session* const session = severalSessions() ? Route().handle(context).session() : nullptr;
  return session != existingSession() ? session : nullptr;
}

CUresult waitEvent(CUstream stream, CUevent event, unsigned flags, bool per_thread) {
  Session* const other =
      severalSessions() ? sessionOfHandle(reinterpret_cast<uint64_t>(event)) : nullptr;
  Session* const session = Route().handle(stream).session();
  if (other == nullptr || other == session)
    return per_thread ? ol_forward_generated_cuStreamWaitEvent_ptsz(stream, event, flags)
                      : ol_forward_generated_cuStreamWaitEvent(stream, event, flags);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (capturing() && captures(stream, per_thread))
    return refused("a captured wait for an event of another gpunode", false);
  return waitAcross({session, stream, per_thread}, other, event, flags);
}

// A number that the driver calls unique: each worker's driver counts its own.
CUresult unique(CUresult result, const Session* session, unsigned long long* id) {
  if (result == CUDA_SUCCESS && id != nullptr && session != nullptr)
    *id += static_cast<unsigned long long>(session->slot()) << 56;
  return result;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (!ofTwoSessions(device, peer))
    return ol_forward_generated_cuDeviceCanAccessPeer(can, device, peer);
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *can = 0;
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                            CUdevice from, CUdevice to) {
  if (!ofTwoSessions(from, to))
    return ol_forward_generated_cuDeviceGetP2PAttribute(value, attribute, from, to);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuDeviceGetP2PAtomicCapabilities(unsigned* capabilities,
                                                     const CUatomicOperation* operations,
                                                     unsigned count, CUdevice from, CUdevice to) {
  if (!ofTwoSessions(from, to))
    return ol_forward_generated_cuDeviceGetP2PAtomicCapabilities(capabilities, operations, count,
                                                                 from, to);
  if (capabilities == nullptr || operations == nullptr || count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::fill_n(capabilities, count, 0u);
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return elsewhere(peer) != nullptr ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
                                    : ol_forward_generated_cuCtxEnablePeerAccess(peer, flags);
}
CUresult ol_forward_cuCtxDisablePeerAccess(CUcontext peer) {
  return elsewhere(peer) != nullptr ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
                                    : ol_forward_generated_cuCtxDisablePeerAccess(peer);
}

CUresult ol_forward_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return waitEvent(stream, event, flags, false);
}
CUresult ol_forward_cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  return waitEvent(stream, event, flags, true);
}

CUresult ol_forward_cuCtxGetId(CUcontext context, unsigned long long* id) {
  return unique(ol_forward_generated_cuCtxGetId(context, id), Route().handle(context).session(),
                id);
}
CUresult ol_forward_cuStreamGetId(CUstream stream, unsigned long long* id) {
  return unique(ol_forward_generated_cuStreamGetId(stream, id), Route().handle(stream).session(),
                id);
}
CUresult ol_forward_cuStreamGetId_ptsz(CUstream stream, unsigned long long* id) {
  return unique(ol_forward_generated_cuStreamGetId_ptsz(stream, id),
                Route().handle(stream).session(), id);
}

}  // extern "C"
