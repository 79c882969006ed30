// What functions of the library ask of the program's streams. Thread-safety: any thread.
#pragma once

#include "interpose/forward/call.h"

namespace olpager::forward {

/// The context that a stream was made in: `current` for a default stream, whoever's it is; for one
/// that is not known (those of green contexts) a number that is its own.
uint64_t contextOfStream(CUstream stream, uint64_t current);
/// A context is gone, and its streams with it.
void forgetStreamsIn(uint64_t context);
/// Whether it is the legacy default stream, in which no batch may be. `per_thread`: as below.
inline bool isLegacy(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
}

/// Waits for all that is in the stream. What has failed before is for the program's own calls to
/// tell. `per_thread`: what NULL stands for.
inline CUresult finishStream(CUstream stream, bool per_thread) {
  Call call(per_thread ? api::Symbol::kCuStreamSynchronize_ptsz : api::Symbol::kCuStreamSynchronize,
            Route().handle(stream));
  call.handle(stream);
  call.mayWait();
  call.ofOurOwn();
  return call.sync();
}

}  // namespace olpager::forward
