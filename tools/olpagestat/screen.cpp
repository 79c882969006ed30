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
  constexpr const char* kNames[] = {"traffic", "faults", "VRAM", "pid"};
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

std::string headText(const std::vector<const Column*>& columns) {
  std::string text = base::format("{:>8} {:<16}", "PID", "PROGRAM");
  for (const Column* column : columns) text += base::format("{:>{}}", column->name, column->width);
  return text;
}

std::string rowText(const pager::Counters& counters, const Figures& figures,
                    const std::vector<const Column*>& columns) {
  std::string text =
      base::format("{:>8} {:<16}", counters.pid, printableName(counters.program).substr(0, 15));
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

std::vector<Row> rowsOf(const Sample& now, const Sample* before, const View& view) {
  std::vector<Row> rows;
  for (const auto& process : now.reading.processes)
    rows.push_back({&process, since(process, now, before, view.devices)});
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    switch (view.sort) {
      case SortBy::kTraffic:
        return a.figures.traffic() > b.figures.traffic();
      case SortBy::kFaults:
        return a.figures.faults > b.figures.faults;
      case SortBy::kVram:
        return a.figures.vram > b.figures.vram;
      case SortBy::kPid:
        break;
    }
    return a.process->counters->pid < b.process->counters->pid;
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
  double host = 0, host_limit = 0, remote = 0, room = 0, remote_in = 0, remote_out = 0;
  for (const auto& process : now.reading.processes) {
    const auto& counters = *process.counters;
    const Figures one = since(process, now, before);
    devices = std::max(devices, devicesOf(counters));
    host += static_cast<double>(valueOf(counters.host_used_bytes));
    host_limit += static_cast<double>(valueOf(counters.host_limit_bytes));
    remote += static_cast<double>(one.remote);
    // What one program can still get the others can get as well, but not twice.
    room = std::max(room, static_cast<double>(valueOf(counters.memserver_bytes)) -
                              static_cast<double>(one.remote));
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
  lines.push_back(Line().add(tierText("host   RAM", host, host_limit, width)));
  if (memservers)
    lines.push_back(Line().add(tierText("remote RAM", remote, remote + room, width) +
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

void mapLines(const pager::CountersFile& details, const View& view, unsigned width, size_t rows,
              std::vector<Line>& lines) {
  if (rows < 3 || width < 24) return;
  constexpr size_t kAddress = 15;  // "0x230000000000 "
  const size_t columns = width - kAddress;
  uint64_t pages = 0;
  const auto cells = residencyCells(details.map, columns * (rows - 1), pages, view.devices);
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

std::vector<Line> screen(const Sample& now, const Sample* before, const View& view, unsigned width,
                         unsigned height) {
  std::vector<Line> lines;
  const auto rows = rowsOf(now, before, view);
  const bool memservers = std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return usesMemservers(*row.process->counters);
  });
  const std::string shown =
      view.devices.only ? base::format("gpu{}", *view.devices.only) : "all devices";
  lines.push_back(
      Line()
          .add("olpagestat ", Style::kTitle)
          .add(base::format("{}  {} program{}  every {:g}s{}  sort: {}  {}", clockText(),
                            rows.size(), rows.size() == 1 ? "" : "s", view.interval,
                            view.paused ? " (paused)" : "", sortName(view.sort), shown)));
  lines.push_back(
      Line().add("q quit  s sort  n node/device  up/down choose  m map  +/- interval  space pause",
                 Style::kDim));
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
  lines.push_back(Line().add(headText(columns) + std::string(width, ' '), Style::kHead));
  if (rows.empty()) lines.push_back(Line().add("no program of yours uses a GPU under olpager now"));
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
    lines.push_back(Line().add(rowText(*rows[i].process->counters, rows[i].figures, columns),
                               &rows[i] == chosen ? Style::kChosen : Style::kPlain));
  }
  if (chosen != nullptr && executorsOf(*chosen->process->counters) != 0 &&
      lines.size() + 3 < height) {
    const auto& counters = *chosen->process->counters;
    const auto* then = before != nullptr ? find(*before, keyOf(*chosen->process)) : nullptr;
    lines.push_back(Line().add(base::format("executors of {}; * runs operations", counters.pid),
                               Style::kTitle));
    const auto figures = executorFigures(counters, then != nullptr ? then->counters.get() : nullptr,
                                         before != nullptr ? now.seconds - before->seconds : 0);
    const auto now_ns = static_cast<uint64_t>(now.seconds * 1e9);
    for (std::string& line : executorsScreen(counters, figures, now_ns, height - lines.size() - 1))
      lines.push_back(Line().add(std::move(line)));
  }
  if (chosen != nullptr && chosen->process->details != nullptr) {
    const auto& details = *chosen->process->details;
    const auto hot = hottest(details.hot, 5, view.devices);
    if (!hot.empty() && lines.size() + 3 < height) {
      lines.push_back(
          Line().add(base::format("hottest allocations of {}", chosen->process->counters->pid),
                     Style::kTitle));
      for (const auto& one : hot) {
        if (lines.size() + 1 >= height) break;
        lines.push_back(Line().add(base::format(
            "  {:#014x}  {:>8}  gpu{:<2} fetched {:>7}  evicted {:>7}  in {:>7}  out {:>7}",
            one.base, bytesText(static_cast<double>(one.bytes)), one.device, one.fetched,
            one.evicted, bytesText(static_cast<double>(one.bytes_in)),
            bytesText(static_cast<double>(one.bytes_out)))));
      }
    }
    if (view.map && executorsOf(*chosen->process->counters) == 0 && height > lines.size())
      mapLines(details, view, width, height - lines.size(), lines);
  }
  if (lines.size() > height) lines.resize(height);
  return lines;
}

std::string watchHead() {
  std::string text = base::format("{:<8} {}\n", "time", headText(columnsFor(SIZE_MAX, true)));
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string watchLine(const pager::CountersSnapshot& process, const Figures& figures,
                      const std::string& time) {
  return base::format("{:<8} {}\n", time.empty() ? clockText() : time,
                      rowText(*process.counters, figures, columnsFor(SIZE_MAX, true)));
}

int runLive(const SampleSource& source, double interval, double duration) {
  Terminal terminal;
  View view;
  view.interval = interval;
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
    terminal.draw(
        screen(now, compared ? &before : nullptr, view, terminal.width(), terminal.height()));
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
    if (key == Key::kUp) move(-1);
    if (key == Key::kDown) move(1);
    if (key == Key::kCharacter) {
      switch (character) {
        case 'q':
          return 0;
        case 's':
          view.sort = static_cast<SortBy>((static_cast<unsigned>(view.sort) + 1) % 4);
          break;
        case 'n': {
          unsigned devices = 0;
          for (const auto& process : now.reading.processes)
            devices = std::max(devices, devicesOf(*process.counters));
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
  }
}

}  // namespace olpager::tools
