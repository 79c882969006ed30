// Watching programs for a while: --trace writes each event as it comes, --report keeps what the
// page's plots need. Both at once share one loop.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/olpagestat/sample.h"

namespace olpager::tools {

/// A file of the trace event format (Chrome, Perfetto), written bit by bit. Times are
/// CLOCK_MONOTONIC, so the traces of several programs of one machine fit together.
class TraceFile {
 public:
  /// The Error is one line.
  static Result<std::unique_ptr<TraceFile>> create(const std::string& path);
  ~TraceFile();

  void process(uint32_t pid, const std::string& name);
  void event(uint32_t pid, const pager::TraceReader::Event& event);
  /// Bytes in each tier at a moment, drawn as a graph.
  void tiers(uint32_t pid, double seconds, const Figures& figures);
  /// Moves of all that it has not heard of, each on the lanes of its executors.
  void moves(uint32_t pid, const pager::Counters& counters);
  /// Each executor's pages at a moment, drawn as graphs, and the moves.
  void executors(uint32_t pid, double seconds, const pager::Counters& counters);
  /// Ends it, with what the program counted meanwhile (deltas) and how many events were lost.
  /// False: it could not be written.
  bool finish(uint32_t pid, const pager::Counters& before, const pager::Counters& after,
              uint64_t lost);
  bool close();

 private:
  TraceFile() = default;
  void put(const std::string& text);
  void nameThread(uint32_t pid, uint32_t thread, const std::string& name);

  struct Open {
    uint64_t start_ns = 0;
    uint32_t id = 0;
  };
  FILE* file_ = nullptr;
  bool first_ = true;
  uint32_t next_id_ = 0;
  // Open events of each process and extent: a way into VRAM, an eviction, the write-back within
  // one.
  std::map<std::pair<uint32_t, uint64_t>, Open> coming_, leaving_, writing_;
  std::map<std::pair<uint32_t, uint32_t>, std::string> threads_;  // their names
  struct Count {
    uint64_t launches = 0, copies = 0, faults = 0, fetches = 0, prefetches = 0, clean = 0,
             written = 0, open = 0;
  };
  std::map<uint32_t, Count> counts_;
  // For a process with executors: which moves have been written, and since when one is active.
  struct Lanes {
    uint64_t next = 0;
    uint64_t active_since_ns = 0;
    std::optional<unsigned> active;  // none: moves were lost
  };
  std::map<uint32_t, Lanes> lanes_;
  void activeUntil(uint32_t pid, const Lanes& lanes, uint64_t end_ns);
  std::string summary_;
};

/// A program's points in a report: a moment, then the next.
struct Moment {
  double seconds = 0;
  Figures figures;
  std::vector<Cell> cells;
  uint64_t cell_pages = 0;
  std::vector<uint64_t> owned;  // bytes, by each executor of a unified view
};
struct History {
  uint32_t pid = 0;
  std::string program;
  std::vector<Moment> moments;
  std::unique_ptr<pager::Counters> first, last;
  std::vector<HotAllocation> hot;
  std::vector<std::pair<std::string, std::string>> settings;  // of its environment
  std::optional<double> run_seconds;                          // since it began, at the last moment
};
/// One page with everything in it: it opens without a network.
std::string reportPage(const std::vector<History>& histories, const std::string& host,
                       const std::string& when);

struct RecordOptions {
  std::string trace;    // path, "" none
  std::string report;   // path, "" none
  double duration = 0;  // seconds; 0: until the programs have ended, or ^C
  Programs programs;
};
/// 0 when something was recorded and written, else 1 after a line on standard error.
int record(const RecordOptions& options);

}  // namespace olpager::tools
