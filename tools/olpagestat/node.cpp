#include "tools/olpagestat/node.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/settings.h"
#include "base/size.h"
#include "base/text.h"
#include "coherence/transport/from_settings.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using base::formatSize;

double monotonicSeconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::string rateText(const std::optional<double>& rate) {
  return rate ? bytesText(*rate) + "/s" : "-";
}

uint64_t sumOf(const std::vector<uint64_t>& values) {
  uint64_t sum = 0;
  for (const uint64_t value : values) sum += value;
  return sum;
}

std::string uptimeText(uint64_t ms) {
  const uint64_t seconds = ms / 1000;
  if (seconds < 120) return base::format("{} s", seconds);
  if (seconds < 7200) return base::format("{} min", seconds / 60);
  return base::format("{} h", seconds / 3600);
}

std::string title(const NodeSample& now) {
  const auto& told = *now.told;
  return base::format("{} {}  {} by {}  up {}{}", told.status.kind, told.node, now.address,
                      told.transport, uptimeText(told.status.uptime_ms),
                      told.status.serving != 0 ? "" : "  ENDING");
}

std::string stateOf(const status::Session& session) {
  if (!session.state.empty()) return session.state;
  return session.connected != 0
             ? base::format("heard {} ms ago", session.heard_ms)
             : base::format("lost, kept for {:.1f} s more", session.left_ms / 1000.0);
}

// How often it is called a second; "-" where that is not known, or it is no such daemon.
std::string callsText(const NodeSample& now, const NodeSample* before,
                      const status::Session& session) {
  const auto rate = callRate(now, before, session);
  return rate                 ? bytesText(*rate) + "/s"
         : session.calls != 0 ? bytesText(static_cast<double>(session.calls))
                              : "-";
}

// By shared memory sessions of a memserver copy themselves: it does not see what.
bool copiesItself(const status::Session& session) {
  return session.transport == "shm" && session.calls == 0;
}

// Those that are over are shown for a while.
size_t openSessions(const status::Status& status) {
  return static_cast<size_t>(std::count_if(
      status.sessions.begin(), status.sessions.end(),
      [](const auto& session) { return session.connected != 0 || session.left_ms != 0; }));
}

std::string transportOf(const status::Session& session) {
  return session.transport.empty() ? "-" : session.transport;
}

std::string budgetText(const status::Session& session) {
  std::string text;
  for (const uint64_t budget : session.budgets) {
    if (budget != 0) text += (text.empty() ? "" : ",") + bytesText(static_cast<double>(budget));
  }
  return text.empty() ? "-" : text;
}

std::string sessionHead() {
  return base::format("{:>8} {:<12} {:<24} {:<16} {:<5}{:>8}{:>8}{:>9}{:>9}{:>9}{:>10}{:>9}  {}",
                      "SESSION", "KEY", "NODE", "PROGRAM", "BY", "PIECES", "MEMORY", "BUDGET",
                      "RECALLED", "MOVED", "RATE", "CALLS", "STATE");
}

std::string sessionRow(const NodeSample& now, const NodeSample* before,
                       const status::Session& session) {
  return base::format(
      "{:>8} {:<12} {:<24} {:<16} {:<5}{:>8}{:>8}{:>9}{:>9}{:>9}{:>10}{:>9}  {}", session.number,
      session.key_name.empty() ? "-" : session.key_name.substr(0, 12), session.node.substr(0, 24),
      session.program.substr(0, 16), transportOf(session), session.pieces,
      bytesText(static_cast<double>(sumOf(session.bytes))), budgetText(session),
      bytesText(static_cast<double>(session.recalled)),
      copiesItself(session) ? "-" : bytesText(static_cast<double>(session.moved)),
      rateText(movedRate(now, before, &session)), callsText(now, before, session),
      stateOf(session));
}

// Most memory first.
std::vector<const status::Session*> sorted(const status::Status& status) {
  std::vector<const status::Session*> sessions;
  for (const auto& session : status.sessions) sessions.push_back(&session);
  std::stable_sort(sessions.begin(), sessions.end(),
                   [](const auto* a, const auto* b) { return sumOf(a->bytes) > sumOf(b->bytes); });
  return sessions;
}

bool isBytes(const std::string& name) { return name.find("_bytes") != std::string::npos; }

}  // namespace

Result<NodeSource> NodeSource::make(const NodeOptions& options, uint32_t answer_ms) {
  auto settings = base::loadSettings();
  if (!settings.ok()) return settings.error();
  if (!options.tls.empty()) {
    if (const Status status = base::optionsOf(settings.value()).set("tls", options.tls);
        !status.ok())
      return Error{"--tls: " + status.error().message};
  }
  if (!options.key.empty()) settings.value().key = options.key;
  auto network = transport::optionsFrom(settings.value());
  if (!network.ok()) return network.error();
  network.value().connect_ms = answer_ms;
  network.value().choice = transport::Choice::kAuto;  // whatever programs have to use
  NodeSource source;
  for (const std::string& address : options.addresses) {
    auto asker = status::Asker::make(network.value(), address, answer_ms);
    if (!asker.ok()) return asker.error();
    source.nodes_.push_back({address, std::move(asker).value()});
  }
  return source;
}

std::vector<NodeSample> NodeSource::ask() {
  std::vector<NodeSample> samples;
  for (Node& node : nodes_) {
    NodeSample sample;
    sample.address = node.address;
    auto told = node.asker->ask();
    sample.seconds = monotonicSeconds();
    if (told.ok()) {
      sample.told = std::move(told).value();
    } else {
      sample.error = told.error().message;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::optional<double> movedRate(const NodeSample& now, const NodeSample* before,
                                const status::Session* session) {
  if (before == nullptr || !before->told || !now.told || now.seconds <= before->seconds)
    return std::nullopt;
  const status::Status &a = before->told->status, &b = now.told->status;
  if (b.uptime_ms < a.uptime_ms) return std::nullopt;  // it was started anew
  // If all copy by shared memory the daemon's own figure is of nothing that they do.
  if (session == nullptr && b.figure(R"(links{transport="shm"})") != 0 &&
      b.figure(R"(links{transport="tcp"})") == 0)
    return std::nullopt;
  uint64_t then = a.figure("moved_bytes_total"), later = b.figure("moved_bytes_total");
  if (session != nullptr) {
    if (copiesItself(*session)) return std::nullopt;
    const auto was = std::find_if(a.sessions.begin(), a.sessions.end(),
                                  [&](const auto& each) { return each.number == session->number; });
    then = was == a.sessions.end() ? 0 : was->moved;
    later = session->moved;
  }
  if (later < then) return std::nullopt;
  return static_cast<double>(later - then) / (now.seconds - before->seconds);
}

std::optional<double> callRate(const NodeSample& now, const NodeSample* before,
                               const status::Session& session) {
  if (before == nullptr || !before->told || !now.told || now.seconds <= before->seconds)
    return std::nullopt;
  for (const auto& was : before->told->status.sessions) {
    if (was.number == session.number && was.calls <= session.calls && session.calls != 0 &&
        now.told->status.uptime_ms >= before->told->status.uptime_ms)
      return static_cast<double>(session.calls - was.calls) / (now.seconds - before->seconds);
  }
  return std::nullopt;
}

std::string nodeTable(const NodeSample& now, const NodeSample* before) {
  if (!now.told) return "";
  const status::Status& status = now.told->status;
  std::string text = title(now) + "\n";
  for (size_t i = 0; i < status.devices.size(); ++i) {
    const status::Device& device = status.devices[i];
    text += base::format(
        "  {:<32}{}  {}{}{}\n", base::format("GPU {}", i), device.name, device.uuid,
        device.gpu_percent == status::kUnknown ? ""
                                               : base::format("  {} % busy", device.gpu_percent),
        device.temperature == status::kUnknown ? "" : base::format("  {} C", device.temperature));
  }
  for (const auto& tier : status.tiers)
    text += base::format("  {:<32}{} of {} in use, {} free\n", tier.name, formatSize(tier.used),
                         formatSize(tier.total), formatSize(tier.free));
  if (const auto rate = movedRate(now, before, nullptr))
    text += base::format("  {:<32}{}\n", "moved now", rateText(rate));
  for (const auto& figure : status.figures)
    text += base::format(
        "  {:<32}{}\n", figure.name,
        isBytes(figure.name) ? formatSize(figure.value) : std::to_string(figure.value));
  text += sessionHead() + "\n";
  for (const auto* session : sorted(status)) text += sessionRow(now, before, *session) + "\n";
  return text;
}

std::vector<Line> nodeScreen(const NodeSample& now, const NodeSample* before, size_t most) {
  std::vector<Line> lines;
  if (!now.told) {
    lines.push_back(Line().add("node ", Style::kTitle).add(base::printable(now.error)));
    return lines;
  }
  const status::Status& status = now.told->status;
  lines.push_back(Line().add("node " + title(now), Style::kTitle));
  const size_t sessions = openSessions(status);
  for (const auto& tier : status.tiers) {
    lines.push_back(Line().add(base::format(
        "  {:<12} {} {:>7} of {:>7}   moves {:>9}   {} session{}", tier.name,
        bar(static_cast<double>(tier.used), static_cast<double>(tier.total), 20),
        bytesText(static_cast<double>(tier.used)), bytesText(static_cast<double>(tier.total)),
        rateText(movedRate(now, before, nullptr)), sessions, sessions == 1 ? "" : "s")));
  }
  for (const auto* session : sorted(status)) {
    if (lines.size() >= most) break;
    lines.push_back(Line().add(
        base::format("  {:<24} {:<16} {:<4}{:>8} in {:<6}{:>10}  {}", session->node.substr(0, 24),
                     session->program.substr(0, 16), transportOf(*session),
                     bytesText(static_cast<double>(sumOf(session->bytes))),
                     session->calls != 0 ? budgetText(*session) : std::to_string(session->pieces),
                     session->calls != 0 ? callsText(now, before, *session)
                                         : rateText(movedRate(now, before, session)),
                     stateOf(*session)),
        session->connected != 0 ? Style::kPlain : Style::kDim));
  }
  return lines;
}

std::string nodesJson(const std::vector<NodeSample>& nodes) {
  using nlohmann::ordered_json;
  ordered_json all = {{"version", 1}, {"nodes", ordered_json::array()}};
  for (const NodeSample& node : nodes) {
    ordered_json one = {{"address", node.address}};
    if (!node.told) {
      one["error"] = node.error;
      all["nodes"].push_back(std::move(one));
      continue;
    }
    const status::Status& status = node.told->status;
    one.update({{"kind", status.kind},
                {"node", node.told->node},
                {"transport", node.told->transport},
                {"uptime_ms", status.uptime_ms},
                {"serving", status.serving != 0},
                {"session_count", status.session_count},
                {"devices", ordered_json::array()},
                {"tiers", ordered_json::array()},
                {"figures", ordered_json::object()},
                {"sessions", ordered_json::array()}});
    for (const auto& device : status.devices) {
      ordered_json told = {{"name", device.name}, {"uuid", device.uuid}};
      const auto figure = [&](const char* name, uint32_t value) {
        if (value != status::kUnknown) told[name] = value;
      };
      figure("gpu_percent", device.gpu_percent), figure("memory_percent", device.memory_percent);
      figure("temperature", device.temperature), figure("power_mw", device.power_mw);
      one["devices"].push_back(std::move(told));
    }
    for (const auto& tier : status.tiers)
      one["tiers"].push_back(
          {{"name", tier.name}, {"total", tier.total}, {"used", tier.used}, {"free", tier.free}});
    for (const auto& figure : status.figures) one["figures"][figure.name] = figure.value;
    for (const auto& session : status.sessions)
      one["sessions"].push_back({{"session", session.number},
                                 {"key", session.key_name},
                                 {"node", session.node},
                                 {"program", session.program},
                                 {"address", session.address},
                                 {"transport", session.transport},
                                 {"bytes", session.bytes},
                                 {"budgets", session.budgets},
                                 {"calls", session.calls},
                                 {"process", session.process},
                                 {"state", session.state},
                                 {"pieces", session.pieces},
                                 {"recalled", session.recalled},
                                 {"moved", session.moved},
                                 {"connected", session.connected != 0},
                                 {"heard_ms", session.heard_ms},
                                 {"left_ms", session.left_ms}});
    all["nodes"].push_back(std::move(one));
  }
  return all.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string nodeWatchHead() {
  return base::format("{:<8} {:<24} {:<10}{:>8}{:>8}{:>8}{:>10}{:>10}\n", "time", "node", "kind",
                      "used", "total", "free", "sessions", "moves");
}

std::string nodeWatchLine(const NodeSample& now, const NodeSample* before) {
  if (!now.told) return base::format("{:<8} {}\n", clockText(), base::printable(now.error));
  const status::Status& status = now.told->status;
  status::Tier sum;
  for (const auto& tier : status.tiers) {
    sum.total += tier.total;
    sum.used += tier.used;
    sum.free += tier.free;
  }
  return base::format("{:<8} {:<24} {:<10}{:>8}{:>8}{:>8}{:>10}{:>10}\n", clockText(), now.address,
                      status.kind, bytesText(static_cast<double>(sum.used)),
                      bytesText(static_cast<double>(sum.total)),
                      bytesText(static_cast<double>(sum.free)), openSessions(status),
                      rateText(movedRate(now, before, nullptr)));
}

}  // namespace olpager::tools
