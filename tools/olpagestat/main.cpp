// olpagestat: where the pages of programs under olpager live, and how they move.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <thread>

#include "pager/counters/files.h"
#include "tools/olpagestat/report.h"

namespace {

using namespace olpager;

struct Options {
  bool json = false;
  bool forget = false;
  std::optional<double> watch_seconds;
  std::optional<unsigned> pid;
};

std::string nothingToShow(const Options& options) {
  std::string folders;
  for (const auto& folder : pager::countersFolders()) folders += (folders.empty() ? "" : " and ") + folder;
  if (options.pid) return fmt::format("process {} has no counters of olpager (looked in {})", *options.pid, folders);
  return fmt::format("no program of yours uses a GPU under olpager now (looked in {})", folders);
}

// One reading, shown. False when the process asked for is not there.
bool show(const Options& options) {
  auto reading = pager::readCounters(pager::countersFolders());
  if (options.pid) {
    std::erase_if(reading.processes, [&](const auto& process) { return process.counters->pid != *options.pid; });
  }
  const bool none = reading.processes.empty();
  if (options.json) {
    fmt::print("{}", tools::countersJson(reading));
  } else {
    for (const auto& note : reading.notes) fmt::print(stderr, "olpagestat: {}\n", note);
    if (none) {
      fmt::print(options.pid ? stderr : stdout, "olpagestat: {}\n", nothingToShow(options));
    } else {
      fmt::print("{}", tools::countersTable(reading));
    }
  }
  std::fflush(stdout);
  if (options.forget) {
    for (const auto& process : reading.processes) {
      if (process.state != pager::CountersSnapshot::State::kEnded) continue;
      pager::removeCountersFile(process.folder, process.counters->pid, process.counters->start_ticks);
    }
  }
  return !(none && options.pid);
}

int watch(const Options& options) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  while (true) {
    if (terminal) fmt::print("\x1b[H\x1b[J");
    if (!show(options) || std::ferror(stdout) != 0) return 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(*options.watch_seconds));
    if (!terminal && !options.json) fmt::print("\n");
  }
}

int run(int argc, char** argv) {
  CLI::App app("Shows where the pages of your programs under olpager live, and how they move.", "olpagestat");
  Options options;
  bool once = false;
  app.add_flag("--once", once, "One table, then end (what it does without --watch)");
  app.add_flag("--json", options.json, "The same as JSON (docs/olpagestat.md)");
  app.add_option("--watch", options.watch_seconds, "Again every so many seconds")->check(CLI::Range(0.1, 86400.0));
  app.add_option("--pid", options.pid, "Only this process");
  app.add_flag("--forget", options.forget, "Then remove kept counters of processes that have ended");
  try {
    app.parse(argc, argv);
    if (once && options.watch_seconds) throw CLI::ValidationError("--once and --watch exclude each other");
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& failure) {
    fmt::print(stderr, "olpagestat: {} (olpagestat --help lists the options)\n", failure.what());
    return 2;
  }
  if (options.watch_seconds) return watch(options);
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
