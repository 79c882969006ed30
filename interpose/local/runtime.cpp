// What the generated residency wrappers and the launches share: residency before the driver's call, bookkeeping after.
#include "interpose/api/local_runtime.h"

#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/root.h"

namespace olpager::local {

// A kernel that names nothing may still follow pointers that lie in its module's variables: the pager is always asked.
// A captured operation does not run now: its memory joins the capture's reach and is made resident when the graph runs.
CUresult enter(pager::Access& access, const pager::StreamKey& stream) {
  if (stream.context == nullptr) return CUDA_SUCCESS;
  if (!anyCapture()) return access.acquire();
  if (const uint64_t id = captureOf(stream)) {
    captureAdd(id, access);
    return CUDA_SUCCESS;
  }
  RelaxedCapture relaxed;
  return access.acquire();
}

void leave(pager::Access& access, const pager::StreamKey& stream, CUresult result) {
  if (stream.context == nullptr) return;
  if (anyCapture() && captureOf(stream) != 0) return;
  access.submitted(result);
}

}  // namespace olpager::local
