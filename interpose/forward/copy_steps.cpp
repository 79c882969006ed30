#include "interpose/forward/copy_steps.h"

#include <algorithm>

#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/registered.h"
#include "interpose/forward/stand_ins.h"

namespace olpager::forward {

CopyHead headOf(const Where& where) {
  CopyHead head;
  head.stream = reinterpret_cast<uint64_t>(where.stream);
  head.per_thread = where.per_thread ? 1 : 0;
  head.in_order = where.async ? 1 : 0;
  return head;
}

bool isCaptured(const Where& where) {
  return where.async && capturing() && captures(where.stream, where.per_thread);
}

CUresult captureSide(const Where& where, uint64_t near, uint64_t bytes, uint64_t* there) {
  if (const CUresult error = pinnedThere(near, bytes, there); error != CUDA_SUCCESS) return error;
  if (*there != 0) {
    noteNamed(where.session, *there);
    return CUDA_SUCCESS;
  }
  StandIns needed;
  if (const CUresult error = standIn(where.session, near, bytes, needed, there);
      error != CUDA_SUCCESS)
    return error;
  return graphNeeds(where.session, capturedGraph(where.stream, where.per_thread), needed);
}

CUresult copyShared(Operation operation, const CopyHead& head, const Where& where) {
  Call call(operation, where.session);
  call.copy(head);
  if (where.async) return call.oneWay(head.bytes >= kBulkBytes);
  call.mayWait();
  return call.sync();
}

CUresult awaitStream(const Where& where) {
  Call wait(Operation::kSynchronizeDefault, where.session);
  wait.copy(headOf(where));
  wait.mayWait();
  wait.ofOurOwn();
  return wait.sync();
}

CUresult awaitFunctions(const Where& where) {
  return olpager::forward::awaitFunctions(where.session, where.stream, where.per_thread);
}

CUresult awaitManaged(const Where& where, CUdeviceptr to, CUdeviceptr from) {
  Group* const group = where.async ? nullptr : where.session->group();
  return group != nullptr && (group->managedAt(to) || group->managedAt(from)) ? awaitStream(where)
                                                                              : CUDA_SUCCESS;
}

bool isAtWorker(const void* near) {
  return sessionOfRange(reinterpret_cast<uint64_t>(near)) != nullptr;
}

CUresult awaitFunctions(Session* session, CUstream stream, bool per_thread) {
  const auto all = existingSessions();
  if (std::none_of(all.begin(), all.end(),
                   [](const Session* one) { return one->functions().outstanding(); }))
    return CUDA_SUCCESS;
  return awaitStream({stream, per_thread, true, session});
}

}  // namespace olpager::forward
