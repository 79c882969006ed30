#include "interpose/unified/view.h"

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
  std::vector<unsigned> there;  // at a gpunode of which the route names no GPU
  std::string names;
  for (unsigned i = 0; i < all.size(); ++i) {
    const std::string& name = all[i]->name();
    if (name == g_route || name + "/0" == g_route) return std::pair{Routing::kOne, i};
    if (name.starts_with(g_route + "/")) there.push_back(i);
    names += (names.empty() ? "" : ", ") + name;
  }
  if (there.size() == 1) return std::pair{Routing::kOne, there.front()};
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
