#include "interpose/unified/view.h"

#include <algorithm>
#include <cstdlib>
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
  const auto named = std::find_if(all.begin(), all.end(), [](const auto& executor) {
    return executor->name() == g_route || executor->name() + "/0" == g_route;
  });
  if (named != all.end())
    return std::pair{Routing::kOne, static_cast<unsigned>(named - all.begin())};
  // A gpunode of which the view has one GPU, of several.
  const auto isThere = [](const auto& executor) {
    return executor->name().starts_with(g_route + "/");
  };
  if (std::count_if(all.begin(), all.end(), isThere) == 1)
    return std::pair{
        Routing::kOne,
        static_cast<unsigned>(std::find_if(all.begin(), all.end(), isThere) - all.begin())};
  std::string names;
  for (const auto& executor : all) names += (names.empty() ? "" : ", ") + executor->name();
  return Error{base::format(
      "route: the view has no GPU '{}'; it has {}{}", g_route, names,
      std::getenv("CUDA_VISIBLE_DEVICES") != nullptr ? " (CUDA_VISIBLE_DEVICES chooses)" : "")};
}

Status accepts(std::span<forward::Session* const> all) {
  forward::Session& session = *all.front();  // the view has one
  for (const auto& executor : session.executors()) {
    if (executor->description().devices > 1)
      return Error{base::format(
          "view = unified: gpunode {} had just started and has found its {} GPUs only now: start "
          "the program again",
          executor->name(), executor->description().devices)};
  }
  const auto routing = routingIn(session);
  if (!routing.ok()) return routing.error();
  if (session.executors().size() == 1) return {};
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
