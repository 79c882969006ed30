// The live screen as lines: a pure function of two samples, of what the user chose, and of the
// size.
#pragma once

#include <optional>
#include <vector>

#include "tools/olpagestat/sample.h"
#include "tools/olpagestat/terminal.h"

namespace olpager::tools {

enum class SortBy : uint8_t { kTraffic, kFaults, kVram, kPid };

/// What the user chose.
struct View {
  SortBy sort = SortBy::kTraffic;
  DeviceChoice devices;
  std::optional<ProcessKey> chosen;  // the highlighted process; the first when it is gone
  bool map = true;
  bool paused = false;
  double interval = 1;  // seconds
};

/// The processes in the order in which they are shown.
std::vector<ProcessKey> orderOf(const Sample& now, const Sample* before, const View& view);

std::vector<Line> screen(const Sample& now, const Sample* before, const View& view, unsigned width,
                         unsigned height);

/// The columns of --watch, and a line of it for each process.
std::string watchHead();
std::string watchLine(const pager::CountersSnapshot& process, const Figures& figures,
                      const std::string& time);

/// The live screen until the user ends it, `duration` is over (0: never), or there is no terminal
/// any more.
int runLive(const SampleSource& source, double interval, double duration);

}  // namespace olpager::tools
