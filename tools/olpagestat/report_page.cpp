// The page of --report: HTML with SVG in it, no script, nothing from elsewhere. The figures behind
// the plots are in it once more as JSON (element `data`), for whoever wants to draw them otherwise.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/size.h"
#include "tools/olpagestat/recording.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using nlohmann::ordered_json;
using pager::Place;
using pager::valueOf;

constexpr double kWidth = 900, kHeight = 220, kLeft = 90, kBottom = 28;

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

struct Series {
  const char* name;
  const char* colour;
  std::vector<double> values;
};

std::string frame(double height, const std::string& inside) {
  return base::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\">\n<rect x=\"{}\" y=\"0\" width=\"{}\" height=\"{}\" "
      "class=\"frame\"/>\n{}</svg>\n",
      kWidth, height + kBottom, kLeft, kWidth - kLeft, height, inside);
}

std::string legend(const std::vector<Series>& series) {
  std::string text = "<p class=\"legend\">";
  for (const auto& one : series) {
    text += base::format("<span style=\"background:{}\"></span>{} ", one.colour, escaped(one.name));
  }
  return text + "</p>\n";
}

std::string timeAxis(double seconds, double height) {
  std::string text;
  for (int i = 0; i <= 4; i++) {
    text += base::format("<text x=\"{:.1f}\" y=\"{}\" class=\"{}\">{:.3g} s</text>\n",
                         kLeft + (kWidth - kLeft) * i / 4, height + 18,
                         i == 0   ? "start"
                         : i == 4 ? "end"
                                  : "middle",
                         seconds * i / 4);
  }
  return text;
}

template <typename Text>
std::string valueAxis(double most, Text&& text) {
  std::string all;
  for (int i = 0; i <= 2; i++) {
    all += base::format("<text x=\"{}\" y=\"{:.1f}\" class=\"end\">{}</text>\n", kLeft - 6,
                        i == 2 ? 12.0 : kHeight - kHeight * i / 2, text(most * i / 2));
  }
  return all;
}

double xAt(double seconds, double span) {
  return kLeft + (span > 0 ? seconds / span : 0) * (kWidth - kLeft);
}

// Values over time; stacked: each on top of those before.
template <typename Text>
std::string plot(const std::vector<double>& times, const std::vector<Series>& series, bool stacked,
                 Text&& text) {
  if (times.size() < 2) return "<p>too short for a plot</p>\n";
  const double span = times.back();
  double most = 0;
  std::vector<double> below(times.size(), 0);
  for (size_t i = 0; i < times.size(); i++) {
    double sum = 0;
    for (const auto& one : series)
      sum = stacked ? sum + one.values[i] : std::max(sum, one.values[i]);
    most = std::max(most, sum);
  }
  if (most <= 0) most = 1;
  std::string inside;
  const auto y = [&](double value) { return kHeight - value / most * kHeight; };
  for (const auto& one : series) {
    std::string points;
    for (size_t i = 0; i < times.size(); i++) {
      points += base::format("{:.1f},{:.1f} ", xAt(times[i], span),
                             y(one.values[i] + (stacked ? below[i] : 0)));
    }
    if (stacked) {
      for (size_t i = times.size(); i-- != 0;)
        points += base::format("{:.1f},{:.1f} ", xAt(times[i], span), y(below[i]));
      for (size_t i = 0; i < times.size(); i++) below[i] += one.values[i];
      inside += base::format("<polygon fill=\"{}\" points=\"{}\"/>\n", one.colour, points);
    } else {
      inside += base::format(
          "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"{}\" points=\"{}\"/>\n",
          one.colour, points);
    }
  }
  return frame(kHeight, inside + timeAxis(span, kHeight) + valueAxis(most, text)) + legend(series);
}

const char* colourOf(Place place) {
  switch (place) {
    case Place::kVram:
    case Place::kLeaving:
      return "#2a9d5c";
    case Place::kInPlace:
      return "#35b0c0";
    case Place::kHost:
      return "#3b6fd4";
    case Place::kRemote:
      return "#9b51c9";
    case Place::kIn:
      return "#e0b020";
    case Place::kOut:
    case Place::kMoving:
      return "#d0502f";
    default:
      return "#c8c8c8";
  }
}

// Time to the right, addresses downwards; a run of the same colour is one rectangle.
std::string heatMap(const History& history, const std::vector<double>& times) {
  const double span = times.empty() ? 0 : times.back();
  size_t rows = 0;
  for (const auto& moment : history.moments) rows = std::max(rows, moment.cells.size());
  if (rows == 0 || times.size() < 2) return "<p>nothing was mapped meanwhile</p>\n";
  const double height = 384;
  std::string inside;
  for (size_t i = 0; i + 1 < times.size(); i++) {
    const auto& cells = history.moments[i].cells;
    const double x = xAt(times[i], span), width = xAt(times[i + 1], span) - x;
    for (size_t begin = 0; begin < cells.size();) {
      size_t end = begin;
      while (end < cells.size() &&
             std::string_view(colourOf(cells[end].place)) == colourOf(cells[begin].place))
        end++;
      const double scale = height / static_cast<double>(cells.size());
      inside += base::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x,
          static_cast<double>(begin) * scale, width + 0.3, static_cast<double>(end - begin) * scale,
          colourOf(cells[begin].place));
      begin = end;
    }
  }
  const auto& last = history.moments.back();
  if (!last.cells.empty()) {
    inside += base::format(
        "<text x=\"{}\" y=\"12\" class=\"end\">{:#x}</text>\n<text x=\"{}\" y=\"{}\" "
        "class=\"end\">{:#x}</text>\n",
        kLeft - 6, last.cells.front().address, kLeft - 6, height, last.cells.back().address);
  }
  return frame(height, inside + timeAxis(span, height)) +
         legend({{"VRAM", colourOf(Place::kVram), {}},
                 {"host memory in place", colourOf(Place::kInPlace), {}},
                 {"host memory", colourOf(Place::kHost), {}},
                 {"remote", colourOf(Place::kRemote), {}},
                 {"coming in", colourOf(Place::kIn), {}},
                 {"going out", colourOf(Place::kOut), {}},
                 {"empty", colourOf(Place::kEmpty), {}}});
}

std::vector<uint64_t> waitsOf(const History& history) {
  std::vector<uint64_t> buckets(pager::kWaitBuckets);
  for (unsigned device = 0; device < devicesOf(*history.last); device++) {
    for (unsigned i = 0; i < pager::kWaitBuckets; i++) {
      buckets[i] += valueOf(history.last->devices[device].fault_wait.buckets[i]) -
                    valueOf(history.first->devices[device].fault_wait.buckets[i]);
    }
  }
  return buckets;
}

std::string waitPlot(const std::vector<uint64_t>& buckets) {
  size_t first = buckets.size(), last = 0;
  uint64_t most = 0;
  for (size_t i = 0; i < buckets.size(); i++) {
    if (buckets[i] == 0) continue;
    first = std::min(first, i);
    last = i;
    most = std::max(most, buckets[i]);
  }
  if (most == 0) return "<p>no launch waited</p>\n";
  const double width = (kWidth - kLeft) / static_cast<double>(last - first + 1);
  std::string inside;
  for (size_t i = first; i <= last; i++) {
    const double height = static_cast<double>(buckets[i]) / static_cast<double>(most) * kHeight;
    const double x = kLeft + static_cast<double>(i - first) * width;
    inside += base::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"#3b6fd4\"><title>{} waits of {} to "
        "{}</title></rect>\n"
        "<text x=\"{:.1f}\" y=\"{}\" class=\"middle\">{}</text>\n",
        x + 1, kHeight - height, std::max(1.0, width - 2), height, buckets[i],
        durationText(std::ldexp(1, static_cast<int>(i))),
        durationText(std::ldexp(1, static_cast<int>(i) + 1)), x + width / 2, kHeight + 18,
        durationText(std::ldexp(1, static_cast<int>(i))));
  }
  return frame(kHeight, inside + valueAxis(static_cast<double>(most), [](double value) {
                          return base::format("{:.0f}", value);
                        }));
}

std::string sizeText(double bytes) { return base::formatSize(static_cast<uint64_t>(bytes)); }

std::string section(const History& history, ordered_json& data) {
  std::vector<double> times;
  std::vector<Series> tiers{{"VRAM", colourOf(Place::kVram), {}},
                            {"host memory in place", colourOf(Place::kInPlace), {}},
                            {"host memory", colourOf(Place::kHost), {}},
                            {"remote", colourOf(Place::kRemote), {}}};
  std::vector<Series> paths{{"fetched on demand", "#d0502f", {}},
                            {"prefetched", "#e0b020", {}},
                            {"evicted clean", "#35b0c0", {}},
                            {"evicted, written", "#9b51c9", {}}};
  std::vector<Series> bytes{{"in", "#2a9d5c", {}},
                            {"out", "#9b51c9", {}},
                            {"from memservers", "#e0b020", {}},
                            {"to memservers", "#d0502f", {}}};
  for (const auto& moment : history.moments) {
    times.push_back(moment.seconds - history.moments.front().seconds);
    const Figures& f = moment.figures;
    const auto add = [](std::vector<Series>& series, std::initializer_list<double> values) {
      for (size_t i = 0; i < values.size(); i++) series[i].values.push_back(values.begin()[i]);
    };
    add(tiers, {static_cast<double>(f.vram), static_cast<double>(f.in_place),
                static_cast<double>(f.host), static_cast<double>(f.remote)});
    add(paths, {f.fetched, f.prefetched, f.clean, f.written});
    add(bytes, {f.bytes_in, f.bytes_out, f.remote_in, f.remote_out});
  }
  const auto waits = waitsOf(history);
  ordered_json one{{"pid", history.pid}, {"program", history.program}, {"seconds", times}};
  for (const auto* group : {&tiers, &paths, &bytes}) {
    ordered_json values;
    for (const auto& series : *group) values[series.name] = series.values;
    one[group == &tiers   ? "residency_bytes"
        : group == &paths ? "extents_per_second"
                          : "bytes_per_second"] = values;
  }
  one["fault_wait_log2_ns"] = waits;
  ordered_json heat = ordered_json::array();
  for (const auto& moment : history.moments) {
    std::string row;
    for (const auto& cell : moment.cells)
      row += static_cast<char>('0' + static_cast<int>(cell.place));
    heat.push_back(row);
  }
  one["places"] = heat;
  data.push_back(one);

  std::string text =
      base::format("<h2>{} <small>pid {}</small></h2>\n", escaped(history.program), history.pid);
  const auto whole = figuresOf(*history.last, history.first.get(),
                               times.empty() ? 0 : std::max(times.back(), 1e-9));
  const double seconds = times.empty() ? 0 : times.back();
  text += base::format(
      "<p>{:.1f} s: {:.0f} launches, hit rate {}, {:.0f} extents fetched on demand, {:.0f} "
      "prefetched (accuracy {}), "
      "{:.0f} "
      "evicted clean, {:.0f} written; {} in, {} out, {} from memservers, {} to them; waits {} "
      "(median), {} (99 "
      "%).</p>\n",
      seconds, whole.launches * seconds,
      whole.hit_rate ? base::format("{:.1f} %", *whole.hit_rate * 100) : "-",
      whole.fetched * seconds, whole.prefetched * seconds,
      whole.accuracy ? base::format("{:.1f} %", *whole.accuracy * 100) : "-", whole.clean * seconds,
      whole.written * seconds, sizeText(whole.bytes_in * seconds),
      sizeText(whole.bytes_out * seconds), sizeText(whole.remote_in * seconds),
      sizeText(whole.remote_out * seconds),
      whole.wait_p50_ns ? durationText(*whole.wait_p50_ns) : "-",
      whole.wait_p99_ns ? durationText(*whole.wait_p99_ns) : "-");
  text += "<h3>Residency over time</h3>\n" + plot(times, tiers, true, sizeText);
  text += "<h3>Extents moved a second, by path</h3>\n" +
          plot(times, paths, false, [](double value) { return base::format("{:.4g}", value); });
  text += "<h3>Bytes moved a second, by path</h3>\n" + plot(times, bytes, false, sizeText);
  text += "<h3>Fault latency</h3>\n" + waitPlot(waits);
  text += "<h3>The address space over time</h3>\n" + heatMap(history, times);
  if (!history.hot.empty()) {
    text +=
        "<h3>Allocations that moved "
        "most</h3>\n<table><tr><th>address<th>size<th>GPU<th>fetched<th>evicted<th>in<th>out</"
        "tr>\n";
    for (const auto& hot : history.hot) {
      text += base::format("<tr><td>{:#x}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>\n", hot.base,
                           base::formatSize(hot.bytes), hot.device, hot.fetched, hot.evicted,
                           base::formatSize(hot.bytes_in), base::formatSize(hot.bytes_out));
    }
    text += "</table>\n";
  }
  return text;
}

}  // namespace

std::string reportPage(const std::vector<History>& histories, const std::string& host,
                       const std::string& when) {
  ordered_json data = ordered_json::array();
  std::string body;
  for (const auto& history : histories) {
    if (!history.moments.empty()) body += section(history, data);
  }
  if (body.empty()) body = "<p>No program used a GPU under olpager meanwhile.</p>\n";
  std::string json = data.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;)
    json.replace(at, 1, "\\u003c");
  return base::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>olpagestat: {0}, {1}</title>
<style>
body {{ font: 14px sans-serif; max-width: 920px; margin: 2em auto; padding: 0 1em; }}
svg {{ width: 100%; height: auto; font-size: 11px; }}
.frame {{ fill: #f6f6f6; stroke: #bbb; }}
.start {{ text-anchor: start; }} .middle {{ text-anchor: middle; }} .end {{ text-anchor: end; }}
.legend span {{ display: inline-block; width: 1em; height: 1em; margin: 0 .4em 0 1em; vertical-align: text-bottom; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd; }}
</style></head><body>
<h1>olpagestat</h1>
<p>{0}, {1}</p>
{2}<script type="application/json" id="data">{3}</script>
</body></html>
)",
                      escaped(host), escaped(when), body, json);
}

}  // namespace olpager::tools
