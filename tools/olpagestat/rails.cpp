#include "tools/olpagestat/rails.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/format.h"
#include "base/size.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using base::formatSize;
using pager::LinkCounters;
using pager::RailCounters;
using pager::RailState;
using pager::RdmaCounters;
using pager::valueOf;

// A name out of a copy, which may not end.
template <size_t size>
std::string nameOf(const char (&name)[size]) {
  return std::string(name, strnlen(name, size));
}

RailState stateOf(const RailCounters& rail) { return static_cast<RailState>(valueOf(rail.state)); }

bool isShown(const RailCounters& rail) { return !pager::textOf(stateOf(rail)).empty(); }

}  // namespace

std::vector<std::string> railLines(const RdmaCounters& rdma) {
  std::vector<std::string> lines;
  for (const LinkCounters& link : rdma.links) {
    std::string text;
    for (const RailCounters& rail : link.rails) {
      if (!isShown(rail)) continue;
      text += base::format("{} {} port {} {} {}", text.empty() ? ":" : ",",
                           printableName(nameOf(rail.device).c_str()), valueOf(rail.port),
                           pager::textOf(stateOf(rail)), formatSize(valueOf(rail.bytes)));
    }
    if (!text.empty()) lines.push_back(printableName(nameOf(link.peer).c_str()) + text);
  }
  return lines;
}

std::string railsTable(const RdmaCounters& rdma) {
  std::string text;
  const auto add = [&](const char* label, const std::string& what) {
    text += base::format("  {:<16}{}\n", label, what);
  };
  for (const std::string& line : railLines(rdma)) add("rails", line);
  const uint64_t frames_in = valueOf(rdma.frames_in), frames_out = valueOf(rdma.frames_out),
                 direct_in = valueOf(rdma.direct_in), direct_out = valueOf(rdma.direct_out);
  if (frames_in + frames_out + direct_in + direct_out != 0)
    add("over RDMA", base::format("{} in, {} out by host memory; {} in, {} out by VRAM alone",
                                  formatSize(frames_in), formatSize(frames_out),
                                  formatSize(direct_in), formatSize(direct_out)));
  if (const uint64_t refused = valueOf(rdma.refused_bytes); refused != 0)
    add("not for cards", formatSize(refused) + " of VRAM, from where pages go by host memory");
  return text;
}

namespace {

template <typename Rails>
std::vector<LinkFigures::Rail> railsOf(const Rails& rails) {
  std::vector<LinkFigures::Rail> found;
  for (const RailCounters& rail : rails) {
    if (isShown(rail))
      found.push_back({nameOf(rail.device), valueOf(rail.port), stateOf(rail) == RailState::kInUse,
                       valueOf(rail.bytes)});
  }
  return found;
}

std::string transportOf(uint64_t number) {
  constexpr std::string_view kTexts[] = {"", "tcp", "shm", "verbs"};
  return std::string(number < std::size(kTexts) ? kTexts[number] : kTexts[0]);
}

std::string textOf(const LinkFigures& link) {
  std::string text =
      base::format("{} ({}{}{}): {} sent, {} received", printableName(link.peer.c_str()), link.to,
                   link.transport.empty() ? "" : ", ", link.transport, formatSize(link.sent),
                   formatSize(link.received));
  if (link.pinned_sent + link.pinned_received != 0)
    text += base::format("; of that {} and {} of pinned memory", formatSize(link.pinned_sent),
                         formatSize(link.pinned_received));
  for (const LinkFigures::Rail& rail : link.rails)
    text += base::format(", {} port {} {} {}", printableName(rail.device.c_str()), rail.port,
                         rail.in_use ? "in use" : "set aside", formatSize(rail.bytes));
  return text;
}

}  // namespace

std::vector<LinkFigures> linksOf(const pager::Counters& counters) {
  std::vector<LinkFigures> found;
  for (size_t i = 0; i < std::size(counters.rdma.links); ++i) {
    const LinkCounters& link = counters.rdma.links[i];
    LinkFigures one{.number = i,
                    .peer = nameOf(link.peer),
                    .to = "memserver",
                    .transport = "",
                    .rails = railsOf(link.rails)};
    if (i < std::size(counters.why.memservers)) {
      one.sent = valueOf(counters.why.memservers[i].out_bytes);
      one.received = valueOf(counters.why.memservers[i].in_bytes);
    }
    if (!one.rails.empty()) one.transport = "verbs";
    if (one.sent + one.received != 0 || !one.rails.empty()) found.push_back(std::move(one));
  }
  for (size_t i = 0; i < std::size(counters.links.links); ++i) {
    const status::LinkBytes& link = counters.links.links[i];
    const std::string_view to = status::textOf(static_cast<status::LinkEnd>(valueOf(link.end)));
    if (to.empty()) continue;
    found.push_back({.number = i,
                     .peer = nameOf(link.peer),
                     .to = std::string(to),
                     .transport = transportOf(valueOf(link.transport)),
                     .sent = valueOf(link.sent),
                     .received = valueOf(link.received),
                     .pinned_sent = valueOf(link.pinned_sent),
                     .pinned_received = valueOf(link.pinned_received),
                     .rails = railsOf(link.rails)});
  }
  return found;
}

std::vector<std::string> linkLines(const pager::Counters& counters) {
  std::vector<std::string> lines;
  for (const LinkFigures& link : linksOf(counters))
    if (link.to != "memserver") lines.push_back(textOf(link));
  return lines;
}

std::string linksTable(const pager::Counters& counters) {
  std::string text;
  for (const LinkFigures& link : linksOf(counters))
    if (link.sent + link.received != 0) text += base::format("  {:<16}{}\n", "link", textOf(link));
  return text;
}

bool isForwarded(const pager::Counters& counters) {
  return std::any_of(std::begin(counters.links.links), std::end(counters.links.links),
                     [](const status::LinkBytes& link) {
                       return valueOf(link.end) == static_cast<uint64_t>(status::LinkEnd::kGpunode);
                     });
}

nlohmann::ordered_json linksJson(const pager::Counters& counters) {
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const LinkFigures& link : linksOf(counters)) {
    nlohmann::ordered_json rails = nlohmann::ordered_json::array();
    for (const LinkFigures::Rail& rail : link.rails)
      rails.push_back({{"device", rail.device},
                       {"port", rail.port},
                       {"state", rail.in_use ? "in_use" : "set_aside"},
                       {"bytes", rail.bytes}});
    nlohmann::ordered_json one{{"peer", link.peer},
                               {"to", link.to},
                               {"transport", link.transport},
                               {"sent_bytes", link.sent},
                               {"received_bytes", link.received},
                               {"pinned_sent_bytes", link.pinned_sent},
                               {"pinned_received_bytes", link.pinned_received},
                               {"rails", std::move(rails)}};
    if (link.transport.empty()) one["transport"] = nullptr;
    links.push_back(std::move(one));
  }
  return links;
}

}  // namespace olpager::tools
