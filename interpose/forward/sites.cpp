#include "interpose/forward/sites.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/text.h"
#include "forwarding/ask.h"
#include "forwarding/visible_devices.h"
#include "forwarding/wire/session_protocol.h"
#include "interpose/forward/connection.h"

namespace olpager::forward {
namespace {

// Those of the sites that CUDA_VISIBLE_DEVICES names. A view of fewer GPUs than there are is told:
// environments set the variable for programs that would see each GPU.
Result<std::vector<Site>> visible(std::vector<Site> all, const std::string& text) {
  std::vector<std::string> uuids;
  uuids.reserve(all.size());
  for (const Site& site : all) uuids.push_back(site.gpu);
  std::vector<Site> seen;
  for (const uint32_t index : visibleDevices(uuids, text)) seen.push_back(all[index]);
  const std::string shown = base::printable(text.substr(0, 64));
  if (seen.empty())
    return Error{base::format("CUDA_VISIBLE_DEVICES={} names none of the {} GPU(s) of the gpunodes",
                              shown, all.size())};
  if (seen.size() < all.size())
    base::logWarn("unified view: CUDA_VISIBLE_DEVICES=%s leaves out %zu of %zu GPUs", shown.c_str(),
                  all.size() - seen.size(), all.size());
  return seen;
}

// The one that olrun has started is at an address that the user never saw.
std::string nameOf(const base::Settings& settings, const std::string& gpunode) {
  return gpunode == settings.local_gpunode ? std::string(base::kLocalGpunode) : gpunode;
}

}  // namespace

std::vector<Site> gpunodesOf(const base::Settings& settings) {
  std::vector<Site> sites;
  for (const std::string& gpunode : settings.gpunodes)
    sites.push_back({gpunode, "", nameOf(settings, gpunode)});
  return sites;
}

Result<std::vector<Site>> gpusOf(const base::Settings& settings) {
  std::vector<std::future<Result<std::vector<std::string>>>> asked;
  for (const std::string& gpunode : settings.gpunodes)
    asked.push_back(std::async(std::launch::async, [&settings, &gpunode] {
      return askPastOutage(
          [&](bool* lasts) { return askForGpus(settings, gpunode, kConnectMs, kAnswerMs, lasts); });
    }));
  std::vector<Site> sites;
  std::optional<Error> failed;
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto gpus = asked[i].get();
    if (!gpus.ok()) {
      if (!failed) failed = gpus.error();
      continue;
    }
    const std::string& gpunode = settings.gpunodes[i];
    const std::string name = nameOf(settings, gpunode);
    const bool several = gpus.value().size() > 1;
    // To open a session there says why it has none, or finds them by now.
    if (gpus.value().empty()) sites.push_back({gpunode, "", name});
    for (size_t number = 0; number < gpus.value().size(); ++number)
      sites.push_back(
          {gpunode, gpus.value()[number], several ? base::format("{}/{}", name, number) : name});
  }
  if (failed) return *failed;
  if (const char* const text = std::getenv("CUDA_VISIBLE_DEVICES")) {
    auto seen = visible(std::move(sites), text);
    if (!seen.ok()) return seen.error();
    sites = std::move(seen).value();
  }
  for (Site& site : sites)
    site.beside = static_cast<unsigned>(
        std::count_if(sites.begin(), sites.end(),
                      [&](const Site& other) { return other.gpunode == site.gpunode; }) -
        1);
  if (sites.size() > kMostSlots)
    return Error{base::format(
        "view = unified: {} GPUs; a program has at most {} (CUDA_VISIBLE_DEVICES chooses)",
        sites.size(), kMostSlots)};
  return sites;
}

}  // namespace olpager::forward
