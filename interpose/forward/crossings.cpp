#include "interpose/forward/crossings.h"

#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "interpose/forward/call.h"
#include "interpose/forward/couriers.h"

namespace olpager::forward {
namespace {

struct OwnStreams {
  std::mutex mutex;  // alone
  struct InSlot {
    std::vector<CUstream> idle;
    uint64_t gone = 0;  // contexts
  };
  std::array<InSlot, kMostSessions> slots;
};
OwnStreams& ownStreams() {
  static auto* instance = new OwnStreams;
  return *instance;
}

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

StreamAt streamAt(CUstream stream, bool per_thread) { return {Route().handle(stream).session(), stream, per_thread}; }

OwnStream::OwnStream(Session* session) : session_(session) {
  if (session == nullptr) return;
  OwnStreams& all = ownStreams();
  {
    std::lock_guard lock(all.mutex);
    auto& slot = all.slots[session->slot()];
    made_ = slot.gone;
    if (!slot.idle.empty()) {
      stream_ = slot.idle.back();
      slot.idle.pop_back();
      return;
    }
  }
  // As the generated encoder writes it.
  Call call(api::Symbol::kCuStreamCreate, session);
  call.value(static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  const auto made = call.number<CUstream>();
  if (call.oneWay() == CUDA_SUCCESS) stream_ = made;
}

// One that was made before a context went may be that context's: it is not used again.
OwnStream::~OwnStream() {
  if (stream_ == nullptr) return;
  OwnStreams& all = ownStreams();
  std::lock_guard lock(all.mutex);
  auto& slot = all.slots[session_->slot()];
  if (slot.gone == made_) slot.idle.push_back(stream_);
}

void forgetOwnStreams(unsigned slot) {
  OwnStreams& all = ownStreams();
  std::lock_guard lock(all.mutex);
  all.slots[slot].idle.clear();
  ++all.slots[slot].gone;
}

CUresult waitAcross(const StreamAt& at, Session* other, CUevent event, unsigned flags) {
  const uint64_t context = contextIn(at.session);
  const uint32_t gate = at.session->newGate();
  const auto own = std::make_shared<OwnStream>(other);
  if (own->stream() == nullptr) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  const uint32_t notice = other->expectNotice([session = at.session, context, gate, own](CUresult status) {
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
  if (result == CUDA_SUCCESS) result = putGate({other, own->stream(), false}, notice, 0);
  if (result == CUDA_SUCCESS) return result;
  other->forgetNotice(notice);
  at.session->openGate(gate);
  return result;
}

}  // namespace olpager::forward
