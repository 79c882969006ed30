#include "interpose/forward/user_objects.h"

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/notifications.h"
#include "interpose/forward/session_parts.h"

namespace olpager::forward {

void UserObjects::expect(uint64_t number, Destructor destructor) {
  const std::lock_guard lock(mutex_);
  of_.emplace(number, destructor);
}

bool UserObjects::take(uint64_t number, Destructor* taken) {
  const std::lock_guard lock(mutex_);
  const auto found = of_.find(number);
  if (found == of_.end()) return false;
  *taken = found->second;
  of_.erase(found);
  return true;
}

void userObjectGone(Session& session, uint64_t number) {
  UserObjects::Destructor gone{};
  if (!session.parts().whileThere()->user_objects.take(number, &gone)) return;
  session.nothingComes();
  notify([gone] { gone.function(gone.data); });
}

CUresult createUserObject(Session* session, CUuserObject* out, void* data, CUhostFn destroy,
                          unsigned references, unsigned flags) {
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Call call(Operation::kUserObjectCreate, session);
  const auto object = call.number<CUuserObject>();
  const auto number = reinterpret_cast<uint64_t>(object);
  call.value(references);
  call.value(flags);
  // Before it is made: where it can't be noted there is none.
  startNotifications();
  const auto there = session->parts().whileThere();
  there->user_objects.expect(number, {destroy, data});
  session->somethingComes();
  const CUresult result = call.sync();
  if (result == CUDA_SUCCESS) {
    *out = object;
  } else if (UserObjects::Destructor none{}; there->user_objects.take(number, &none)) {
    session->nothingComes();
  }
  return result;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuUserObjectCreate(CUuserObject* out, void* data, CUhostFn destroy,
                                       unsigned references, unsigned flags) {
  if (out == nullptr || destroy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return createUserObject(currentSession(), out, data, destroy, references, flags);
}

}  // extern "C"
