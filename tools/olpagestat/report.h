// What the counters say, for people (a table) and for programs (JSON). Pure functions of a reading.
#pragma once

#include <string>

#include "pager/counters/files.h"

namespace olpager::tools {

/// A block for each process with a column for each of its devices. Ends with a newline.
std::string countersTable(const pager::CountersReading& reading);

/// One JSON object: {"version": 1, "processes": [...], "notes": [...]}; docs/reference/json.md has
/// the keys. Bytes are bytes, waits nanoseconds, shares from 0 to 1 (null when there is nothing to
/// divide by).
std::string countersJson(const pager::CountersReading& reading);

}  // namespace olpager::tools
