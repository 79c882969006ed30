#include "tools/olrun/daemons.h"

#include <cstring>
#include <future>

#include "base/format.h"
#include "base/size.h"
#include "base/text.h"
#include "coherence/status/ask.h"
#include "coherence/transport/from_settings.h"
#include "forwarding/ask.h"
#include "interpose/api/forward_functions.h"

namespace olpager::tools {
namespace {

constexpr uint32_t kConnectMs = 5000;
constexpr uint32_t kAnswerMs = 5000;

DaemonAnswer askMemserver(const transport::Options& network, const std::string& address) {
  DaemonAnswer answer{"memserver", address, "", ""};
  auto asker = status::Asker::make(network, address, kAnswerMs);
  auto told = asker.ok() ? asker.value()->ask() : Result<status::Told>(asker.error());
  if (!told.ok()) {
    answer.problem = "memserver " + told.error().message;
    answer.away = true;
    return answer;
  }
  const status::Status& status = told.value().status;
  if (status.kind != "memserver" || status.tiers.size() != 1) {
    answer.problem = base::format("memserver {}: it is no memserver but a {}{}", address,
                                  base::printable(status.kind),
                                  status.kind == "gpunode" ? ": that is named by --gpunode" : "");
    return answer;
  }
  answer.text = base::format("{} of {} free, by {}{}", base::formatSize(status.tiers[0].free),
                             base::formatSize(status.tiers[0].total), told.value().transport,
                             status.serving != 0 ? "" : ", but it is ending");
  return answer;
}

DaemonAnswer askNode(const base::Settings& settings, const std::string& address) {
  const bool local = address == settings.local_gpunode;
  DaemonAnswer answer{"gpunode", local ? std::string(base::kLocalGpunode) : address, "", ""};
  forward::SessionRequest request;
  request.ask = forward::SessionAsk::kWouldOpen;
  request.specification = forward::kSpecification;
  const auto reply = forward::askGpunode(settings, address, request, kConnectMs, kAnswerMs);
  if (!reply.ok()) {
    answer.problem = reply.error().message;
  } else if (reply.value().refused != 0) {
    answer.problem =
        base::format("gpunode {} refuses: {}", address, forward::textOf(reply.value()));
  } else {
    answer.text = forward::textOf(reply.value());
  }
  return answer;
}

}  // namespace

Result<std::vector<DaemonAnswer>> askDaemons(const base::Settings& settings) {
  auto network = transport::optionsFrom(settings);
  if (!network.ok()) return network.error();
  network.value().connect_ms = kConnectMs;
  std::vector<std::future<DaemonAnswer>> asked;
  for (const std::string& address : settings.gpunodes) {
    if (address == base::kLocalGpunode) continue;  // it is not there
    asked.push_back(std::async(std::launch::async,
                               [&settings, &address] { return askNode(settings, address); }));
  }
  // The program's own gpunode has these memservers.
  if (settings.gpunodes.empty() || !settings.local_gpunode.empty()) {
    for (const std::string& address : settings.memservers)
      asked.push_back(std::async(std::launch::async, [&network, &address] {
        return askMemserver(network.value(), address);
      }));
  }
  std::vector<DaemonAnswer> answers;
  answers.reserve(asked.size());
  for (auto& each : asked) answers.push_back(each.get());
  return answers;
}

}  // namespace olpager::tools
