// A synchronisation of one context, or of one stream, at one executor, under way: how the home asks
// whether all that was sent there has ended without waiting for it. Thread-safety: belongs to its
// thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "interpose/forward/call.h"

namespace olpager::unified {

struct Unfinished {
  /// `stream`: null: of all in the context.
  Unfinished(forward::Session& session, unsigned executor, uint64_t context,
             CUstream stream = nullptr)
      : call(stream == nullptr ? api::Symbol::kCuCtxSynchronize : api::Symbol::kCuStreamSynchronize,
             &session) {
    if (stream != nullptr) call.handle(stream);
    call.only(executor);
    call.inContext(context);
    call.mayWait();
    call.othersCall();
    call.behindAll();
    call.ofOurOwn();
    begun = call.begin(true) == CUDA_SUCCESS;
  }
  forward::Call call;
  bool begun = false;
};

}  // namespace olpager::unified
