// User objects: the driver counts who holds one; its destructor here tells the client, whose own it
// stands for. Nobody waits for that.
#include <memory>
#include <span>

#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

struct Object {
  Worker* worker;
  uint64_t number;
};

// The object's handle is good until now: several references may be given back by as many calls, and
// graphs hold some.
void CUDA_CB destroyed(void* data) {
  const std::unique_ptr<const Object> object(static_cast<const Object*>(data));
  object->worker->handles().gone(object->number);
  object->worker->tell(forward::Answer::kUserObjectGone, 0, CUDA_SUCCESS,
                       std::as_bytes(std::span(&object->number, 1)), true);
}

}  // namespace

CUresult userObjectCreate(Invocation& in) {
  const auto number = in.value<uint64_t>();
  const auto references = in.value<unsigned>();
  const auto flags = in.value<unsigned>();
  if (!in.ok()) return in.refusal();
  if (in.driver().cuUserObjectCreate == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  auto object = std::make_unique<Object>(Object{&in.worker(), number});
  CUuserObject made = nullptr;
  const CUresult result =
      in.driver().cuUserObjectCreate(&made, object.get(), destroyed, references, flags);
  if (result != CUDA_SUCCESS) return result;
  (void)object.release();  // the driver's, until it calls the destructor
  if (in.worker().handles().bind(number, HandleKind::kUserObject, bitsOf(made))) return result;
  // No number of a client's own, or one that means something already. The object that was made goes
  // with the session.
  in.arguments().fail();
  return in.refusal();
}

}  // namespace olpager::gpunode
