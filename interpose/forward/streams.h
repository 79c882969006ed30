// Questions of the library's functions about the program's streams. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <shared_mutex>
#include <unordered_map>

#include "interpose/forward/call.h"

namespace olpager::forward {

/// The contexts of a session's streams. A stream that is destroyed stays until its context goes or
/// its handle is given out again: a launch in it is as well known as before, and fails as late.
struct StreamIndex {
  std::shared_mutex mutex;  // a leaf
  std::unordered_map<CUstream, uint64_t> made_in;
};
/// Those of one context, which go with it.
class StreamsOfContext {
 public:
  StreamsOfContext(StreamIndex& all, uint64_t context) : all_(all), context_(context) {}
  ~StreamsOfContext();
  StreamsOfContext(const StreamsOfContext&) = delete;
  StreamsOfContext& operator=(const StreamsOfContext&) = delete;
  void add(CUstream stream);

 private:
  StreamIndex& all_;
  const uint64_t context_;
};

/// The context that a stream was made in: `current` for a default stream, whoever's it is; for one
/// that is not known (those of green contexts) a number that is its own.
uint64_t contextOfStream(const Session& session, CUstream stream, uint64_t current);
/// True for the legacy default stream, in which no batch may be. `per_thread`: as below.
inline bool isLegacy(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
}

/// Waits for all that is in the stream. Earlier failures are for the program's own calls to tell.
/// `per_thread`: what NULL stands for.
inline CUresult finishStream(CUstream stream, bool per_thread) {
  Call call(per_thread ? api::Symbol::kCuStreamSynchronize_ptsz : api::Symbol::kCuStreamSynchronize,
            Route().handle(stream));
  call.handle(stream);
  call.mayWait();
  call.ofOurOwn();
  return call.sync();
}

/// The same of all that is in the context.
inline CUresult finishContext(Session& session, uint64_t context) {
  Call call(api::Symbol::kCuCtxSynchronize, &session);
  call.inContext(context);
  call.mayWait();
  call.ofOurOwn();
  return call.sync();
}

}  // namespace olpager::forward
