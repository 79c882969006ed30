#include "interpose/forward/user_objects.h"

#include <mutex>
#include <unordered_map>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/notifications.h"

namespace olpager::forward {
namespace {

struct Destructor {
  CUhostFn function;
  void* data;
};
struct Objects {
  std::mutex mutex;
  std::unordered_map<uint64_t, Destructor> of;  // by number
};
Objects& objects() {
  static auto* const instance = new Objects;
  return *instance;
}

void expect(Session& session, uint64_t number, Destructor destructor) {
  startNotifications();
  {
    Objects& all = objects();
    const std::lock_guard lock(all.mutex);
    all.of.emplace(number, destructor);
  }
  session.somethingComes();
}

bool take(uint64_t number, Destructor* taken) {
  Objects& all = objects();
  const std::lock_guard lock(all.mutex);
  const auto found = all.of.find(number);
  if (found == all.of.end()) return false;
  *taken = found->second;
  all.of.erase(found);
  return true;
}

}  // namespace

void userObjectGone(Session& session, uint64_t number) {
  Destructor gone{};
  if (slotOf(number) != session.slot() || !take(number, &gone)) return;
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
  expect(*session, number, {destroy, data});
  const CUresult result = call.sync();
  if (result == CUDA_SUCCESS) {
    *out = object;
  } else if (Destructor none{}; take(number, &none)) {
    session->nothingComes();
  }
  return result;
}

void forgetUserObjects(unsigned slot) {
  Objects& all = objects();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.of, [&](const auto& one) { return slotOf(one.first) == slot; });
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
