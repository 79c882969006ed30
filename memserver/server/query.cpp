#include "memserver/server/query.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/size.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::memserver {

std::string askAddress(const std::string& listen) {
  for (const std::string_view any : {"0.0.0.0:", "*:"}) {
    if (listen.starts_with(any)) return "127.0.0.1:" + listen.substr(any.size());
  }
  if (listen.starts_with("[::]:")) return "[::1]:" + listen.substr(5);
  return listen;
}

Result<protocol::StateReply> askState(const DaemonOptions& options, const std::string& address) {
  constexpr auto kAnswer = std::chrono::seconds(5);
  transport::Options network;
  network.choice = options.choice;
  network.tls = options.tls;
  network.lanes = 1;
  network.io_threads = 1;
  if (!options.key.empty()) {
    auto keys = transport::loadKeys(options.key);
    if (!keys.ok()) return keys.error();
    network.keys = keys.value();
  }
  auto endpoint = transport::makeEndpoint(network);
  if (!endpoint.ok()) return endpoint.error();
  const auto queue = endpoint.value()->makeQueue();
  auto link = endpoint.value()->connect(address, {transport::makeDomain(), queue, ""});
  if (!link.ok()) return link.error();

  protocol::StateReply all;
  for (uint64_t first = 0, number = 1;; ++number) {
    const auto bytes = protocol::encode({number, protocol::State{first}});
    transport::Completion completion;
    if (link.value()->send(transport::MessageClass::kRequest, bytes) != transport::Outcome::kOk ||
        queue->wait({&completion, 1}, kAnswer) != 1 || completion.kind != transport::Completion::Kind::kMessage) {
      return Error{fmt::format("{}: no answer {}", address, link.value()->reason())};
    }
    auto reply = protocol::decode(completion.message.bytes());
    if (!reply.ok()) return Error{fmt::format("{}: {}", address, reply.error().message)};
    auto* state = std::get_if<protocol::StateReply>(&reply.value().body);
    if (state == nullptr) return Error{fmt::format("{}: it answers something else", address)};
    auto rows = std::move(all.rows);
    rows.insert(rows.end(), state->rows.begin(), state->rows.end());
    all = std::move(*state);
    all.rows = std::move(rows);
    if (all.next <= first) break;
    first = all.next;
  }
  link.value()->close("it has been told");
  return all;
}

std::string stateText(const protocol::StateReply& state) {
  std::string text =
      fmt::format("donated {}   lent {}   free {}   being cleaned {}   given back {}   up {} s{}\n",
                  base::formatSize(state.donated), base::formatSize(state.lent), base::formatSize(state.free),
                  base::formatSize(state.cleaning), base::formatSize(state.returned), state.uptime_ms / 1000,
                  state.lending != 0 ? "" : "   ENDING");
  text += fmt::format("{:>8}  {:<16} {:<24} {:<20} {:>10} {:>6} {:>10}  {}\n", "session", "key", "node", "program",
                      "memory", "slabs", "recalled", "state");
  for (const auto& row : state.rows) {
    text += fmt::format(
        "{:>8}  {:<16} {:<24} {:<20} {:>10} {:>6} {:>10}  {}\n", row.session, row.key_name.empty() ? "-" : row.key_name,
        row.node, row.label, base::formatSize(row.bytes), row.leases, base::formatSize(row.recalled),
        row.connected != 0 ? fmt::format("connected from {}, heard {} ms ago", row.address, row.heard_ms)
                           : fmt::format("lost, its memory is kept for {:.1f} s more", row.left_ms / 1000.0));
  }
  return text;
}

std::string stateJson(const protocol::StateReply& state) {
  nlohmann::json all = {{"donated", state.donated},
                        {"lent", state.lent},
                        {"free", state.free},
                        {"cleaning", state.cleaning},
                        {"returned", state.returned},
                        {"uptime_ms", state.uptime_ms},
                        {"lending", state.lending != 0},
                        {"sessions", nlohmann::json::array()}};
  for (const auto& row : state.rows) {
    all["sessions"].push_back({{"session", row.session},
                               {"key", row.key_name},
                               {"node", row.node},
                               {"program", row.label},
                               {"address", row.address},
                               {"bytes", row.bytes},
                               {"slabs", row.leases},
                               {"recalled", row.recalled},
                               {"connected", row.connected != 0},
                               {"heard_ms", row.heard_ms},
                               {"left_ms", row.left_ms}});
  }
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace olpager::memserver
