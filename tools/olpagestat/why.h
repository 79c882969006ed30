// Why a program is slow: what its counters say of the time that it lost, the worst first, with what
// to do about it. The findings are a pure function of the counters; why_text.cpp shows them.
//
// A finding is there only where what it stands on was measured and costs something: never a figure
// for what nobody measured. Nothing knows any program by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pager/counters/files.h"

namespace olpager::tools {

/// Something that costs time.
struct Finding {
  std::string id;                  // "budget": a word for programs, and for the documentation
  std::optional<unsigned> device;  // that it is about
  /// The cost in the run; none: nobody measures it. Those come last.
  std::optional<double> seconds;
  bool estimated = false;  // `seconds` follows from figures of other things; the evidence says how
  std::string title;       // in a few words
  std::string evidence;    // sentences with figures and units
  std::string action;      // one thing to do
};

/// The findings in a program's counters.
struct Findings {
  std::vector<Finding> found;             // the worst first; none: in order
  std::vector<std::string> not_measured;  // what can't be said, and why, where that matters
  bool measured = true;                   // something was: without findings the program is in order
  std::optional<double> run_seconds;  // how long it has run; of one that was killed nobody knows
  /// The GPUs' states while not all was in VRAM, in seconds.
  struct Gpu {
    double all = 0;  // that they were looked at
    double busy = 0, pages = 0, host = 0, hop = 0, unknown = 0;
  };
  std::optional<Gpu> gpu;  // none: they were not looked at
};

/// Pure. `run_seconds`: how long the program has run.
Findings findings(const pager::Counters& counters, std::optional<double> run_seconds);
/// The findings for a process as read.
Findings findings(const pager::CountersSnapshot& process);

/// ", about 4.1 s, 38% of the run": what a finding costs.
std::string costText(const Finding& finding, const Findings& all);
/// A sentence: what the GPUs were at.
std::string gpuText(const Findings::Gpu& gpu);

/// For people; ends with a newline.
std::string whyText(const pager::CountersReading& reading);
/// {"version": 1, "processes": [...], "notes": [...]}; docs/reference/json.md has the keys.
std::string whyJson(const pager::CountersReading& reading);

}  // namespace olpager::tools
