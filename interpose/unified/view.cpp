#include "interpose/unified/view.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
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
std::string g_route;                  // likewise
bool g_managed = true;                // likewise

// The executor is of Routing::kOne.
std::pair<Routing, unsigned> routingIn(const forward::Session& session) {
  if (g_route == base::kRouteOwner) return {Routing::kOwner, 0};
  if (g_route == base::kRouteRoundRobin) return {Routing::kRoundRobin, 0};
  const auto all = session.executors();
  const auto named = std::find_if(
      all.begin(), all.end(), [](const auto& executor) { return executor->gpunode() == g_route; });
  if (named == all.end()) return {Routing::kOwner, 0};  // settings are checked before
  return {Routing::kOne, static_cast<unsigned>(named - all.begin())};
}

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
  const auto [routing, one] = routingIn(session);
  auto group = std::make_unique<Executors>(session, g_counters(), routing, one, g_managed);
  Executors& executors = *group;
  session.formGroup(std::move(group));
  return executors.start();
}

}  // namespace

void configure(const base::Settings& settings, CountersSource counters) {
  g_counters = counters;
  g_route = settings.route;
  g_managed = settings.managed == base::ManagedSetting::kPager;
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
