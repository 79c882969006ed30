// Shows counters, for people (a table) and for programs (JSON). Pure functions of a reading.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pager/counters/files.h"
#include "tools/olpagestat/cards.h"
#include "tools/olpagestat/own_processes.h"

namespace olpager::tools {

/// How long the process has run; of one that was killed nobody knows when it ended.
std::optional<double> secondsOf(const pager::CountersSnapshot& process);

/// A block for each process with a column for each of its devices. Ends with a newline.
std::string countersTable(const pager::CountersReading& reading);

/// One JSON object: {"version": 1, "processes": [...], "forwarded": [...], "notes": [...]};
/// docs/reference/json.md has the keys. Bytes are bytes, waits nanoseconds, shares from 0 to 1
/// (null when there is nothing to divide by). `forwarded`: programs without counters here; null:
/// nobody looked. `cards`: of this machine.
std::string countersJson(const pager::CountersReading& reading,
                         const std::vector<Forwarded>* forwarded, const Cards& cards);

}  // namespace olpager::tools
