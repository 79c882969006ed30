#include "tools/olpagestat/rails.h"

#include <cstring>
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

nlohmann::ordered_json linksJson(const RdmaCounters& rdma) {
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const LinkCounters& link : rdma.links) {
    nlohmann::ordered_json rails = nlohmann::ordered_json::array();
    for (const RailCounters& rail : link.rails) {
      if (!isShown(rail)) continue;
      rails.push_back({{"device", nameOf(rail.device)},
                       {"port", valueOf(rail.port)},
                       {"state", stateOf(rail) == RailState::kInUse ? "in_use" : "set_aside"},
                       {"bytes", valueOf(rail.bytes)}});
    }
    if (!rails.empty()) links.push_back({{"peer", nameOf(link.peer)}, {"rails", std::move(rails)}});
  }
  return links;
}

}  // namespace olpager::tools
