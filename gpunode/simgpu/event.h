// Events. States: unrecorded (complete) -> recorded (complete when its place in a stream is) or
// captured (a place in a graph; only a stream may wait for it). Moved by recording, under
// Event::mutex.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpunode/simgpu/capture.h"
#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

class Context;

class Event {
 public:
  Event(std::weak_ptr<Context> context, CUevent handle, unsigned flags);

  CUevent handle() const { return handle_; }
  unsigned flags() const { return flags_; }
  bool timing() const { return (flags_ & CU_EVENT_DISABLE_TIMING) == 0; }
  std::shared_ptr<Context> context() const { return context_.lock(); }

  struct State {
    bool recorded = false;
    StreamPoint point;
    std::shared_ptr<std::atomic<int64_t>> nanoseconds;  // 0 until reached
    std::shared_ptr<CaptureSession> capture;            // captured: where, behind which nodes
    std::vector<CUgraphNode> nodes;
  };
  State state() const;
  void set(State state);

 private:
  const std::weak_ptr<Context> context_;
  const CUevent handle_;
  const unsigned flags_;
  mutable std::mutex mutex_;
  State state_;
};

/// Records `event` in `stream` (of `context`): into its capture when it is in one, unless
/// `external`.
CUresult recordEvent(Event& event, Context& context, Stream& stream, bool external);
/// Has `stream` wait for what `event` was last recorded as.
CUresult waitEvent(Event& event, Context& context, Stream& stream, bool external);

}  // namespace olpager::simgpu
