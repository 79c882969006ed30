#include "memserver/server/query.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/size.h"
#include "coherence/status/ask.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::memserver {

namespace {

uint64_t bytesOf(const status::Session& session) {
  return session.bytes.empty() ? 0 : session.bytes.front();
}

}  // namespace

std::string askAddress(const std::string& listen) {
  for (const std::string_view any : {"0.0.0.0:", "*:"}) {
    if (listen.starts_with(any)) return "127.0.0.1:" + listen.substr(any.size());
  }
  if (listen.starts_with("[::]:")) return "[::1]:" + listen.substr(5);
  return listen;
}

Result<status::Status> askState(const DaemonOptions& options, const std::string& address) {
  transport::Options network;
  network.choice = options.choice;
  network.tls = options.tls;
  if (!options.key.empty()) {
    auto keys = transport::loadKeys(options.key);
    if (!keys.ok()) return keys.error();
    network.keys = keys.value();
  }
  auto asker = status::Asker::make(network, address);
  if (!asker.ok()) return asker.error();
  auto told = asker.value()->ask();
  if (!told.ok()) return told.error();
  if (told.value().status.kind != "memserver" || told.value().status.tiers.size() != 1)
    return Error{base::format("{}: it is no memserver", address)};
  return std::move(told.value().status);
}

std::string stateText(const status::Status& state) {
  const status::Tier& memory = state.tiers.front();
  std::string text = base::format(
      "donated {}   lent {}   free {}   being cleaned {}   given back {}   up {} s{}\n",
      base::formatSize(memory.total), base::formatSize(memory.used), base::formatSize(memory.free),
      base::formatSize(state.figure("cleaning_bytes")),
      base::formatSize(state.figure("returned_bytes_total")), state.uptime_ms / 1000,
      state.serving != 0 ? "" : "   ENDING");
  text += base::format("{:>8}  {:<16} {:<24} {:<20} {:>10} {:>6} {:>10}  {}\n", "session", "key",
                       "node", "program", "memory", "slabs", "recalled", "state");
  for (const auto& row : state.sessions) {
    text += base::format(
        "{:>8}  {:<16} {:<24} {:<20} {:>10} {:>6} {:>10}  {}\n", row.number,
        row.key_name.empty() ? "-" : row.key_name, row.node, row.program,
        base::formatSize(bytesOf(row)), row.pieces, base::formatSize(row.recalled),
        row.connected != 0
            ? base::format("connected from {} by {}, heard {} ms ago", row.address, row.transport,
                           row.heard_ms)
            : base::format("lost, its memory is kept for {:.1f} s more", row.left_ms / 1000.0));
  }
  return text;
}

std::string stateJson(const status::Status& state) {
  const status::Tier& memory = state.tiers.front();
  nlohmann::json all = {{"donated", memory.total},
                        {"lent", memory.used},
                        {"free", memory.free},
                        {"cleaning", state.figure("cleaning_bytes")},
                        {"returned", state.figure("returned_bytes_total")},
                        {"uptime_ms", state.uptime_ms},
                        {"lending", state.serving != 0},
                        {"sessions", nlohmann::json::array()}};
  for (const auto& row : state.sessions) {
    all["sessions"].push_back({{"session", row.number},
                               {"key", row.key_name},
                               {"node", row.node},
                               {"program", row.program},
                               {"address", row.address},
                               {"transport", row.transport},
                               {"bytes", bytesOf(row)},
                               {"slabs", row.pieces},
                               {"recalled", row.recalled},
                               {"connected", row.connected != 0},
                               {"heard_ms", row.heard_ms},
                               {"left_ms", row.left_ms}});
  }
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace olpager::memserver
