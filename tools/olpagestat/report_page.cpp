// The page of --report: what is known as HTML, and the figures behind the plots as JSON (element
// `data`), which a script of the page draws with uPlot. All of it is in the page: its policy
// forbids the browser to ask for anything.

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/size.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/page_parts.h"
#include "tools/olpagestat/rails.h"
#include "tools/olpagestat/recording.h"
#include "tools/olpagestat/text.h"
#include "tools/olpagestat/why.h"

namespace olpager::tools {
namespace {

using nlohmann::ordered_json;
using pager::valueOf;

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else if (c == '"') {
      safe += "&quot;";
    } else {
      safe += c;
    }
  }
  return safe;
}

ordered_json orNull(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

// A series of the plots: what it is called there, and its value at a moment; null where there is
// none.
struct Series {
  const char* name;
  ordered_json (*value)(const Moment&);
};
struct Group {
  const char* key;
  bool rates;  // of the time since the moment before: the first one has none
  std::vector<Series> series;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"residency_bytes",
       false,
       {{"VRAM", [](const Moment& m) -> ordered_json { return m.figures.vram; }},
        {"host memory in place",
         [](const Moment& m) -> ordered_json { return m.figures.in_place; }},
        {"host memory", [](const Moment& m) -> ordered_json { return m.figures.host; }},
        {"remote", [](const Moment& m) -> ordered_json { return m.figures.remote; }}}},
      {"extents_per_second",
       true,
       {{"fetched on demand", [](const Moment& m) -> ordered_json { return m.figures.fetched; }},
        {"prefetched", [](const Moment& m) -> ordered_json { return m.figures.prefetched; }},
        {"evicted clean", [](const Moment& m) -> ordered_json { return m.figures.clean; }},
        {"evicted, written", [](const Moment& m) -> ordered_json { return m.figures.written; }}}},
      {"bytes_per_second",
       true,
       {{"in", [](const Moment& m) -> ordered_json { return m.figures.bytes_in; }},
        {"out", [](const Moment& m) -> ordered_json { return m.figures.bytes_out; }},
        {"from memservers", [](const Moment& m) -> ordered_json { return m.figures.remote_in; }},
        {"to memservers", [](const Moment& m) -> ordered_json { return m.figures.remote_out; }}}},
  };
  return all;
}

template <typename Value>
ordered_json overTime(const History& history, Value&& value) {
  ordered_json all = ordered_json::array();
  for (const Moment& moment : history.moments) all.push_back(value(moment));
  return all;
}

ordered_json waitsOf(const History& history) {
  std::vector<uint64_t> buckets(pager::kWaitBuckets);
  for (unsigned device = 0; device < history.last->devicesInUse(); device++) {
    for (unsigned i = 0; i < pager::kWaitBuckets; i++) {
      buckets[i] += valueOf(history.last->devices[device].fault_wait.buckets[i]) -
                    valueOf(history.first->devices[device].fault_wait.buckets[i]);
    }
  }
  return buckets;
}

// The data of a program's plots.
ordered_json dataOf(const History& history) {
  ordered_json one{{"pid", history.pid}, {"program", history.program}};
  one["settings"] = ordered_json::object();
  for (const auto& [name, value] : history.settings) one["settings"][name] = value;
  const double begun = history.moments.front().seconds;
  one["seconds"] = overTime(history, [&](const Moment& m) { return m.seconds - begun; });
  for (const Group& group : groups()) {
    ordered_json values;
    for (const Series& series : group.series) {
      values[series.name] = overTime(history, [&](const Moment& m) {
        return group.rates && &m == &history.moments.front() ? ordered_json() : series.value(m);
      });
    }
    one[group.key] = std::move(values);
  }
  one["vram_budget_bytes"] = overTime(history, [](const Moment& m) {
    return m.figures.vram_budget != 0 ? ordered_json(m.figures.vram_budget) : ordered_json();
  });
  one["hit_rate"] = overTime(history, [](const Moment& m) { return orNull(m.figures.hit_rate); });
  one["fault_wait_log2_ns"] = waitsOf(history);
  one["places"] = overTime(history, [](const Moment& m) {
    std::string row;
    for (const auto& cell : m.cells) row += static_cast<char>('0' + static_cast<int>(cell.place));
    return row;
  });
  const auto& cells = history.moments.back().cells;
  const auto address = [&](const Cell* cell) {
    return cell == nullptr ? ordered_json() : ordered_json(base::format("{:#x}", cell->address));
  };
  one["first_address"] = address(cells.empty() ? nullptr : &cells.front());
  one["last_address"] = address(cells.empty() ? nullptr : &cells.back());
  one["links"] = linksJson(*history.last);
  one["executors"] = ordered_json::array();
  for (unsigned i = 0; i < executorsOf(*history.last); i++) {
    one["executors"].push_back({{"gpunode", gpunodeOf(*history.last, i)},
                                {"owned_bytes", overTime(history, [&](const Moment& m) {
                                   return i < m.owned.size() ? ordered_json(m.owned[i])
                                                             : ordered_json();
                                 })}});
  }
  return one;
}

std::string sizeText(double bytes) { return base::formatSize(static_cast<uint64_t>(bytes)); }

// The costs of time, the worst first.
std::string findingsOf(const History& history) {
  const Findings all = findings(*history.last, history.run_seconds);
  std::string text = "<h3>Why it is slow</h3>\n";
  if (!all.found.empty()) {
    text += "<ol class=\"findings\">\n";
    for (const Finding& one : all.found) {
      text += base::format("<li data-finding=\"{}\"><b>{}</b>{}{}<p>{}</p><p>To do: {}.</p></li>\n",
                           escaped(one.id), escaped(one.title),
                           one.device ? base::format(", GPU {}", *one.device) : std::string(),
                           escaped(costText(one, all)), escaped(one.evidence), escaped(one.action));
    }
    text += "</ol>\n";
  } else if (all.measured && all.not_measured.empty()) {
    text +=
        "<p class=\"findings order\">In order: nothing that is measured costs the program "
        "time.</p>\n";
  }
  if (all.gpu) text += base::format("<p>{}</p>\n", escaped(gpuText(*all.gpu)));
  for (const std::string& what : all.not_measured)
    text += base::format("<p>Not measured: {}.</p>\n", escaped(what));
  return text;
}

std::string settingsTable(const History& history) {
  std::string rows;
  const auto row = [&](const std::string& name, const std::string& value) {
    rows += base::format("<tr><td class=\"name\">{}</td><td class=\"name\">{}</td></tr>\n",
                         escaped(name), escaped(value));
  };
  for (unsigned device = 0; device < history.last->devicesInUse(); device++) {
    row(base::format("VRAM budget of GPU {}", device),
        base::formatSize(valueOf(history.last->devices[device].vram_budget_bytes)));
  }
  if (const uint64_t limit = valueOf(history.last->host_limit_bytes); limit != 0)
    row("host RAM", "at most " + base::formatSize(limit));
  if (const uint64_t room = valueOf(history.last->memserver_bytes); room != 0)
    row("memservers", "room for " + base::formatSize(room));
  if (const uint64_t room = valueOf(history.last->disk.capacity_bytes); room != 0)
    row("disks", "room for " + base::formatSize(room));
  for (const auto& [name, value] : history.settings) row(name, value);
  if (rows.empty()) return "";
  return "<h3>Settings</h3>\n<div class=\"scroll\"><table class=\"settings\">\n" + rows +
         "</table></div>\n";
}

std::string summaryOf(const History& history, double seconds) {
  const auto whole = figuresOf(*history.last, history.first.get(), std::max(seconds, 1e-9));
  const auto percent = [](const std::optional<double>& share) {
    return share ? base::format("{:.1f} %", *share * 100) : std::string("-");
  };
  const auto wait = [](const std::optional<double>& ns) {
    return ns ? durationText(*ns) : std::string("-");
  };
  if (history.last->devicesInUse() == 0)
    return base::format("<p>{:.1f} s: {:.0f} launches.</p>\n", seconds, whole.launches * seconds);
  return base::format(
      "<p>{:.1f} s: {:.0f} launches, hit rate {}, {:.0f} extents fetched on demand, {:.0f} "
      "prefetched (accuracy {}), {:.0f} evicted clean, {:.0f} written; {} in, {} out, {} from "
      "memservers, {} to them; waits {} (median), {} (99 %).</p>\n",
      seconds, whole.launches * seconds, percent(whole.hit_rate), whole.fetched * seconds,
      whole.prefetched * seconds, percent(whole.accuracy), whole.clean * seconds,
      whole.written * seconds, sizeText(whole.bytes_in * seconds),
      sizeText(whole.bytes_out * seconds), sizeText(whole.remote_in * seconds),
      sizeText(whole.remote_out * seconds), wait(whole.wait_p50_ns), wait(whole.wait_p99_ns));
}

std::string hotTable(const History& history) {
  if (history.hot.empty()) return "";
  std::string text =
      "<h3>Allocations that moved most</h3>\n<div class=\"scroll\"><table>\n"
      "<tr><th>address</th><th>size</th><th>GPU</th><th>fetched</th><th>evicted</th><th>in</th>"
      "<th>out</th></tr>\n";
  for (const auto& hot : history.hot) {
    text += base::format(
        "<tr><td>{:#x}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "</tr>\n",
        hot.base, base::formatSize(hot.bytes), hot.device, hot.fetched, hot.evicted,
        base::formatSize(hot.bytes_in), base::formatSize(hot.bytes_out));
  }
  return text + "</table></div>\n";
}

std::string linksOverview(const History& history) {
  const std::vector<LinkFigures> links = linksOf(*history.last);
  if (links.empty()) return "";
  std::string text =
      "<h3>Links</h3>\n<div class=\"scroll\"><table class=\"links\">\n"
      "<tr><th>to</th><th>what</th><th>transport</th><th>sent</th><th>received</th>"
      "<th>of that pinned memory</th><th>rails</th></tr>\n";
  for (const LinkFigures& link : links) {
    std::string rails;
    for (const LinkFigures::Rail& rail : link.rails)
      rails += base::format("{}{} port {} {} {}", rails.empty() ? "" : ", ",
                            printableName(rail.device.c_str()), rail.port,
                            rail.in_use ? "in use" : "set aside", base::formatSize(rail.bytes));
    text += base::format(
        "<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} sent, {} "
        "received</td><td>{}</td></tr>\n",
        escaped(printableName(link.peer.c_str())), link.to,
        link.transport.empty() ? "-" : link.transport, base::formatSize(link.sent),
        base::formatSize(link.received), base::formatSize(link.pinned_sent),
        base::formatSize(link.pinned_received), rails.empty() ? "-" : escaped(rails));
  }
  return text + "</table></div>\n";
}

std::string section(const History& history, size_t index) {
  const double seconds = history.moments.back().seconds - history.moments.front().seconds;
  std::string text = base::format(
      "<section class=\"program\" data-index=\"{}\">\n<h2>{} <small>pid {}</small></h2>\n", index,
      escaped(history.program), history.pid);
  text += findingsOf(history) + summaryOf(history, seconds);
  const auto plot = [&](const char* heading, const char* name) {
    text +=
        base::format("<h3>{}</h3>\n<div class=\"plot\" data-plot=\"{}\"></div>\n", heading, name);
  };
  if (history.last->devicesInUse() != 0) {
    plot("Residency over time", "residency");
    plot("Bytes moved a second, by path", "bytes");
    plot("Extents moved a second, by path", "extents");
    plot("Launches that found all in place", "hits");
    plot("Fault latency", "waits");
    plot("The address space over time", "map");
  }
  if (executorsOf(*history.last) != 0) plot("Pages that each executor owns", "executors");
  return text + hotTable(history) + linksOverview(history) + settingsTable(history) +
         "</section>\n";
}

}  // namespace

std::string reportPage(const std::vector<History>& histories, const std::string& host,
                       const std::string& when) {
  ordered_json data = ordered_json::array();
  std::string body;
  for (const auto& history : histories) {
    if (history.moments.empty()) continue;
    body += section(history, data.size());
    data.push_back(dataOf(history));
  }
  if (body.empty()) body = "<p>No program used a GPU under olpager meanwhile.</p>\n";
  std::string json = data.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;)
    json.replace(at, 1, "\\u003c");
  std::string text = base::format(
      R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>olpagestat: {0}, {1}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<style>)",
      escaped(host), escaped(when));
  const auto add = [&](std::string_view part) { text += part; };
  add(page::uplotStyle());
  add(page::style());
  text += base::format(
      R"(</style></head><body>
<header><h1>olpagestat</h1><p>{}, {}</p><button id="theme" type="button">dark or light</button></header>
<p class="dim">Point at a plot for its figures; drag to zoom, click twice to see all again.</p>
<noscript><p>The plots need scripts, which this browser does not run. All they need is in this page.</p></noscript>
)",
      escaped(host), escaped(when));
  text += body;
  text += R"(<script type="application/json" id="data">)" + json + "</script>\n<script>/*!\n";
  add(page::uplotLicence());
  text += "*/\n";
  add(page::uplotScript());
  text += "</script>\n<script>\n";
  add(page::script());
  text += "</script>\n</body></html>\n";
  return text;
}

}  // namespace olpager::tools
