// A synchronisation of one context, or of one stream, at one executor, under way: how the home asks
// whether all that was sent there has ended without waiting for it. Thread-safety: belongs to its
// thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "interpose/forward/call.h"

namespace olpager::unified {

struct Unfinished {
  /// `stream`: null: of all in the context. `marked`: that spoils no capture that another thread
  /// begins meanwhile, and where one has begun before it is
  /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
  Unfinished(forward::Session& session, unsigned executor, uint64_t context,
             CUstream stream = nullptr, bool marked = false)
      : call(make(session, stream, marked)) {
    if (stream != nullptr) call.handle(stream);
    call.only(executor);
    call.inContext(context);
    call.mayWait();
    call.othersCall();
    call.behindAll();
    call.ofOurOwn();
    if (marked) call.relaxed();
    begun = call.begin(true) == CUDA_SUCCESS;
  }
  forward::Call call;
  bool begun = false;

 private:
  static forward::Call make(forward::Session& session, CUstream stream, bool marked) {
    if (stream == nullptr && marked)
      return forward::Call(forward::Operation::kFinishWork, &session);
    return forward::Call(
        stream == nullptr ? api::Symbol::kCuCtxSynchronize : api::Symbol::kCuStreamSynchronize,
        &session);
  }
};

}  // namespace olpager::unified
