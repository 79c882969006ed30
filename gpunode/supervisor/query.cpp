#include "gpunode/supervisor/query.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/format.h"
#include "base/size.h"
#include "coherence/status/ask.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::gpunode {
namespace {

using base::formatSize;

// The address to connect to for its `listen`.
std::string askAddress(const std::string& listen) {
  for (const std::string_view any : {"0.0.0.0:", "*:"}) {
    if (listen.starts_with(any)) return "127.0.0.1:" + listen.substr(any.size());
  }
  if (listen.starts_with("[::]:")) return "[::1]:" + listen.substr(5);
  return listen;
}

uint64_t hostOf(const status::Session& session) {
  return session.bytes.empty() ? 0 : session.bytes.back();
}

}  // namespace

Result<status::Status> askState(const SupervisorOptions& options) {
  transport::Options network;
  network.tls = options.tls;
  network.choice = transport::Choice::kTcp;
  if (!options.key.empty()) {
    auto keys = transport::loadKeys(options.key);
    if (!keys.ok()) return keys.error();
    network.keys = std::move(keys).value();
  }
  const std::string address = askAddress(options.listen);
  auto asker = status::Asker::make(network, address);
  if (!asker.ok()) return asker.error();
  auto told = asker.value()->ask();
  if (!told.ok()) return told.error();
  if (told.value().status.kind != "gpunode") return Error{address + ": it is no gpunode"};
  return std::move(told.value().status);
}

std::string stateText(const status::Status& state) {
  std::string text;
  for (size_t i = 0; i < state.devices.size(); ++i) {
    const status::Device& device = state.devices[i];
    text += base::format("GPU {}  {}  {}  VRAM {} of {} used\n", i, device.name, device.uuid,
                         formatSize(device.used), formatSize(device.total));
  }
  text += base::format("{:>7}  {:<12} {:<20} {:<21} {:<16} {:>3} {:>10} {:>10} {:>10} {:>12}  {}\n",
                       "session", "key", "node", "address", "program", "GPU", "VRAM", "budget",
                       "RAM", "calls", "state");
  for (const auto& row : state.sessions) {
    bool any = false;
    const auto line = [&](const std::string& device, const std::string& used,
                          const std::string& budget) {
      text +=
          any ? base::format("{:>83} {:>3} {:>10} {:>10}\n", "", device, used, budget)
              : base::format(
                    "{:>7}  {:<12} {:<20} {:<21} {:<16} {:>3} {:>10} {:>10} {:>10} {:>12}  {}\n",
                    row.number, row.key_name.empty() ? "-" : row.key_name, row.node, row.address,
                    row.program, device, used, budget, formatSize(hostOf(row)), row.calls,
                    row.state);
      any = true;
    };
    for (size_t i = 0; i + 1 < row.bytes.size() && i < row.budgets.size(); ++i) {
      if (row.budgets[i] != 0)
        line(base::format("{}", i), formatSize(row.bytes[i]), formatSize(row.budgets[i]));
    }
    if (!any) line("-", "-", "-");
  }
  if (state.sessions.empty()) text += "no sessions\n";
  return text;
}

std::string stateJson(const status::Status& state) {
  nlohmann::json all = {{"uptime_ms", state.uptime_ms},
                        {"devices", nlohmann::json::array()},
                        {"sessions", nlohmann::json::array()}};
  for (const auto& device : state.devices)
    all["devices"].push_back({{"name", device.name},
                              {"uuid", device.uuid},
                              {"total", device.total},
                              {"used", device.used},
                              {"free", device.free}});
  for (const auto& row : state.sessions) {
    nlohmann::json one = {{"session", row.number},  {"key", row.key_name},
                          {"node", row.node},       {"program", row.program},
                          {"process", row.process}, {"address", row.address},
                          {"ram", hostOf(row)},     {"calls", row.calls},
                          {"moved", row.moved},     {"running", row.connected != 0},
                          {"state", row.state},     {"vram", nlohmann::json::array()}};
    for (size_t i = 0; i + 1 < row.bytes.size() && i < row.budgets.size(); ++i) {
      if (row.budgets[i] != 0)
        one["vram"].push_back({{"device", i}, {"used", row.bytes[i]}, {"budget", row.budgets[i]}});
    }
    all["sessions"].push_back(std::move(one));
  }
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace olpager::gpunode
