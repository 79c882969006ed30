#include "tools/olpagestat/executors.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "base/size.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using base::formatSize;
using pager::Counters;
using pager::valueOf;
using status::ExecutorCounters;
using status::Move;
using status::RouteReason;
using status::UnifiedCounters;

constexpr unsigned kShownMoves = 8;
constexpr size_t kNameWidth = 24;

// Keys of JSON, by RouteReason.
constexpr const char* kKeys[status::kRouteReasons] = {
    "in_place", "fewest_pages", "not_ended", "capturing", "bound",
    "pages",    "room",         "capacity",  "variables", "asked"};

const char* keyOf(RouteReason reason) {
  const auto number = static_cast<size_t>(reason);
  return number < std::size(kKeys) ? kKeys[number] : "unknown";
}

uint64_t operationsOf(const ExecutorCounters& one) {
  uint64_t sum = 0;
  for (const auto& routed : one.routed) sum += valueOf(routed);
  return sum;
}

uint64_t movesTo(const ExecutorCounters& one) {
  uint64_t sum = 0;
  for (const RouteReason reason :
       {RouteReason::kPages, RouteReason::kRoom, RouteReason::kCapacity, RouteReason::kAsked})
    sum += valueOf(one.routed[static_cast<size_t>(reason)]);
  return sum;
}

double nanoseconds(uint64_t time) { return static_cast<double>(time); }

std::string agoText(const Move& move, uint64_t now_ns) {
  if (now_ns <= move.ended_ns) return "";
  return durationText(nanoseconds(now_ns - move.ended_ns)) + " ago";
}

std::string rateText(double rate) {
  return base::format("{:.{}f}", rate, rate >= 9.95 || rate == 0 ? 0 : 1);
}

// A line of columns: a name that begins the line, and figures that end theirs.
std::string columns(const std::string& name, const std::vector<std::string>& figures) {
  constexpr size_t kWidth = 11;
  std::string text = base::format("{:<{}}", name, kNameWidth);
  for (const std::string& figure : figures) text += base::format("{:>{}}", figure, kWidth);
  return text;
}

std::string nameOf(const ExecutorFigures& one) { return one.gpunode + (one.active ? " *" : ""); }

}  // namespace

unsigned executorsOf(const Counters& counters) {
  return static_cast<unsigned>(
      std::min<uint64_t>(valueOf(counters.unified.count), status::kMaxCountedExecutors));
}

std::string gpunodeOf(const Counters& counters, unsigned executor) {
  if (executor >= executorsOf(counters)) return "?";
  const auto& name = counters.unified.executors[executor].gpunode;
  return printableName(
      std::string(std::begin(name), std::find(std::begin(name), std::end(name), '\0')).c_str());
}

uint64_t launchesOf(const UnifiedCounters& counters) {
  uint64_t sum = 0;
  for (const auto& one : counters.executors) sum += valueOf(one.launches);
  return sum;
}

std::vector<ExecutorFigures> executorFigures(const Counters& now, const Counters* before,
                                             double seconds) {
  std::vector<ExecutorFigures> all;
  for (unsigned i = 0; i < executorsOf(now); ++i) {
    const ExecutorCounters& one = now.unified.executors[i];
    ExecutorFigures figures{.gpunode = gpunodeOf(now, i),
                            .active = valueOf(now.unified.active) == i,
                            .owned = valueOf(one.owned_bytes),
                            .retained = valueOf(one.retained_bytes),
                            .room = valueOf(one.room_bytes),
                            .capacity = valueOf(one.capacity_bytes),
                            .pushed = valueOf(one.pushed_bytes),
                            .launches = valueOf(one.launches),
                            .operations = operationsOf(one),
                            .kept = valueOf(one.kept),
                            .moves = movesTo(one),
                            .bytes_in = valueOf(one.bytes_in),
                            .bytes_out = valueOf(one.bytes_out),
                            .read = valueOf(one.read_bytes),
                            .unchanged = valueOf(one.unchanged_bytes),
                            .in_part = valueOf(one.in_part_bytes),
                            .a_second = {}};
    if (before != nullptr && seconds > 0) {
      const ExecutorCounters& then = before->unified.executors[i];
      const auto rate = [&](uint64_t a, uint64_t b) {
        return a > b ? static_cast<double>(a - b) / seconds : 0;
      };
      figures.a_second = {.launches = rate(figures.launches, valueOf(then.launches)),
                          .operations = rate(figures.operations, operationsOf(then)),
                          .moves = rate(figures.moves, movesTo(then)),
                          .bytes_in = rate(figures.bytes_in, valueOf(then.bytes_in)),
                          .bytes_out = rate(figures.bytes_out, valueOf(then.bytes_out))};
    }
    all.push_back(std::move(figures));
  }
  return all;
}

// The record that is written next lies where the oldest one did.
std::vector<NumberedMove> lastMoves(const UnifiedCounters& counters, unsigned most) {
  std::vector<NumberedMove> all;
  const uint64_t moves = valueOf(counters.moves);
  const uint64_t kept = std::min<uint64_t>({moves, status::kKeptMoves - 1, most});
  for (uint64_t number = moves; number-- > moves - kept;) {
    NumberedMove one{.number = number, .move = {}};
    if (moveOf(counters, number, one.move)) all.push_back(one);
  }
  return all;
}

std::string moveText(const Counters& counters, const Move& move) {
  std::string text = base::format("{} -> {}: {}", gpunodeOf(counters, move.from),
                                  gpunodeOf(counters, move.to), textOf(move.reason));
  if (move.pages_there + move.pages_coming != 0)
    text += base::format(" ({} there, {} to come)", move.pages_there, move.pages_coming);
  const uint64_t took = move.ended_ns > move.begun_ns ? move.ended_ns - move.begun_ns : 0;
  return text + base::format("; {}", durationText(nanoseconds(took)));
}

std::string executorsTable(const Counters& counters, std::optional<double> seconds,
                           uint64_t now_ns) {
  const UnifiedCounters& unified = counters.unified;
  const uint64_t moves = valueOf(unified.moves);
  std::string text = base::format("  {:<16}one device of {} executors; * runs operations\n",
                                  "unified view", executorsOf(counters));
  text += base::format("  {:<16}{}", "moves of all", moves);
  if (moves != 0 && seconds && *seconds > 0)
    text +=
        base::format(", {} a second on average", rateText(static_cast<double>(moves) / *seconds));
  if (moves != 0)
    text += base::format("; {} until work at the former executor was over, {} for variables",
                         durationText(nanoseconds(valueOf(unified.finishing_ns))),
                         durationText(nanoseconds(valueOf(unified.bringing_ns))));
  if (valueOf(unified.cpu_faults) != 0)
    text += base::format("\n  {:<16}{} faults of the CPU; {} came to it, {} went back",
                         "managed memory", valueOf(unified.cpu_faults),
                         formatSize(valueOf(unified.cpu_bytes_in)),
                         formatSize(valueOf(unified.cpu_bytes_out)));
  text += "\n  " + columns("executor", {"owned", "retained", "VRAM room", "capacity", "launches",
                                        "operations", "bytes in", "bytes read", "bytes out"});
  for (const ExecutorFigures& one : executorFigures(counters, nullptr, 0))
    text += "\n  " + columns(nameOf(one),
                             {formatSize(one.owned), formatSize(one.retained), formatSize(one.room),
                              formatSize(one.capacity), base::format("{}", one.launches),
                              base::format("{}", one.operations), formatSize(one.bytes_in),
                              formatSize(one.read), formatSize(one.bytes_out)});
  text += "\n  operations went to their executor because\n";
  for (size_t reason = 0; reason < status::kRouteReasons; ++reason) {
    uint64_t sum = 0;
    for (const auto& one : unified.executors) sum += valueOf(one.routed[reason]);
    if (sum != 0)
      text += base::format("    {:>10}  {}\n", sum, textOf(static_cast<RouteReason>(reason)));
  }
  const auto last = lastMoves(unified, kShownMoves);
  if (!last.empty()) text += "  last moves of all\n";
  for (const auto& [number, move] : last)
    text += base::format("    {:>12}  {}\n", agoText(move, now_ns), moveText(counters, move));
  return text;
}

nlohmann::ordered_json executorsJson(const Counters& counters) {
  using nlohmann::ordered_json;
  if (executorsOf(counters) == 0) return nullptr;
  const UnifiedCounters& unified = counters.unified;
  ordered_json executors = ordered_json::array(), moves = ordered_json::array();
  for (const ExecutorFigures& one : executorFigures(counters, nullptr, 0)) {
    const size_t number = executors.size();
    ordered_json routed = ordered_json::object();
    for (size_t reason = 0; reason < status::kRouteReasons; ++reason) {
      if (reason == static_cast<size_t>(RouteReason::kVariables)) continue;  // no operation has it
      routed[kKeys[reason]] = valueOf(unified.executors[number].routed[reason]);
    }
    executors.push_back({{"executor", number},
                         {"gpunode", one.gpunode},
                         {"owned_bytes", one.owned},
                         {"retained_bytes", one.retained},
                         {"room_bytes", one.room},
                         {"capacity_bytes", one.capacity},
                         {"pushed_bytes", one.pushed},
                         {"launches", one.launches},
                         {"operations", one.operations},
                         {"operations_kept", one.kept},
                         {"operations_by_reason", std::move(routed)},
                         {"bytes_in", one.bytes_in},
                         {"read_bytes", one.read},
                         {"unchanged_bytes", one.unchanged},
                         {"in_part_bytes", one.in_part},
                         {"bytes_out", one.bytes_out}});
  }
  for (const auto& [number, move] : lastMoves(unified, status::kKeptMoves))
    moves.push_back({{"number", number},
                     {"from", move.from},
                     {"to", move.to},
                     {"reason", keyOf(move.reason)},
                     {"pages_there", move.pages_there},
                     {"pages_coming", move.pages_coming},
                     {"begun_ns", move.begun_ns},
                     {"ended_ns", move.ended_ns},
                     {"finishing_ns", move.finishing_ns}});
  return {{"active", valueOf(unified.active)},
          {"moves", valueOf(unified.moves)},
          {"finishing_ns", valueOf(unified.finishing_ns)},
          {"bringing_ns", valueOf(unified.bringing_ns)},
          {"cpu_faults", valueOf(unified.cpu_faults)},
          {"cpu_bytes_in", valueOf(unified.cpu_bytes_in)},
          {"cpu_bytes_out", valueOf(unified.cpu_bytes_out)},
          {"executors", std::move(executors)},
          {"last_moves", std::move(moves)}};
}

namespace {

// With rates, on the screen and in lines of --watch.
std::vector<std::string> rateNames() {
  return {"owned", "VRAM room", "launches/s", "ops/s", "moves/s", "in/s", "out/s"};
}

std::string ratesText(const ExecutorFigures& one) {
  const auto owned = bytesText(static_cast<double>(one.owned)),
             room = bytesText(static_cast<double>(one.room));
  if (!one.a_second) return columns(nameOf(one), {owned, room, "-", "-", "-", "-", "-"});
  const auto& rates = *one.a_second;
  return columns(nameOf(one),
                 {owned, room, rateText(rates.launches), rateText(rates.operations),
                  rateText(rates.moves), bytesText(rates.bytes_in), bytesText(rates.bytes_out)});
}

}  // namespace

std::string executorsWatchHead() {
  return base::format("{:<8} {:>8} {:<16} {}\n", "time", "pid", "program",
                      columns("executor", rateNames()));
}

std::string executorsWatchLines(const Counters& counters,
                                const std::vector<ExecutorFigures>& figures,
                                const std::string& time) {
  std::string text;
  for (const ExecutorFigures& one : figures)
    text += base::format("{:<8} {:>8} {:<16} {}\n", time.empty() ? clockText() : time, counters.pid,
                         printableName(counters.program).substr(0, 15), ratesText(one));
  return text;
}

std::vector<std::string> executorsScreen(const Counters& counters,
                                         const std::vector<ExecutorFigures>& figures,
                                         uint64_t now_ns, size_t most) {
  std::vector<std::string> lines = {"  " + columns("executor", rateNames())};
  for (const ExecutorFigures& one : figures) lines.push_back("  " + ratesText(one));
  const auto last = lastMoves(counters.unified, kShownMoves);
  if (!last.empty()) lines.emplace_back("  last moves of all");
  for (const auto& [number, move] : last)
    lines.push_back(base::format("  {:>12}  {}", agoText(move, now_ns), moveText(counters, move)));
  if (lines.size() > most) lines.resize(most);
  return lines;
}

}  // namespace olpager::tools
