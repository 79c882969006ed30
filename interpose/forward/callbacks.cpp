// Host functions: run here, when the worker's stream comes to them; the stream goes on when they
// have returned.
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/graph_nodes.h"
#include "interpose/forward/host_functions.h"

namespace olpager::forward {
namespace {

// `node`: what a graph's node is told to be, where it is captured.
CUresult enqueue(CUstream stream, bool per_thread, bool with_status,
                 std::function<void(CUresult)> run, const CUDA_HOST_NODE_PARAMS& node = {}) {
  Session* const session = Route().handle(stream).session();
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Call call(Operation::kHostFunction, session);
  call.inStream(stream, per_thread);
  call.value(reinterpret_cast<uint64_t>(stream));
  call.value(static_cast<uint8_t>(per_thread));
  call.value(static_cast<uint8_t>(with_status));
  // Captured, it is called each time that the graph runs. The worker asks the same of the stream
  // itself: one that another thread captures is no reason to keep this function.
  const bool again = capturing() && captures(stream, per_thread);
  const FunctionKind once = with_status ? FunctionKind::kCallback : FunctionKind::kHost;
  const uint32_t number =
      session->functions().expect(std::move(run), again ? FunctionKind::kInGraph : once);
  if (again && node.fn != nullptr) noteNodeFunction(*session, number, node);
  call.value(number);
  const CUresult posted = call.oneWay();
  if (posted == CUDA_SUCCESS) return posted;
  // A callback may have been called for the end of the session: that says it.
  const bool nobody_calls = session->functions().doesNotCome(number);
  return nobody_calls || !with_status ? posted : CUDA_SUCCESS;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

#define OL_CALLBACK(suffix, per_thread)                                                            \
  CUresult ol_forward_cuLaunchHostFunc##suffix(CUstream stream, CUhostFn function, void* data) {   \
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;                                      \
    return enqueue(stream, per_thread, false, [function, data](CUresult) { function(data); },      \
                   {function, data});                                                              \
  }                                                                                                \
  CUresult ol_forward_cuStreamAddCallback##suffix(CUstream stream, CUstreamCallback function,      \
                                                  void* data, unsigned flags) {                    \
    if (function == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;                        \
    return enqueue(stream, per_thread, true,                                                       \
                   [function, data, stream](CUresult status) { function(stream, status, data); }); \
  }
OL_CALLBACK(, false)
OL_CALLBACK(_ptsz, true)
#undef OL_CALLBACK

}  // extern "C"
