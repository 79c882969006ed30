// All that was launched is waited for, without the call that the driver has for it: to synchronise
// a context is an error while a stream captures, and spoils the capture. A capture that begins just
// before the call is made can't be seen in time. The pager knows each launch and where it is over,
// and looks at no stream that captures.
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a stream captures, and not all may be over.
CUresult finishWork(Invocation& in) {
  if (!in.ok()) return in.refusal();
  const CUresult finished = in.worker().agent().finish();
  return finished != CUDA_SUCCESS ? finished : in.worker().faults().stateOf(in.head().context);
}

}  // namespace olpager::gpunode
