#include "interpose/forward/crossings.h"

#include <map>
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
  struct InContext {
    std::vector<CUstream> idle;
    uint64_t gone = 0;  // how often it went: a primary one comes again
  };
  std::map<uint64_t, InContext> contexts;
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

StreamAt streamAt(CUstream stream, bool per_thread) {
  return {Route().handle(stream).session(), stream, per_thread};
}

OwnStream::OwnStream(Session* session) : context_(contextIn(session)) {
  if (session == nullptr) return;
  OwnStreams& all = ownStreams();
  {
    std::lock_guard lock(all.mutex);
    auto& own = all.contexts[context_];
    made_ = own.gone;
    if (!own.idle.empty()) {
      stream_ = own.idle.back();
      own.idle.pop_back();
      return;
    }
  }
  // As the generated encoder writes it.
  Call call(api::Symbol::kCuStreamCreate, session);
  call.value(static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  const auto made = call.number<CUstream>();
  if (call.oneWay() == CUDA_SUCCESS) stream_ = made;
}

// One whose context went meanwhile went with it.
OwnStream::~OwnStream() {
  if (stream_ == nullptr) return;
  OwnStreams& all = ownStreams();
  std::lock_guard lock(all.mutex);
  auto& own = all.contexts[context_];
  if (context_ != 0 && own.gone == made_) own.idle.push_back(stream_);
}

void forgetOwnStreams(uint64_t context) {
  OwnStreams& all = ownStreams();
  std::lock_guard lock(all.mutex);
  const auto found = all.contexts.find(context);
  if (found == all.contexts.end()) return;
  found->second.idle.clear();
  ++found->second.gone;
}

CUresult waitAcross(const StreamAt& at, Session* other, CUevent event, unsigned flags) {
  const uint64_t context = contextIn(at.session);
  const uint32_t gate = at.session->newGate();
  const auto own = std::make_shared<OwnStream>(other);
  if (own->stream() == nullptr) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  const uint32_t notice =
      other->expectNotice([session = at.session, context, gate, own](CUresult status) {
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
