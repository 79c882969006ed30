#include "interpose/unified/view.h"

#include <span>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"

namespace olpager::unified {
namespace {

// Settings name one gpunode; how many of its GPUs the program sees only its worker tells.
Status accepts(std::span<forward::Session* const> all) {
  for (const forward::Session* const session : all) {
    const int devices = session->executor().description().devices;
    if (devices > 1)
      return Error{base::format(
          "view = unified: one GPU so far, and the program sees {} of gpunode {}: choose one "
          "(CUDA_VISIBLE_DEVICES=0), or see each as a device (--view discrete)",
          devices, session->executor().gpunode())};
  }
  return {};
}

}  // namespace

void configure(const base::Settings& settings) {
  forward::configureSessions(settings, {accepts, unifiedFunction});
}

CUresult refused(const char* function) {
  base::warnOnce(function,
                 "%s is not offered in the unified view, whose memory is of no single GPU: "
                 "CUDA_ERROR_NOT_SUPPORTED; --view discrete has it",
                 function);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace olpager::unified
