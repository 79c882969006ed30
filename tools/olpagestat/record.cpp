#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/format.h"
#include "pager/clock.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/own_processes.h"
#include "tools/olpagestat/recording.h"
#include "tools/olpagestat/report.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

constexpr double kSampleEvery = 0.1;  // seconds, at first
constexpr size_t kMostMoments = 400;  // then every second one goes, and the pace halves
constexpr size_t kHeatCells = 128;    // of the address space in a report
constexpr uint64_t kAskNs =
    3'000'000'000;  // a program traces for that long after it was asked last
constexpr auto kPause = std::chrono::milliseconds(5);

volatile std::sig_atomic_t g_ended = 0;

// A program that is being watched.
struct Watched {
  History history;
  pager::CountersSnapshot last;
  std::optional<pager::TraceReader> reader;
  std::unique_ptr<pager::Counters> before;
  uint64_t asked_ns = 0;
  bool unified = false;  // it has executors
  bool ended = false;
};

std::unique_ptr<pager::Counters> copyOf(const pager::Counters& counters) {
  auto copy = std::make_unique<pager::Counters>();
  std::memcpy(static_cast<void*>(copy.get()), static_cast<const void*>(&counters), sizeof counters);
  return copy;
}

void halve(std::vector<Moment>& moments) {
  for (size_t i = 0; i < moments.size() / 2; i++) moments[i] = std::move(moments[2 * i]);
  moments.resize(moments.size() / 2);
}

std::string hostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return printableName(name);
}

std::string timeText() {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  char text[64] = "";
  strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %z", &local);
  return text;
}

}  // namespace

int record(const RecordOptions& options) {
  std::unique_ptr<TraceFile> trace;
  if (!options.trace.empty()) {
    auto made = TraceFile::create(options.trace);
    if (!made.ok()) {
      base::print(stderr, "olpagestat: {}\n", made.error().message);
      return 1;
    }
    trace = std::move(made.value());
  }
  FILE* page = options.report.empty() ? nullptr : std::fopen(options.report.c_str(), "we");
  if (!options.report.empty() && page == nullptr) {
    base::print(stderr, "olpagestat: {}: {}\n", options.report, std::strerror(errno));
    return 1;
  }
  struct sigaction action {};
  action.sa_handler = [](int) { g_ended = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);

  std::map<ProcessKey, Watched> watched;
  std::vector<pager::TraceReader::Event> events;
  const uint64_t begun = pager::nowNs();
  double every = kSampleEvery, due = 0;
  bool said = false;
  const auto drain = [&](Watched& one) {
    if (!one.reader) return;
    events.clear();
    const bool readable = one.reader->read(events);
    for (const auto& event : events) trace->event(one.history.pid, event);
    if (const auto counters = one.unified ? one.reader->counters() : nullptr; counters != nullptr)
      trace->moves(one.history.pid, *counters);
    if (!readable) one.reader.reset();
  };
  while (g_ended == 0) {
    const double now = static_cast<double>(pager::nowNs() - begun) / 1e9;
    if (options.duration > 0 && now >= options.duration) break;
    for (auto& [key, one] : watched) {
      if (!one.ended) drain(one);
    }
    if (now < due) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    due = now + every;
    const Sample sample = readSample(options.programs, page != nullptr);
    for (const auto& note : sample.reading.notes) {
      if (!std::exchange(said, true)) base::print(stderr, "olpagestat: {}\n", note);
    }
    bool running = false;
    for (auto& [key, one] : watched) {
      if (!one.ended && find(sample, key) == nullptr) {
        drain(one);  // what it wrote last is still in the file, which is open
        one.ended = true;
      }
    }
    for (const auto& process : sample.reading.processes) {
      if (process.state == pager::CountersSnapshot::State::kEnded &&
          watched.count(keyOf(process)) == 0)
        continue;
      Watched& one = watched[keyOf(process)];
      if (one.ended) continue;
      const auto& counters = *process.counters;
      if (one.before == nullptr) {
        one.history.pid = counters.pid;
        one.history.program = printableName(counters.program);
        one.before = copyOf(counters);
        one.history.first = copyOf(counters);
        if (process.state == pager::CountersSnapshot::State::kRunning)
          one.history.settings = settingsOf(counters.pid);
        if (trace) {
          auto reader =
              pager::TraceReader::open(process.folder, counters.pid, counters.start_ticks);
          if (reader.ok()) {
            one.reader = std::move(reader.value());
            trace->process(counters.pid, one.history.program);
          } else {
            base::print(stderr, "olpagestat: {}\n", reader.error().message);
          }
        }
      }
      const uint64_t time = pager::nowNs();
      if (one.reader && time - one.asked_ns > kAskNs / 3) {
        one.reader->ask(time + kAskNs);
        one.asked_ns = time;
      }
      running = running || process.state != pager::CountersSnapshot::State::kEnded;
      if (process.state == pager::CountersSnapshot::State::kEnded) {
        drain(one);
        one.ended = true;
      }
      Moment moment;
      moment.seconds = sample.seconds;
      const auto* last = one.history.last.get();
      moment.figures = figuresOf(
          counters, last,
          one.history.moments.empty() ? 0 : sample.seconds - one.history.moments.back().seconds);
      if (trace) {
        trace->tiers(counters.pid, sample.seconds, moment.figures);
        trace->executors(counters.pid, sample.seconds, counters);
      }
      one.unified = executorsOf(counters) != 0;
      for (unsigned i = 0; i < executorsOf(counters); i++)
        moment.owned.push_back(pager::valueOf(counters.unified.executors[i].owned_bytes));
      one.history.run_seconds = secondsOf(process);
      if (process.details != nullptr) {
        moment.cells = residencyCells(process.details->map, kHeatCells, moment.cell_pages);
        one.history.hot = hottest(process.details->hot, 10);
      }
      one.history.last = copyOf(counters);
      one.history.moments.push_back(std::move(moment));
    }
    for (auto& [key, one] : watched) {
      if (one.history.moments.size() >= kMostMoments) {
        for (auto& [other, each] : watched) halve(each.history.moments);
        every *= 2;
        break;
      }
    }
    if (!running && options.duration <= 0) {
      if (!watched.empty()) break;
      base::print(stderr,
                  "olpagestat: no program of yours uses a GPU under olpager now; with --duration "
                  "it waits for one\n");
      if (page != nullptr) std::fclose(page);
      return 1;
    }
  }
  int status = 0;
  for (auto& [key, one] : watched) {
    if (!one.reader) continue;
    if (!one.ended) one.reader->ask(0);
    drain(one);
    auto after = one.reader ? one.reader->counters() : nullptr;
    if (trace && one.before != nullptr) {
      trace->finish(one.history.pid, *one.before, after != nullptr ? *after : *one.history.last,
                    one.reader ? one.reader->lost() : 0);
    }
  }
  if (watched.empty()) {
    base::print(stderr, "olpagestat: no program of yours used a GPU under olpager meanwhile\n");
    status = 1;
  }
  if (trace && !trace->close()) {
    base::print(stderr, "olpagestat: {}: could not be written\n", options.trace);
    status = 1;
  }
  if (page != nullptr) {
    std::vector<History> histories;
    histories.reserve(watched.size());
    for (auto& [key, one] : watched) histories.push_back(std::move(one.history));
    const std::string text = reportPage(histories, hostName(), timeText());
    const bool written = std::fwrite(text.data(), 1, text.size(), page) == text.size();
    if (std::fclose(page) != 0 || !written) {
      base::print(stderr, "olpagestat: {}: could not be written\n", options.report);
      status = 1;
    }
  }
  return status;
}

}  // namespace olpager::tools
