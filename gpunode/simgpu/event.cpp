#include "gpunode/simgpu/event.h"

#include <algorithm>
#include <chrono>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {

namespace {

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Event::Event(std::weak_ptr<Context> context, CUevent handle, unsigned flags)
    : context_(std::move(context)), handle_(handle), flags_(flags) {}

Event::State Event::state() const {
  std::scoped_lock lock(mutex_);
  return state_;
}

void Event::set(State state) {
  std::scoped_lock lock(mutex_);
  state_ = std::move(state);
}

CUresult recordEvent(Event& event, Context& context, Stream& stream, bool external) {
  if (auto session = stream.captureSession()) {
    if (external) {
      return captureNode(
          stream, {CU_GRAPH_NODE_TYPE_EVENT_RECORD, context.handle(), EventNode{event.handle()}});
    }
    Event::State state;
    {
      std::scoped_lock lock(session->mutex);
      if (session->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      CaptureSession::Member* member = session->member(stream);
      if (member == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
      state.nodes = member->tail;
    }
    state.capture = std::move(session);
    event.set(std::move(state));
    return CUDA_SUCCESS;
  }
  if (stream.handle() == CU_STREAM_LEGACY)
    if (const CUresult result = context.checkLegacyCapture()) return result;
  Event::State state;
  state.recorded = true;
  state.nanoseconds = std::make_shared<std::atomic<int64_t>>(0);
  state.point = context.submit(stream, makeOp("event record", [time = state.nanoseconds](Context&) {
                                 time->store(now(), std::memory_order_release);
                                 return CUDA_SUCCESS;
                               }));
  event.set(std::move(state));
  return CUDA_SUCCESS;
}

CUresult waitEvent(Event& event, Context& context, Stream& stream, bool external) {
  Event::State state = event.state();
  auto session = stream.captureSession();
  if (external) {
    if (session != nullptr)
      return captureNode(
          stream, {CU_GRAPH_NODE_TYPE_WAIT_EVENT, context.handle(), EventNode{event.handle()}});
  }
  if (state.capture != nullptr) {
    auto joined = state.capture;
    std::scoped_lock lock(joined->mutex);
    if (joined->ended) return CUDA_ERROR_CAPTURED_EVENT;
    if (joined->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (session != nullptr && session != joined) {
      joined->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream.handle() == CU_STREAM_LEGACY) {
      joined->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (session == nullptr) {
      joined->members.push_back({stream.weak_from_this(), state.nodes});
      stream.setCapture(joined);
      return CUDA_SUCCESS;
    }
    CaptureSession::Member* member = joined->member(stream);
    if (member == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    for (CUgraphNode node : state.nodes)
      if (std::find(member->tail.begin(), member->tail.end(), node) == member->tail.end())
        member->tail.push_back(node);
    return CUDA_SUCCESS;
  }
  if (session != nullptr) {
    if (!state.recorded) return CUDA_SUCCESS;
    session->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!state.recorded) return CUDA_SUCCESS;
  if (stream.handle() == CU_STREAM_LEGACY)
    if (const CUresult result = context.checkLegacyCapture()) return result;
  context.submit(stream, makeOp("event wait", [](Context&) { return CUDA_SUCCESS; }),
                 {std::move(state.point)});
  return CUDA_SUCCESS;
}

}  // namespace olpager::simgpu
