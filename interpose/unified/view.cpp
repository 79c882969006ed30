#include "interpose/unified/view.h"

#include <memory>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"
#include "interpose/unified/executors.h"

namespace olpager::unified {
namespace {

CountersSource g_counters = nullptr;  // before there are sessions

// How many of a gpunode's GPUs the program sees only its worker tells.
Status accepts(std::span<forward::Session* const> all) {
  forward::Session& session = *all.front();  // the view has one
  for (const auto& executor : session.executors()) {
    const int devices = executor->description().devices;
    if (devices > 1)
      return Error{base::format(
          "view = unified: one GPU of a gpunode so far, and the program sees {} of gpunode {}: "
          "choose one (CUDA_VISIBLE_DEVICES=0), or see each as a device (--view discrete)",
          devices, executor->gpunode())};
  }
  if (session.executors().size() == 1) return {};
  auto group = std::make_unique<Executors>(session, g_counters());
  Executors& executors = *group;
  session.formGroup(std::move(group));
  return executors.start();
}

}  // namespace

void configure(const base::Settings& settings, CountersSource counters) {
  g_counters = counters;
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
