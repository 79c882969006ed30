// Long: the tables of one screen share columns, keys and history.
#include "tools/olpagestat/screen.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <ctime>
#include <utility>

#include "base/format.h"
#include "base/machine_memory.h"
#include "base/size.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/rails.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using base::formatSize;
using pager::Place;
using pager::valueOf;

constexpr size_t kNodeLines = 5;  // of each node that is asked over the network

const char* sortName(SortBy sort) {
  constexpr const char* kNames[kSorts] = {"traffic", "faults", "VRAM",     "pid",      "program",
                                          "host",    "remote", "launches", "hit rate", "waits"};
  return kNames[static_cast<size_t>(sort)];
}

std::string countText(double count) {
  if (count >= 1e7) return base::format("{:.0f}M", count / 1e6);
  if (count >= 1e5) return base::format("{:.0f}k", count / 1e3);
  return base::format("{:.{}f}", count, count >= 9.95 || count == 0 ? 0 : 1);
}

std::string shareText(const std::optional<double>& share) {
  return share ? base::format("{:.1f}", *share * 100) : "-";
}
std::string waitText(const std::optional<double>& wait) { return wait ? durationText(*wait) : "-"; }

std::string bytesOf(uint64_t bytes) { return bytesText(static_cast<double>(bytes)); }

// A figure of a process, on the screen and in a line of --watch.
struct Column {
  const char* name;
  size_t width;
  unsigned rank;  // where there is no room for all, the highest go first
  bool remote;    // nothing without memservers
  std::string (*text)(const Figures&);
};
constexpr Column kColumns[] = {
    {"VRAM", 7, 0, false, [](const Figures& f) { return bytesOf(f.vram); }},
    {"HOST", 7, 1, false, [](const Figures& f) { return bytesOf(f.host); }},
    {"PLACE", 7, 16, false, [](const Figures& f) { return bytesOf(f.in_place); }},
    {"REMOTE", 7, 2, true, [](const Figures& f) { return bytesOf(f.remote); }},
    {"LAUNCH", 8, 10, false, [](const Figures& f) { return countText(f.launches); }},
    {"HIT%", 6, 7, false, [](const Figures& f) { return shareText(f.hit_rate); }},
    {"FAULT", 8, 3, false, [](const Figures& f) { return countText(f.faults); }},
    {"PREFET", 8, 13, false, [](const Figures& f) { return countText(f.prefetched); }},
    {"CLEAN", 8, 15, false, [](const Figures& f) { return countText(f.clean); }},
    {"WRITTEN", 8, 14, false, [](const Figures& f) { return countText(f.written); }},
    {"IN/s", 8, 4, false, [](const Figures& f) { return bytesText(f.bytes_in); }},
    {"OUT/s", 8, 5, false, [](const Figures& f) { return bytesText(f.bytes_out); }},
    {"R-IN/s", 8, 8, true, [](const Figures& f) { return bytesText(f.remote_in); }},
    {"R-OUT/s", 8, 9, true, [](const Figures& f) { return bytesText(f.remote_out); }},
    {"ACC%", 6, 12, false, [](const Figures& f) { return shareText(f.accuracy); }},
    {"WAIT50", 8, 11, false, [](const Figures& f) { return waitText(f.wait_p50_ns); }},
    {"WAIT99", 8, 6, false, [](const Figures& f) { return waitText(f.wait_p99_ns); }},
};
constexpr size_t kNameWidth = 25;  // process and program, before the columns

// Those for which a terminal has room. Those of memservers give way to all others where there are
// none.
std::vector<const Column*> columnsFor(size_t width, bool memservers) {
  std::vector<const Column*> all;
  size_t sum = kNameWidth;
  for (const Column& column : kColumns) {
    all.push_back(&column);
    sum += column.width;
  }
  const auto order = [&](const Column* column) {
    return std::pair(column->remote && !memservers, column->rank);
  };
  while (sum > width && !all.empty()) {
    const auto last = std::max_element(
        all.begin(), all.end(), [&](const auto* a, const auto* b) { return order(a) < order(b); });
    sum -= (*last)->width;
    all.erase(last);
  }
  return all;
}

constexpr size_t kProgramWidth = 16;
constexpr size_t kMostProgramWidth = 48;

// The width of the column of programs, where all others have their room.
size_t programWidth(size_t width, const std::vector<const Column*>& columns) {
  size_t sum = kNameWidth;
  for (const Column* column : columns) sum += column->width;
  if (columns.size() < std::size(kColumns) || sum >= width) return kProgramWidth;
  return std::min(kMostProgramWidth, kProgramWidth + width - sum);
}

std::string headText(const std::vector<const Column*>& columns, size_t program) {
  std::string text = base::format("{:>8} {:<{}}", "PID", "PROGRAM", program);
  for (const Column* column : columns) text += base::format("{:>{}}", column->name, column->width);
  return text;
}

std::string rowText(const pager::Counters& counters, const Figures& figures,
                    const std::vector<const Column*>& columns, size_t program) {
  std::string text = base::format("{:>8} {:<{}}", counters.pid,
                                  printableName(counters.program).substr(0, program - 1), program);
  for (const Column* column : columns)
    text += base::format("{:>{}}", column->text(figures), column->width);
  return text;
}

struct Row {
  const pager::CountersSnapshot* process;
  Figures figures;
};

Figures since(const pager::CountersSnapshot& process, const Sample& now, const Sample* before,
              const DeviceChoice& devices = {}) {
  const auto* then = before != nullptr ? find(*before, keyOf(process)) : nullptr;
  return figuresOf(*process.counters, then != nullptr ? then->counters.get() : nullptr,
                   before != nullptr ? now.seconds - before->seconds : 0, devices);
}

bool isMeant(const std::string& program, uint32_t pid, const std::string& filter) {
  const auto lower = [](std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  return lower(program).find(lower(filter)) != std::string::npos ||
         std::to_string(pid).find(filter) != std::string::npos;
}

// Programs that have nothing to be counted here.
std::vector<const Forwarded*> forwardedOf(const Sample& now, const View& view) {
  std::vector<const Forwarded*> found;
  if (!now.forwarded) return found;
  for (const Forwarded& one : *now.forwarded)
    if (isMeant(one.program, one.pid, view.filter)) found.push_back(&one);
  return found;
}

// The value by which rows are sorted: the greatest first. Unmeasured values come last.
double weightOf(const Figures& f, SortBy sort) {
  switch (sort) {
    case SortBy::kTraffic:
      return f.traffic();
    case SortBy::kFaults:
      return f.faults;
    case SortBy::kVram:
      return static_cast<double>(f.vram);
    case SortBy::kHost:
      return static_cast<double>(f.host);
    case SortBy::kRemote:
      return static_cast<double>(f.remote);
    case SortBy::kLaunches:
      return f.launches;
    case SortBy::kHitRate:
      return f.hit_rate.value_or(-1);
    case SortBy::kWaits:
      return f.wait_p99_ns.value_or(-1);
    case SortBy::kPid:
    case SortBy::kProgram:
      break;
  }
  return 0;
}

std::vector<Row> rowsOf(const Sample& now, const Sample* before, const View& view) {
  std::vector<Row> rows;
  for (const auto& process : now.reading.processes)
    if (isMeant(printableName(process.counters->program), process.counters->pid, view.filter))
      rows.push_back({&process, since(process, now, before, view.devices)});
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    const auto& first = view.reversed ? b : a;
    const auto& second = view.reversed ? a : b;
    if (view.sort == SortBy::kPid)
      return first.process->counters->pid < second.process->counters->pid;
    if (view.sort == SortBy::kProgram)
      return printableName(first.process->counters->program) <
             printableName(second.process->counters->program);
    return weightOf(first.figures, view.sort) > weightOf(second.figures, view.sort);
  });
  return rows;
}

std::string hostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return printableName(name);
}

std::string tierText(const std::string& name, double used, double all, size_t width) {
  constexpr size_t kRoomy = 86;  // a line with rates and the long bar
  return base::format("  {:<11} {} {:>7} of {:>7}", name, bar(used, all, width < kRoomy ? 12 : 20),
                      bytesText(used), bytesText(all));
}

std::string ratesText(double in, double out) {
  return base::format("   in {:>7}/s   out {:>7}/s", bytesText(in), bytesText(out));
}

// This machine: each device's VRAM, the host tier, what memservers have, and what goes in and out,
// all programs together.
void nodeLines(const Sample& now, const Sample* before, const View& view, bool memservers,
               size_t width, std::vector<Line>& lines) {
  unsigned devices = 0;
  bool has_disks = false;
  double host = 0, host_limit = 0, remote = 0, room = 0, remote_in = 0, remote_out = 0;
  for (const auto& process : now.reading.processes) {
    const auto& counters = *process.counters;
    const Figures one = since(process, now, before);
    devices = std::max(devices, counters.devicesInUse());
    host += static_cast<double>(valueOf(counters.host_used_bytes));
    host_limit += static_cast<double>(valueOf(counters.host_limit_bytes));
    remote += static_cast<double>(one.remote);
    // Memory that one program can still get the others can get as well, but not twice.
    const uint64_t disks = valueOf(counters.disk.capacity_bytes);
    room = std::max(room, static_cast<double>(valueOf(counters.memserver_bytes) + disks) -
                              static_cast<double>(one.remote));
    has_disks |= disks != 0;
    remote_in += one.remote_in;
    remote_out += one.remote_out;
  }
  // Programs may be allowed more together than the machine has.
  if (const auto total = static_cast<double>(base::totalMemory()); total != 0)
    host_limit = std::min(host_limit, total);
  lines.push_back(Line().add(base::format("node {}", hostName()), Style::kTitle));
  for (unsigned device = 0; device < devices; device++) {
    if (!view.devices.holds(device)) continue;
    double vram = 0, budget = 0, in = 0, out = 0;
    for (const auto& process : now.reading.processes) {
      const Figures one = since(process, now, before, {device});
      vram += static_cast<double>(one.vram);
      budget += static_cast<double>(one.vram_budget);
      in += one.bytes_in;
      out += one.bytes_out;
    }
    lines.push_back(Line().add(
        tierText(base::format("gpu{:<3} VRAM", device), vram, budget, width) + ratesText(in, out)));
  }
  for (const std::string& card : cardLines(now)) lines.push_back(Line().add("  " + card));
  lines.push_back(Line().add(tierText("host   RAM", host, host_limit, width)));
  if (memservers)
    lines.push_back(
        Line().add(tierText(has_disks ? "below  RAM" : "remote RAM", remote, remote + room, width) +
                   ratesText(remote_in, remote_out)));
  for (const auto& process : now.reading.processes)
    for (const std::string& link : railLines(process.counters->rdma))
      lines.push_back(Line().add(base::format("rails  {} to {}", process.counters->pid, link)));
}

Style styleOf(Place place) {
  switch (place) {
    case Place::kVram:
    case Place::kLeaving:
      return Style::kVram;
    case Place::kInPlace:
      return Style::kInPlace;
    case Place::kHost:
      return Style::kHost;
    case Place::kRemote:
      return Style::kRemote;
    case Place::kIn:
      return Style::kIn;
    case Place::kOut:
    case Place::kMoving:
      return Style::kOut;
    default:
      return Style::kEmpty;
  }
}

char letterOf(Place place) {
  constexpr char kLetters[pager::kPlaces] = {' ', '.', 'V', 'p', 'h', 'r', '<', '>', 'V', '~'};
  return static_cast<unsigned>(place) < pager::kPlaces ? kLetters[static_cast<unsigned>(place)]
                                                       : '?';
}

void mapLines(const pager::ResidencyMap& map, const View& view, unsigned width, size_t rows,
              std::vector<Line>& lines) {
  if (rows < 3 || width < 24) return;
  constexpr size_t kAddress = 15;  // "0x230000000000 "
  const size_t columns = width - kAddress;
  uint64_t pages = 0;
  const auto cells = residencyCells(map, columns * (rows - 1), pages, view.devices);
  Line legend;
  legend.add(pages == 0 ? "map  nothing yet"
                        : base::format("map  a cell: {}  ", formatSize(pages * (2u << 20))),
             Style::kTitle);
  if (pages != 0) {
    for (const auto& [place, text] :
         {std::pair(Place::kVram, "VRAM"), std::pair(Place::kInPlace, "in place"),
          std::pair(Place::kHost, "host"), std::pair(Place::kRemote, "remote"),
          std::pair(Place::kIn, "coming"), std::pair(Place::kOut, "going"),
          std::pair(Place::kEmpty, "empty")}) {
      legend.add(std::string(1, letterOf(place)), styleOf(place)).add(base::format(" {}  ", text));
    }
  }
  lines.push_back(std::move(legend));
  for (size_t begin = 0; begin < cells.size(); begin += columns) {
    Line line;
    line.add(base::format("{:#014x} ", cells[begin].address), Style::kDim);
    for (size_t i = begin; i < std::min(cells.size(), begin + columns);) {
      size_t end = i;
      std::string text;
      while (end < std::min(cells.size(), begin + columns) &&
             styleOf(cells[end].place) == styleOf(cells[i].place)) {
        text += letterOf(cells[end++].place);
      }
      line.add(std::move(text), styleOf(cells[i].place));
      i = end;
    }
    lines.push_back(std::move(line));
  }
}

}  // namespace

std::vector<ProcessKey> orderOf(const Sample& now, const Sample* before, const View& view) {
  std::vector<ProcessKey> order;
  for (const Row& row : rowsOf(now, before, view)) order.push_back(keyOf(*row.process));
  return order;
}

namespace {

constexpr size_t kWide = 180;          // the map stands beside the allocations
constexpr size_t kLeftOfMap = 94;      // columns of what is left of it
constexpr size_t kLeastForPlots = 60;  // columns

// Keys and columns, in at most `height` lines.
std::vector<Line> helpLines(size_t height) {
  struct Entry {
    const char *key, *text;
  };
  static constexpr Entry kKeys[] = {
      {"q", "end; so do ^C and the end of the terminal"},
      {"s  S", "sort by the next, by the previous: traffic, faults, VRAM, pid, program,"},
      {"", "host, remote, launches, hit rate, waits"},
      {"r", "the other way round"},
      {"f  /", "only programs whose name or pid has a text: Enter keeps it, Esc drops it"},
      {"up down  k j", "choose the program whose plots, allocations and map are shown"},
      {"n", "all devices of the node, or one after the other"},
      {"h  m", "history, map: shown or not"},
      {"+  -", "half as often, twice as often"},
      {"space", "pause"},
  };
  static constexpr Entry kFigures[] = {
      {"VRAM HOST PLACE REMOTE", "bytes in VRAM, host RAM, there in place, memservers"},
      {"LAUNCH HIT%", "launches a second, those that found all in place"},
      {"FAULT PREFET", "extents fetched a second: waited for, ahead of use"},
      {"CLEAN WRITTEN", "extents that left VRAM: dropped, written"},
      {"IN/s OUT/s", "bytes into VRAM and out of it"},
      {"R-IN/s R-OUT/s", "bytes from memservers and to them"},
      {"ACC%", "extents fetched ahead that were used"},
      {"WAIT50 WAIT99", "how long launches waited: median, 99 %"},
      {"stalls", "time in which a launch waited for pages"},
  };
  std::vector<Line> lines;
  lines.push_back(
      Line().add("olpagestat: keys", Style::kTitle).add("   any key: back", Style::kDim));
  for (const Entry& one : kKeys)
    lines.push_back(Line().add(base::format("  {:<13} ", one.key), Style::kTitle).add(one.text));
  lines.push_back(Line().add("figures", Style::kTitle));
  for (const Entry& one : kFigures)
    lines.push_back(Line().add(base::format("  {:<23} ", one.key), Style::kTitle).add(one.text));
  if (lines.size() > height) lines.resize(height);
  return lines;
}

// Three plots beside each other: traffic, stalls, hit rate.
void plotsOf(const std::deque<TrailPoint>& trail, const View& view, size_t width, size_t rows,
             std::vector<Line>& lines) {
  constexpr size_t kGap = 2, kPlots = 3;
  const size_t columns = (width - kGap * (kPlots - 1)) / kPlots;
  const size_t shown = std::min(trail.size(), columns * (view.unicode ? 2 : 1));
  std::vector<std::optional<double>> traffic, stalls, hits;
  double most = 0;
  for (size_t i = trail.size() - shown; i < trail.size(); i++) {
    traffic.push_back(trail[i].traffic);
    stalls.push_back(trail[i].stalled);
    hits.push_back(trail[i].hit_rate);
    most = std::max(most, trail[i].traffic.value_or(0));
  }
  const double span = shown > 1 ? trail.back().seconds - trail[trail.size() - shown].seconds : 0;
  const auto last = [](const std::vector<std::optional<double>>& values) {
    return values.empty() ? std::optional<double>() : values.back();
  };
  const auto percent = [&](const std::vector<std::optional<double>>& values) {
    return last(values) ? base::format("{:.0f}%", *last(values) * 100) : std::string("-");
  };
  const std::string rate = last(traffic) ? bytesText(*last(traffic)) + "/s" : std::string("-");
  constexpr size_t kForSpan = 36;
  const std::string traffic_title =
      columns < kForSpan
          ? base::format("traffic {}, most {}", rate, bytesText(most))
          : base::format("traffic {}, most {}/s in {:.0f}s", rate, bytesText(most), span);
  struct Plot {
    std::string title;
    const std::vector<std::optional<double>>& values;
    double most;
    Style style;
  };
  const Plot plots[kPlots] = {
      {traffic_title, traffic, most, Style::kTraffic},
      {"stalls " + percent(stalls), stalls, 1, Style::kStalls},
      {"hit rate " + percent(hits), hits, 1, Style::kHits},
  };
  std::vector<Line> block(rows + 1);
  for (size_t i = 0; i < kPlots; i++) {
    const size_t at = i * (columns + kGap);
    const Plot& plot = plots[i];
    block[0] = beside(block[0], Line().add(plot.title.substr(0, columns), Style::kTitle), at);
    const auto drawn = plotLines(plot.values, plot.most, columns, rows, view.unicode);
    for (size_t row = 0; row < rows; row++)
      block[row + 1] = beside(block[row + 1], Line().add(drawn[row], plot.style), at);
  }
  for (Line& line : block) lines.push_back(std::move(line));
}

void hottestLines(const pager::CountersSnapshot& process, const View& view, size_t most,
                  std::vector<Line>& lines) {
  constexpr size_t kShown = 5, kShownWide = 20;
  const auto hot =
      hottest(process.details->hot, most > kShownWide ? kShownWide : kShown, view.devices);
  if (hot.empty() || most < 3) return;
  lines.push_back(
      Line().add(base::format("hottest allocations of {}", process.counters->pid), Style::kTitle));
  for (const auto& one : hot) {
    if (--most == 0) break;
    lines.push_back(Line().add(base::format(
        "  {:#014x}  {:>8}  gpu{:<2} fetched {:>7}  evicted {:>7}  in {:>7}  out {:>7}", one.base,
        bytesText(static_cast<double>(one.bytes)), one.device, one.fetched, one.evicted,
        bytesText(static_cast<double>(one.bytes_in)),
        bytesText(static_cast<double>(one.bytes_out)))));
  }
}

// Details of the chosen program: executors, allocations, map; in at most `height` lines.
std::vector<Line> detailsOf(const pager::CountersSnapshot& process, const Sample& now,
                            const Sample* before, const View& view, size_t width, size_t height) {
  std::vector<Line> lines;
  const auto& counters = *process.counters;
  if (executorsOf(counters) != 0 && height > 3) {
    const auto* then = before != nullptr ? find(*before, keyOf(process)) : nullptr;
    lines.push_back(Line().add(base::format("executors of {}; * runs operations", counters.pid),
                               Style::kTitle));
    const auto figures = executorFigures(counters, then != nullptr ? then->counters.get() : nullptr,
                                         before != nullptr ? now.seconds - before->seconds : 0);
    const auto now_ns = static_cast<uint64_t>(now.seconds * 1e9);
    for (std::string& line : executorsScreen(counters, figures, now_ns, height - lines.size() - 1))
      lines.push_back(Line().add(std::move(line)));
  }
  if (process.details == nullptr || lines.size() >= height) return lines;
  const size_t left = height - lines.size();
  const bool map = view.map && executorsOf(counters) == 0;
  if (map && width >= kWide) {
    std::vector<Line> allocations, cells;
    hottestLines(process, view, left, allocations);
    mapLines(process.details->map, view, static_cast<unsigned>(width - kLeftOfMap), left, cells);
    allocations.resize(std::max(allocations.size(), cells.size()));
    for (size_t i = 0; i < allocations.size(); i++)
      lines.push_back(i < cells.size() ? beside(allocations[i], cells[i], kLeftOfMap)
                                       : std::move(allocations[i]));
  } else {
    constexpr size_t kWithMap = 8;  // lines, of which the map wants some
    hottestLines(process, view, map ? std::min(left, kWithMap) : left, lines);
    if (map && height > lines.size())
      mapLines(process.details->map, view, static_cast<unsigned>(width), height - lines.size(),
               lines);
  }
  return lines;
}

// The filter while it is typed, or the keys.
Line secondLine(const View& view) {
  if (view.typing)
    return Line()
        .add("filter: ", Style::kTitle)
        .add(view.filter + "_")
        .add("   Enter keeps it, Esc drops it", Style::kDim);
  return Line().add("? help  q quit  s sort  f filter  k/j choose  n device  h history  m map",
                    Style::kDim);
}

}  // namespace

std::vector<Line> screen(const Sample& now, const Sample* before, const Trails& trails,
                         const View& view, unsigned width, unsigned height) {
  if (view.help) return helpLines(height);
  std::vector<Line> lines;
  const auto rows = rowsOf(now, before, view);
  const size_t all = now.reading.processes.size();
  const bool memservers =
      std::any_of(now.reading.processes.begin(), now.reading.processes.end(),
                  [](const auto& process) { return usesMemservers(*process.counters); });
  const std::string shown =
      view.devices.only ? base::format("gpu{}", *view.devices.only) : "all devices";
  const std::string filter = view.filter.empty() ? "" : base::format("filter: {}  ", view.filter);
  const std::string count =
      view.filter.empty() ? base::format("{}", all) : base::format("{} of {}", rows.size(), all);
  lines.push_back(Line()
                      .add("olpagestat ", Style::kTitle)
                      .add(base::format("{}  {} program{}  every {:g}s{}  sort: {}{}  {}{}",
                                        clockText(), count, all == 1 ? "" : "s", view.interval,
                                        view.paused ? " (paused)" : "", sortName(view.sort),
                                        view.reversed ? ", reversed" : "", filter, shown)));
  lines.push_back(secondLine(view));
  nodeLines(now, before, view, memservers, width, lines);
  for (const NodeSample& node : now.nodes) {
    const NodeSample* then = nullptr;
    for (size_t i = 0; before != nullptr && i < before->nodes.size(); i++)
      if (before->nodes[i].address == node.address) then = &before->nodes[i];
    for (Line& line : nodeScreen(node, then, kNodeLines)) lines.push_back(std::move(line));
  }
  for (const auto& note : now.reading.notes)
    lines.push_back(Line().add(printableName(note.c_str()), Style::kDim));
  const auto columns = columnsFor(width, memservers);
  const size_t program = programWidth(width, columns);
  lines.push_back(Line().add(headText(columns, program) + std::string(width, ' '), Style::kHead));
  const auto forwarded = forwardedOf(now, view);
  if (rows.empty() && forwarded.empty())
    lines.push_back(Line().add(
        all == 0 ? std::string("no program of yours uses a GPU under olpager now")
                 : base::format("no name or process id of {} has \"{}\" in it",
                                all == 1 ? "the program" : "the programs", view.filter)));
  const Row* chosen = nullptr;
  for (const Row& row : rows) {
    if (view.chosen && keyOf(*row.process) == *view.chosen) chosen = &row;
  }
  if (chosen == nullptr && !rows.empty()) chosen = &rows.front();
  // Half of what is left at most, around the chosen one.
  const size_t room = height > lines.size() + 1 ? height - lines.size() - 1 : 1;
  const size_t most = std::max<size_t>(1, room / 2);
  size_t first = 0;
  if (chosen != nullptr) {
    const auto index = static_cast<size_t>(chosen - rows.data());
    first = index >= most ? index - most + 1 : 0;
  }
  for (size_t i = first; i < std::min(rows.size(), first + most); i++) {
    const bool ended = rows[i].process->state == pager::CountersSnapshot::State::kEnded;
    lines.push_back(
        Line().add(rowText(*rows[i].process->counters, rows[i].figures, columns, program),
                   &rows[i] == chosen ? Style::kChosen
                   : ended            ? Style::kDim
                                      : Style::kPlain));
  }
  // Forwarded programs have half of what is left.
  const size_t places = height > lines.size() ? (height - lines.size()) / 2 : 0;
  for (size_t i = 0; i < std::min(forwarded.size(), places); i++) {
    const Forwarded& one = *forwarded[i];
    lines.push_back(
        Line().add(base::format("{:>8} {}  forwarded to {}", one.pid, one.program, one.gpunodes)));
  }
  if (chosen != nullptr) {
    const pager::Counters& counters = *chosen->process->counters;
    for (const std::string& link : linkLines(counters))
      lines.push_back(Line().add(base::format("link of {} to {}", counters.pid, link)));
    // The plots leave as much again to what comes below.
    const size_t plot_rows = height >= 44 ? 5 : height >= 30 ? 4 : 3;
    if (view.plots && width >= kLeastForPlots && lines.size() + 2 * (plot_rows + 1) <= height)
      plotsOf(trails.of(keyOf(*chosen->process), view.devices), view, width, plot_rows, lines);
    if (height > lines.size()) {
      auto details = detailsOf(*chosen->process, now, before, view, width, height - lines.size());
      for (Line& line : details) lines.push_back(std::move(line));
    }
  }
  if (lines.size() > height) lines.resize(height);
  return lines;
}

std::string watchHead() {
  std::string text =
      base::format("{:<8} {}\n", "time", headText(columnsFor(SIZE_MAX, true), kProgramWidth));
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string watchLine(const pager::CountersSnapshot& process, const Figures& figures,
                      const std::string& time) {
  return base::format(
      "{:<8} {}\n", time.empty() ? clockText() : time,
      rowText(*process.counters, figures, columnsFor(SIZE_MAX, true), kProgramWidth));
}

namespace {

// A key while the filter is typed.
void typeFilter(View& view, Key key, char character) {
  constexpr char kBackspace = '\b', kDelete = '\x7f';
  constexpr size_t kMost = 40;
  if (key == Key::kEnter) view.typing = false;
  if (key == Key::kEscape) {
    view.typing = false;
    view.filter.clear();
  }
  if (key != Key::kCharacter) return;
  if (character == kBackspace || character == kDelete) {
    if (!view.filter.empty()) view.filter.pop_back();
  } else if (character >= ' ' && character <= '~' && view.filter.size() < kMost) {
    view.filter += character;
  }
}

}  // namespace

int runLive(const SampleSource& source, double interval, double duration) {
  Terminal terminal;
  View view;
  view.interval = interval;
  view.unicode = Terminal::unicode();
  Trails trails;
  Sample now = source(), before;
  bool compared = false;
  double taken = now.seconds;
  const double begun = now.seconds;
  const auto clock = [] {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  };
  // A first comparison soon; after that as often as asked.
  double due = taken + std::min(0.3, interval);
  for (;;) {
    terminal.draw(screen(now, compared ? &before : nullptr, trails, view, terminal.width(),
                         terminal.height()));
    const double left = due - clock();
    char character = 0;
    const Key key = terminal.wait(left > 0 ? static_cast<int>(left * 1000) + 1 : 0, character);
    if (key == Key::kEnd || (duration > 0 && clock() - begun >= duration)) return 0;
    const auto move = [&](int by) {
      const auto order = orderOf(now, compared ? &before : nullptr, view);
      if (order.empty()) return;
      size_t at = 0;
      for (size_t i = 0; i < order.size(); i++) {
        if (view.chosen && order[i] == *view.chosen) at = i;
      }
      if (by < 0 && at > 0) at--;
      if (by > 0 && at + 1 < order.size()) at++;
      view.chosen = order[at];
    };
    const auto sortBy = [&](unsigned next) { view.sort = static_cast<SortBy>(next % kSorts); };
    const bool pressed = key != Key::kNone && key != Key::kResize;
    if (view.help) {
      if (pressed) view.help = false;
    } else if (view.typing) {
      typeFilter(view, key, character);
    } else if (key == Key::kUp) {
      move(-1);
    } else if (key == Key::kDown) {
      move(1);
    } else if (key == Key::kEscape) {
      view.filter.clear();
    } else if (key == Key::kCharacter) {
      switch (character) {
        case 'q':
          return 0;
        case '?':
          view.help = true;
          break;
        case 's':
          sortBy(static_cast<unsigned>(view.sort) + 1);
          break;
        case 'S':
          sortBy(static_cast<unsigned>(view.sort) + kSorts - 1);
          break;
        case 'r':
          view.reversed = !view.reversed;
          break;
        case 'f':
        case '/':
          view.typing = true;
          break;
        case 'n': {
          unsigned devices = 0;
          for (const auto& process : now.reading.processes)
            devices = std::max(devices, process.counters->devicesInUse());
          const unsigned next = view.devices.only ? *view.devices.only + 1 : 0;
          view.devices.only = next < devices ? std::optional(next) : std::nullopt;
          break;
        }
        case 'k':
          move(-1);
          break;
        case 'j':
          move(1);
          break;
        case 'm':
          view.map = !view.map;
          break;
        case 'h':
          view.plots = !view.plots;
          break;
        case '+':
          view.interval = std::min(60.0, view.interval * 2);
          break;
        case '-':
          view.interval = std::max(0.125, view.interval / 2);
          break;
        case ' ':
          view.paused = !view.paused;
          break;
        default:
          break;
      }
      due = std::min(due, taken + view.interval);
    }
    if (clock() < due) continue;
    due = clock() + view.interval;
    if (view.paused) continue;
    Sample next = source();
    before = std::move(now);
    now = std::move(next);
    compared = true;
    taken = now.seconds;
    trails.add(now, before);
  }
}

}  // namespace olpager::tools
