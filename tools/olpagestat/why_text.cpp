// Findings, for people and as JSON.
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "tools/olpagestat/report.h"
#include "tools/olpagestat/text.h"
#include "tools/olpagestat/why.h"

namespace olpager::tools {
namespace {

constexpr size_t kWidth = 96;

// In lines of at most kWidth columns; `first` stands before the first one, as many blanks before
// the others.
std::string wrapped(const std::string& first, const std::string& words) {
  std::string out, line = first;
  const std::string indent(first.size(), ' ');
  bool begins = true;
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    const std::string word = words.substr(at, end - at);
    if (!begins && line.size() + 1 + word.size() > kWidth) {
      out += line + '\n';
      line = indent;
      begins = true;
    }
    line += (begins ? "" : " ") + word;
    begins = false;
    at = end + 1;
  }
  return out + line + '\n';
}

}  // namespace

std::string costText(const Finding& finding, const Findings& all) {
  if (!finding.seconds) return ", at a cost that is not measured";
  std::string text = finding.estimated ? ", about " : ", ";
  text += *finding.seconds >= 1 ? base::format("{:.1f} s", *finding.seconds)
                                : base::format("{:.0f} ms", *finding.seconds * 1000);
  if (all.run_seconds && *all.run_seconds > 0)
    text += base::format(", {:.0f}% of the run", 100 * *finding.seconds / *all.run_seconds);
  return text;
}

std::string gpuText(const Findings::Gpu& gpu) {
  std::string text;
  const auto part = [&](const char* name, double seconds) {
    if (seconds <= 0) return;
    text += base::format("{}{} {:.0f}%", text.empty() ? "" : ", ", name, 100 * seconds / gpu.all);
  };
  part("busy", gpu.busy);
  part("waits for pages", gpu.pages);
  part("waits for the host", gpu.host);
  part("hop", gpu.hop);
  part("idle, unknown why", gpu.unknown);
  return base::format("The GPU, in {:.1f} s while not all was in VRAM: {}.", gpu.all, text);
}

namespace {

std::string processText(const pager::CountersSnapshot& process) {
  const Findings all = findings(process);
  const auto& counters = *process.counters;
  std::string text = base::format(
      "{}  pid {}  {}\n", printableName(counters.program), counters.pid,
      all.run_seconds ? base::format("{:.1f} s", *all.run_seconds) : std::string("killed"));
  if (all.found.empty() && all.measured && all.not_measured.empty())
    text += "  In order: nothing that is measured costs the program time.\n";
  unsigned number = 0;
  for (const Finding& finding : all.found) {
    const std::string head = base::format("  {}. ", ++number);
    const std::string blanks(head.size(), ' ');
    text += wrapped(head, base::format("{}{}{}", finding.title,
                                       finding.device ? base::format(", GPU {}", *finding.device)
                                                      : std::string(),
                                       costText(finding, all)));
    text += wrapped(blanks, finding.evidence);
    text += wrapped(blanks + "To do: ", finding.action + ".");
  }
  if (all.gpu) text += wrapped("  ", gpuText(*all.gpu));
  for (const std::string& what : all.not_measured) text += wrapped("  Not measured: ", what);
  return text;
}

}  // namespace

std::string whyText(const pager::CountersReading& reading) {
  std::string text;
  for (const auto& process : reading.processes) {
    if (!text.empty()) text += '\n';
    text += processText(process);
  }
  return text;
}

std::string whyJson(const pager::CountersReading& reading) {
  using Json = nlohmann::ordered_json;
  Json processes = Json::array();
  for (const auto& process : reading.processes) {
    const Findings all = findings(process);
    Json found = Json::array();
    for (const Finding& finding : all.found)
      found.push_back({{"id", finding.id},
                       {"device", finding.device ? Json(*finding.device) : Json()},
                       {"seconds", finding.seconds ? Json(*finding.seconds) : Json()},
                       {"estimated", finding.estimated},
                       {"title", finding.title},
                       {"evidence", finding.evidence},
                       {"action", finding.action}});
    Json gpu;
    if (all.gpu)
      gpu = {{"seconds", all.gpu->all}, {"busy", all.gpu->busy}, {"pages", all.gpu->pages},
             {"host", all.gpu->host},   {"hop", all.gpu->hop},   {"unknown", all.gpu->unknown}};
    processes.push_back({{"pid", process.counters->pid},
                         {"program", process.counters->program},
                         {"seconds", all.run_seconds ? Json(*all.run_seconds) : Json()},
                         {"findings", std::move(found)},
                         {"gpu", std::move(gpu)},
                         {"not_measured", all.not_measured}});
  }
  const Json whole = {
      {"version", 1}, {"processes", std::move(processes)}, {"notes", reading.notes}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace olpager::tools
