// Executors of a program that runs under the unified view over several gpunodes: what its home says
// of them (coherence/status/unified_counters.h), for people and for programs. Pure functions of
// what was read.
//
// Thread-safety: any thread. Any value of a damaged file is shown as text or left out.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coherence/status/unified_counters.h"
#include "pager/counters/counters.h"

namespace olpager::tools {

/// 0: the program has no such view.
unsigned executorsOf(const pager::Counters& counters);
/// The gpunode of an executor, as text that may go anywhere.
std::string gpunodeOf(const pager::Counters& counters, unsigned executor);
/// Launches that went to any of them.
uint64_t launchesOf(const status::UnifiedCounters& counters);

/// An executor now, and a second of it. Rates are absent without a reading before.
struct ExecutorFigures {
  std::string gpunode;
  bool active = false;
  uint64_t owned = 0, retained = 0, room = 0, capacity = 0, pushed = 0;  // bytes
  uint64_t launches = 0, operations = 0;                                 // so far
  uint64_t kept = 0;   // of operations: while all moved
  uint64_t moves = 0;  // of all to it
  uint64_t bytes_in = 0, bytes_out = 0;
  uint64_t read = 0, unchanged = 0, in_part = 0;  // of bytes_in
  struct Rates {
    double launches = 0, operations = 0, moves = 0, bytes_in = 0, bytes_out = 0;
  };
  std::optional<Rates> a_second;
};
std::vector<ExecutorFigures> executorFigures(const pager::Counters& now,
                                             const pager::Counters* before, double seconds);

/// The last moves of all, `most` of them at most, the latest first.
struct NumberedMove {
  uint64_t number = 0;
  status::Move move;
};
std::vector<NumberedMove> lastMoves(const status::UnifiedCounters& counters, unsigned most);
/// "HOST:PORT -> HOST:PORT: why (pages), how long", without the end of a line.
std::string moveText(const pager::Counters& counters, const status::Move& move);

/// As lines with two spaces before each. `seconds`: that it has run; absent: nobody knows.
/// `now_ns`: CLOCK_MONOTONIC, 0: the moves have no time.
std::string executorsTable(const pager::Counters& counters, std::optional<double> seconds,
                           uint64_t now_ns);
/// null: the program has none.
nlohmann::ordered_json executorsJson(const pager::Counters& counters);

/// The columns of --watch for such a program, and a line of it for each executor.
std::string executorsWatchHead();
std::string executorsWatchLines(const pager::Counters& counters,
                                const std::vector<ExecutorFigures>& figures,
                                const std::string& time);
/// In at most `most` lines of the live screen.
std::vector<std::string> executorsScreen(const pager::Counters& counters,
                                         const std::vector<ExecutorFigures>& figures,
                                         uint64_t now_ns, size_t most);

}  // namespace olpager::tools
