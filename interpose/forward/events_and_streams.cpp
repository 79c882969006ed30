// Events and streams are made without a round trip: what the driver would refuse is refused here.
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {
namespace {

struct Streams {
  std::shared_mutex mutex;  // a leaf
  // Their contexts. One that is destroyed stays until its context goes or its handle is given out
  // again: a launch in it is as well known as before, and fails as late.
  std::unordered_map<CUstream, uint64_t> made_in;
};
Streams& streams() {
  static auto* instance = new Streams;
  return *instance;
}

// Of a stream that was made now, in the calling thread's context.
CUresult noted(CUresult result, const CUstream* stream) {
  if (result != CUDA_SUCCESS || stream == nullptr) return result;
  Streams& all = streams();
  std::unique_lock lock(all.mutex);
  all.made_in[*stream] = currentContext();
  return result;
}

}  // namespace

uint64_t contextOfStream(CUstream stream, uint64_t current) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
    return current;
  Streams& all = streams();
  std::shared_lock lock(all.mutex);
  const auto found = all.made_in.find(stream);
  return found != all.made_in.end() ? found->second : reinterpret_cast<uint64_t>(stream);
}

void forgetStreamsIn(uint64_t context) {
  Streams& all = streams();
  std::unique_lock lock(all.mutex);
  std::erase_if(all.made_in, [&](const auto& entry) { return entry.second == context; });
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuEventCreate(CUevent* event, unsigned flags) {
  constexpr unsigned kFlags =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  const bool shared_but_timed =
      (flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0;
  if ((flags & ~kFlags) != 0 || shared_but_timed) return CUDA_ERROR_INVALID_VALUE;
  return ol_forward_generated_cuEventCreate(event, flags);
}

CUresult ol_forward_cuStreamCreate(CUstream* stream, unsigned flags) {
  if ((flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return noted(ol_forward_generated_cuStreamCreate(stream, flags), stream);
}

CUresult ol_forward_cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  if ((flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return noted(ol_forward_generated_cuStreamCreateWithPriority(stream, flags, priority), stream);
}

}  // extern "C"
