// Readings over time and what follows from two of them: rates, percentiles of an interval, a map of
// the address space in cells. Pure functions of what was read; readSample() alone touches files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pager/counters/files.h"
#include "tools/olpagestat/cards.h"
#include "tools/olpagestat/node.h"
#include "tools/olpagestat/own_processes.h"

namespace olpager::tools {

/// Everything at one moment.
struct Sample {
  double seconds = 0;  // CLOCK_MONOTONIC
  pager::CountersReading reading;
  // Programs without counters here, whose GPU work goes to gpunodes; none: nobody looked.
  std::optional<std::vector<Forwarded>> forwarded;
  Cards cards;                    // of this machine, where somebody asked NVML
  std::vector<NodeSample> nodes;  // daemons that were asked (--node)
};

/// The source of samples: this machine's files, or whatever else can tell.
using SampleSource = std::function<Sample()>;

/// Selects programs of this machine.
struct Programs {
  std::optional<unsigned> pid;  // none: all
  std::vector<std::string>
      folders;  // their counters lie there; empty: where this user's programs put them
  /// Shared by all copies: they ask of the same machine.
  std::shared_ptr<ForwardedLooks> looks = std::make_shared<ForwardedLooks>();
  /// `folders`, or those that stand for empty.
  std::vector<std::string> places() const;
};

/// Adds to the name of an interpreter that runs the name of its script. As the processes' user.
void nameScripts(pager::CountersReading& reading);

/// Reads their counters. `details`: the map and the table of allocations too. Forwarded programs
/// are looked for once a second at most.
Sample readSample(const Programs& programs, bool details);

/// A line for each card. If NVML tells of none and a program uses a GPU here: one of what the
/// programs themselves have there, and why there is no more.
std::vector<std::string> cardLines(const Sample& sample);

/// Names a process for as long as the machine is up.
struct ProcessKey {
  uint32_t pid = 0;
  uint64_t start_ticks = 0;
  auto operator<=>(const ProcessKey&) const = default;
};
ProcessKey keyOf(const pager::CountersSnapshot& process);
/// The programs' process ids.
std::vector<uint32_t> pidsOf(const Sample& sample);
const pager::CountersSnapshot* find(const Sample& sample, const ProcessKey& key);

/// A set of devices; all by default.
struct DeviceChoice {
  std::optional<unsigned> only;
  bool holds(unsigned device) const { return !only || *only == device; }
};

/// A process now, and a second of it: its figures summed over devices, rates over the time between
/// two samples. Rates and shares are absent where there is nothing to take them of.
struct Figures {
  uint64_t vram = 0, vram_budget = 0, host = 0, in_place = 0, remote = 0, pinned = 0, allocated = 0;
  double launches = 0, copies = 0, faults = 0;                 // a second
  double fetched = 0, prefetched = 0, clean = 0, written = 0;  // extents a second, by path
  double bytes_in = 0, bytes_out = 0;                          // a second, into and out of VRAM
  double remote_in = 0, remote_out = 0;                        // likewise, from and to memservers
  /// Bytes a second on every path.
  double traffic() const { return bytes_in + bytes_out + remote_in + remote_out; }
  std::optional<double> hit_rate, accuracy;        // of the interval, 0 to 1
  std::optional<double> wait_p50_ns, wait_p99_ns;  // likewise
};
Figures figuresOf(const pager::Counters& now, const pager::Counters* before, double seconds,
                  const DeviceChoice& devices = {});

/// A cell of the map: some pages of the address space that are next to each other.
struct Cell {
  uint64_t address = 0;                      // of its first page
  pager::Place place = pager::Place::kNone;  // of most of its pages
  unsigned device = 0;
};
/// The used pages in the order of their addresses, in at most `cells` cells; `pages` each holds, 0
/// when there are none.
std::vector<Cell> residencyCells(const pager::ResidencyMap& map, size_t cells, uint64_t& pages,
                                 const DeviceChoice& devices = {});

/// An allocation of the table.
struct HotAllocation {
  uint64_t base = 0, bytes = 0, fetched = 0, evicted = 0, bytes_in = 0, bytes_out = 0;
  unsigned device = 0;
};
/// The `most` that moved most bytes, most first.
std::vector<HotAllocation> hottest(const pager::HotTable& table, size_t most,
                                   const DeviceChoice& devices = {});

/// True if the program has memservers, or had.
bool usesMemservers(const pager::Counters& counters);
}  // namespace olpager::tools
