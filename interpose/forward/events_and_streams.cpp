// Events and streams are made without a round trip: what the driver would refuse is refused here.
#include <mutex>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/context.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {
namespace {

// Notes a stream that was made now, in the calling thread's context.
CUresult noted(CUresult result, const CUstream* stream) {
  if (result != CUDA_SUCCESS || stream == nullptr) return result;
  const uint64_t context = currentContext();
  if (const Session* const session = sessionOfHandle(context); session != nullptr)
    session->parts().contexts->with(context, [&](Context& in) { in.streams.add(*stream); });
  return result;
}

}  // namespace

void StreamsOfContext::add(CUstream stream) {
  std::unique_lock lock(all_.mutex);
  all_.made_in[stream] = context_;
}

StreamsOfContext::~StreamsOfContext() {
  std::unique_lock lock(all_.mutex);
  std::erase_if(all_.made_in, [&](const auto& entry) { return entry.second == context_; });
}

uint64_t contextOfStream(const Session& session, CUstream stream, uint64_t current) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
    return current;
  StreamIndex& all = *session.parts().streams;
  std::shared_lock lock(all.mutex);
  const auto found = all.made_in.find(stream);
  return found != all.made_in.end() ? found->second : reinterpret_cast<uint64_t>(stream);
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
