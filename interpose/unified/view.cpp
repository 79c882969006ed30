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

// The executor is of Routing::kOne. How many GPUs a gpunode has the settings could not know.
Result<std::pair<Routing, unsigned>> routingIn(const forward::Session& session) {
  if (g_route == base::kRouteOwner) return std::pair{Routing::kOwner, 0U};
  if (g_route == base::kRouteRoundRobin) return std::pair{Routing::kRoundRobin, 0U};
  const auto all = session.executors();
  const auto named = std::find_if(all.begin(), all.end(),
                                  [](const auto& executor) { return executor->name() == g_route; });
  if (named != all.end())
    return std::pair{Routing::kOne, static_cast<unsigned>(named - all.begin())};
  std::string names;
  for (const auto& executor : all) names += (names.empty() ? "" : ", ") + executor->name();
  return Error{base::format("route: there is no GPU '{}'; they are {}", g_route, names)};
}

Status accepts(std::span<forward::Session* const> all) {
  forward::Session& session = *all.front();  // the view has one
  if (session.executors().size() == 1) return {};
  const auto routing = routingIn(session);
  if (!routing.ok()) return routing.error();
  const auto [way, one] = routing.value();
  auto group = std::make_unique<Executors>(session, g_counters(), way, one, g_managed);
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
