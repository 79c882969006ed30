// olpagestat: where the pages of programs under olpager live, and how they move.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/command_line.h"
#include "base/format.h"
#include "base/text.h"
#include "pager/counters/files.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/exporter.h"
#include "tools/olpagestat/node.h"
#include "tools/olpagestat/own_processes.h"
#include "tools/olpagestat/recording.h"
#include "tools/olpagestat/report.h"
#include "tools/olpagestat/sample.h"
#include "tools/olpagestat/screen.h"
#include "tools/olpagestat/terminal.h"
#include "tools/olpagestat/why.h"

namespace {

using namespace olpager;

struct Options {
  bool json = false;
  bool forget = false;
  bool why = false;
  std::string file;  // of counters, for --why
  std::optional<double> watch_seconds;
  tools::NodeOptions nodes;
  status::MetricsOptions prometheus;
  tools::RecordOptions record;  // its programs and duration are the others' as well
};

std::string nothingToShow(const Options& options) {
  std::string folders;
  for (const auto& folder : options.record.programs.places())
    folders += (folders.empty() ? "" : " and ") + folder;
  if (options.record.programs.pid) {
    return base::format("process {} has no counters of olpager (looked in {})",
                        *options.record.programs.pid, folders);
  }
  return base::format("no program of yours uses a GPU under olpager now (looked in {})", folders);
}

// A line for each program whose GPU work goes elsewhere, but for those that have counters here.
std::string forwardedLines(const tools::Sample& sample) {
  std::string lines;
  if (!sample.forwarded) return lines;
  for (const tools::Forwarded& one : *sample.forwarded) {
    lines += base::format("{}  pid {}  forwarded to {}; olpagestat --node shows it there\n",
                          one.program, one.pid, one.gpunodes);
  }
  return lines;
}

// One reading, shown. False when the process asked for is not there.
bool show(const Options& options) {
  tools::Sample sample = tools::readSample(options.record.programs, false);
  sample.cards = tools::readCards();
  const auto& reading = sample.reading;
  bool none = reading.processes.empty();
  const std::string forwarded = forwardedLines(sample);
  if (options.json) {
    base::print("{}", tools::countersJson(reading, sample.forwarded ? &*sample.forwarded : nullptr,
                                          sample.cards));
    none = none && forwarded.empty();
  } else {
    for (const auto& note : reading.notes) base::print(stderr, "olpagestat: {}\n", note);
    if (none && !forwarded.empty()) {
      base::print("{}", forwarded);
      none = false;
    } else if (none) {
      base::print(options.record.programs.pid ? stderr : stdout, "olpagestat: {}\n",
                  nothingToShow(options));
    } else {
      base::print("{}{}", tools::countersTable(reading), forwarded);
    }
    for (const std::string& line : tools::cardLines(sample)) base::print("{}\n", line);
  }
  std::fflush(stdout);
  if (options.forget) {
    for (const auto& process : reading.processes) {
      if (process.state != pager::CountersSnapshot::State::kEnded) continue;
      pager::removeCountersFile(process.folder, process.counters->pid,
                                process.counters->start_ticks);
    }
  }
  return !(none && options.record.programs.pid);
}

// Shows what costs programs time.
int showWhy(const Options& options) {
  pager::CountersReading reading;
  if (options.file.empty()) {
    reading = tools::readSample(options.record.programs, false).reading;
  } else if (auto file = pager::readCountersFile(options.file); file.ok()) {
    reading.processes.push_back(std::move(file.value()));
  } else {
    base::print(stderr, "olpagestat: {}\n", base::printable(file.error().message));
    return 1;
  }
  const bool none = reading.processes.empty();
  if (options.json) {
    base::print("{}", tools::whyJson(reading));
  } else {
    for (const auto& note : reading.notes) base::print(stderr, "olpagestat: {}\n", note);
    if (none)
      base::print(options.record.programs.pid ? stderr : stdout, "olpagestat: {}\n",
                  nothingToShow(options));
    base::print("{}", tools::whyText(reading));
  }
  return none && options.record.programs.pid ? 1 : 0;
}

// A line for each program, again and again; with --json an object each time.
int watch(const Options& options) {
  constexpr unsigned kHeadEvery = 20;
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  const auto pause = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(*options.watch_seconds));
  tools::Sample before = tools::readSample(options.record.programs, false);
  if (options.record.programs.pid && before.reading.processes.empty()) {
    base::print(stderr, "olpagestat: {}\n", nothingToShow(options));
    return 1;
  }
  for (const auto& note : before.reading.notes) base::print(stderr, "olpagestat: {}\n", note);
  unsigned lines = 0;
  bool executors = false;  // the last line was of one
  for (unsigned round = 1;; round++) {
    if (options.json && !show(options)) return 1;
    std::this_thread::sleep_until(begun + round * pause);
    if (!options.json) {
      tools::Sample now = tools::readSample(options.record.programs, false);
      if (options.record.programs.pid && now.reading.processes.empty()) return 0;  // it has ended
      for (const auto& process : now.reading.processes) {
        const auto* found = tools::find(before, tools::keyOf(process));
        const auto* then = found != nullptr ? found->counters.get() : nullptr;
        const auto& counters = *process.counters;
        const double seconds = now.seconds - before.seconds;
        const bool unified = tools::executorsOf(counters) != 0;
        if (unified != std::exchange(executors, unified)) lines = 0;
        if (lines++ % kHeadEvery == 0)
          base::print("{}", unified ? tools::executorsWatchHead() : tools::watchHead());
        base::print("{}",
                    unified
                        ? tools::executorsWatchLines(
                              counters, tools::executorFigures(counters, then, seconds), "")
                        : tools::watchLine(process, tools::figuresOf(counters, then, seconds), ""));
      }
      before = std::move(now);
      std::fflush(stdout);
    }
    if (std::ferror(stdout) != 0) return 1;
    if (options.record.duration > 0 &&
        Clock::now() - begun >= std::chrono::duration<double>(options.record.duration))
      return 0;
  }
}

// Daemons instead of programs: one answer of each, or with --watch a line for each again and again.
int showNodes(tools::NodeSource& source, const Options& options) {
  constexpr unsigned kHeadEvery = 20;
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  std::vector<tools::NodeSample> before;
  unsigned lines = 0;
  for (unsigned round = 0;; round++) {
    std::vector<tools::NodeSample> now = source.ask();
    bool all = true;
    if (options.json) base::print("{}", tools::nodesJson(now));
    for (size_t i = 0; i < now.size(); i++) {
      all &= now[i].told.has_value();
      if (!options.json && options.watch_seconds) {
        if (lines++ % kHeadEvery == 0) base::print("{}", tools::nodeWatchHead());
        base::print("{}", tools::nodeWatchLine(now[i], before.empty() ? nullptr : &before[i]));
      } else if (!now[i].told) {
        base::print(stderr, "olpagestat: {}\n", now[i].error);
      } else if (!options.json) {
        base::print("{}{}", i == 0 ? "" : "\n", tools::nodeTable(now[i], nullptr));
      }
    }
    std::fflush(stdout);
    if (!options.watch_seconds) return all ? 0 : 1;
    if (std::ferror(stdout) != 0) return 1;
    if (options.record.duration > 0 &&
        Clock::now() - begun >= std::chrono::duration<double>(options.record.duration))
      return 0;
    before = std::move(now);
    std::this_thread::sleep_until(
        begun + (round + 1) * std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(*options.watch_seconds)));
  }
}

int run(int argc, char** argv) {
  base::CommandLine line(
      "olpagestat",
      "Shows where the pages of your programs under olpager live, and how they move. On a terminal "
      "a live screen; else "
      "one table.",
      "[OPTION...]",
      {{"olpagestat", "all programs of yours, live"},
       {"olpagestat --watch 1 --pid 4711", "a line each second for one of them"},
       {"olpagestat --why", "what costs them time, the worst first, and what to do about it"},
       {"olpagestat --node 10.0.0.2:7070 --key KEYFILE", "who has what of a daemon's memory"}});
  Options options;
  bool once = false;
  constexpr const char *kWhat = "What is shown", *kHow = "How",
                       *kDaemons = "Daemons of other machines", *kRecord = "To be looked at later",
                       *kPrometheus = "For Prometheus";
  constexpr double kLeastSeconds = 0.1, kMostSeconds = 86400;
  const auto seconds = [&](const char* name, auto& into, const char* text) {
    return line.app()
        .add_option(name, into, text)
        ->check(base::numberBetween(kLeastSeconds, kMostSeconds))
        ->type_name("SECONDS");
  };
  const auto text = [&](const char* name, auto& into, const char* type, const char* does) {
    return line.app().add_option(name, into, does)->type_name(type);
  };
  line.app()
      .add_option("--pid", options.record.programs.pid, "Only this process")
      ->check(base::wholeNumber(1, INT32_MAX))
      ->type_name("NUMBER")
      ->group(kWhat);
  text("--folder", options.record.programs.folders, "FOLDER",
       "Only programs whose counters lie in this folder; several times for several (default: "
       "$XDG_RUNTIME_DIR/olpager and /tmp/olpager-UID)")
      ->group(kWhat);
  line.app()
      .add_flag("--forget", options.forget,
                "Then remove kept counters of processes that have ended")
      ->group(kWhat);
  line.app()
      .add_flag("--why", options.why,
                "Why they are slow: what costs them time, the worst first. With a FILE: of the "
                "program that wrote these counters")
      ->group(kWhat);
  line.app().add_flag("--once", once, "One table, then end")->group(kHow);
  line.app()
      .add_flag("--json", options.json, "The same as JSON (docs/reference/json.md)")
      ->group(kHow);
  seconds("--watch", options.watch_seconds, "A line for each program every so many seconds")
      ->group(kHow);
  seconds("--duration", options.record.duration,
          "How long to watch; else until the programs end, or ^C")
      ->group(kHow);
  text("--node", options.nodes.addresses, "HOST:PORT",
       "Ask this daemon (or unix:/path) who has what of it; several times for several")
      ->group(kDaemons);
  text("--key", options.nodes.key, "FILE", "The key for --node (default: that of the settings)")
      ->group(kDaemons);
  text("--tls", options.nodes.tls, "WHAT",
       "For --node: all, control or off (default: that of the settings)")
      ->group(kDaemons);
  const auto file = [&](const char* name, auto& into, const char* does) {
    text(name, into, "FILE", does)->group(kPrometheus);
  };
  text(
      "--prometheus", options.prometheus.address, "HOST:PORT",
      "Serve the figures of all programs (as root of all users), and of the daemons of --node, for "
      "Prometheus")
      ->group(kPrometheus);
  file("--prometheus-token", options.prometheus.token,
       "File with the token that who asks has to bring; needed beyond loopback");
  file("--prometheus-cert", options.prometheus.certificate,
       "File with a certificate (PEM): served by HTTPS");
  file("--prometheus-cert-key", options.prometheus.private_key,
       "File with that certificate's private key (PEM)");
  text("--trace", options.record.trace, "FILE",
       "Record faults, migrations, evictions and launches into this file (Chrome, Perfetto)")
      ->group(kRecord);
  text("--report", options.record.report, "FILE",
       "Watch, then write a page with plots into this file (HTML)")
      ->group(kRecord);
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::vector<std::string> rest;
  if (const auto status = line.parse(words, &rest)) return *status;
  if (!rest.empty() && (!options.why || rest.size() > 1 || rest.front().starts_with("-"))) {
    const auto status = line.parse(words);  // says what is not expected
    return status ? *status : 2;
  }
  if (!rest.empty()) options.file = rest.front();
  if (once && options.watch_seconds) return line.refuse("--once and --watch exclude each other");
  const bool records = !options.record.trace.empty() || !options.record.report.empty();
  if (records && (once || options.json || options.watch_seconds || options.forget))
    return line.refuse("--trace and --report go with --duration and --pid only");
  const bool nodes = !options.nodes.addresses.empty();
  if (options.why &&
      (records || nodes || options.watch_seconds || options.forget || options.prometheus.wanted()))
    return line.refuse("--why goes with --pid, --folder, --json and a FILE only");
  if (!options.file.empty() && options.record.programs.pid)
    return line.refuse("--pid and a FILE exclude each other");
  if (nodes && (records || options.forget || options.record.programs.pid))
    return line.refuse("--node goes with --once, --json, --watch and --duration only");
  const bool serves = options.prometheus.wanted();
  if (serves && (once || options.json || options.watch_seconds || options.forget || records ||
                 options.record.programs.pid))
    return line.refuse("--prometheus goes with --node, --folder and --duration only");
  if (!serves && !(options.prometheus.token.empty() && options.prometheus.certificate.empty() &&
                   options.prometheus.private_key.empty()))
    return line.refuse(
        "--prometheus-token, --prometheus-cert and --prometheus-cert-key are for "
        "--prometheus");
  if (serves) {
    if (auto status = base::checkAddress(options.prometheus.address, base::AddressUse::kListenHere,
                                         base::kMetricsPort + 2);
        !status.ok())
      return line.refuse("--prometheus: " + status.error().message);
  }
  if (!nodes && !(options.nodes.key.empty() && options.nodes.tls.empty()))
    return line.refuse("--key and --tls are for --node");
  // A watcher may have begun before the program that makes the folder.
  const bool live =
      !serves && !once && !options.json && !options.watch_seconds && tools::Terminal::usable();
  const bool watches = records || options.watch_seconds || (live && !options.forget);
  for (const std::string& folder : options.record.programs.folders) {
    std::error_code why;
    if (watches && !std::filesystem::exists(folder, why)) continue;
    if (std::filesystem::is_directory(folder, why)) continue;
    return line.refuse(base::format("--folder: {}: {}", base::printable(folder),
                                    why ? why.message() : std::string("it is no folder")));
  }
  for (const std::string& address : options.nodes.addresses) {
    if (auto status = base::checkAddress(address, base::AddressUse::kConnect, base::kMemserverPort);
        !status.ok())
      return line.refuse("--node: " + status.error().message);
  }
  if (options.why) return showWhy(options);
  if (serves) {
    const tools::ExporterOptions exporter{options.prometheus, options.nodes,
                                          options.record.programs, options.record.duration};
    return tools::runExporter(exporter);
  }
  if (records) return tools::record(options.record);
  if (!options.nodes.addresses.empty()) {
    auto source = tools::NodeSource::make(options.nodes, live ? 1000 : 5000);
    if (!source.ok()) {
      base::print(stderr, "olpagestat: {}\n", source.error().message);
      return 2;
    }
    if (!live) return showNodes(source.value(), options);
    const auto both = [&source, &options] {
      tools::Sample sample = tools::readSample(options.record.programs, true);
      sample.cards = tools::readCards();
      sample.nodes = source.value().ask();
      return sample;
    };
    return tools::runLive(both, 1, options.record.duration);
  }
  if (options.watch_seconds) return watch(options);
  if (live && !options.forget) {
    const auto here = [&options] {
      tools::Sample sample = tools::readSample(options.record.programs, true);
      sample.cards = tools::readCards();
      return sample;
    };
    return tools::runLive(here, 1, options.record.duration);
  }
  return show(options) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "olpagestat: %s\n", failure.what());
    return 1;
  }
}
