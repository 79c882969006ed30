#include "interpose/forward/crossings.h"

#include <memory>
#include <mutex>

#include "interpose/forward/call.h"
#include "interpose/forward/context.h"
#include "interpose/forward/couriers.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/session_parts.h"

namespace olpager::forward {
namespace {

// A place in a stream that `notice` tells of and that waits for `gate`, as far as they are not 0.
CUresult putGate(const StreamAt& at, uint32_t notice, uint32_t gate) {
  Call call(Operation::kGate, at.session);
  call.ofOurOwn();
  call.value(reinterpret_cast<uint64_t>(at.stream));
  call.value(static_cast<uint8_t>(at.per_thread));
  call.value(notice);
  call.value(gate);
  return call.oneWay(notice != 0);
}

}  // namespace

CUresult putNotice(const StreamAt& at, uint32_t notice) { return putGate(at, notice, 0); }

StreamAt streamAt(CUstream stream, bool per_thread) {
  return {Route().handle(stream).session(), stream, per_thread};
}

OwnStream::OwnStream(Session* session) {
  if (session == nullptr) return;
  if (const uint64_t number = contextIn(session); number != 0) {
    const auto idle = session->parts().contexts->with(
        number, [](const Context& context) { return context.idle_streams; });
    idle_ = idle;
    std::lock_guard lock(idle->mutex);
    if (!idle->all.empty()) {
      stream_ = idle->all.back();
      idle->all.pop_back();
      return;
    }
  }
  // As the generated encoder writes it.
  Call call(api::Symbol::kCuStreamCreate, session);
  call.value(static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  const auto made = call.number<CUstream>();
  if (call.oneWay() == CUDA_SUCCESS) stream_ = made;
}

OwnStream::~OwnStream() {
  if (stream_ == nullptr) return;
  const auto idle = idle_.lock();
  if (idle == nullptr) return;
  std::lock_guard lock(idle->mutex);
  idle->all.push_back(stream_);
}

CUresult waitAcross(const StreamAt& at, Session* other, CUevent event, unsigned flags) {
  const uint64_t context = contextIn(at.session);
  const uint32_t gate = at.session->functions().newGate();
  const auto own = std::make_shared<OwnStream>(other);
  if (own->stream() == nullptr) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  const uint32_t notice =
      other->functions().expectNotice([session = at.session, context, gate, own](CUresult status) {
        runByCourier([session, context, gate, own, status] {
          if (status != CUDA_SUCCESS) session->breakContext(context, status);
          session->openGate(gate);
        });
      });
  if (notice == 0) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  Call wait(api::Symbol::kCuStreamWaitEvent, other);
  wait.value(own->stream());
  wait.value(event);
  wait.value(flags);
  CUresult result = wait.oneWay();
  // The gate is there before it can be opened.
  if (result == CUDA_SUCCESS) result = putGate(at, 0, gate);
  if (result == CUDA_SUCCESS) result = putNotice({other, own->stream(), false}, notice);
  if (result == CUDA_SUCCESS) return result;
  other->functions().forgetNotice(notice);
  at.session->openGate(gate);
  return result;
}

}  // namespace olpager::forward
