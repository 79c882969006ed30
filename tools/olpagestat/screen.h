// The live screen as lines: a pure function of two samples, of what the user chose, and of the
// size.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/olpagestat/sample.h"
#include "tools/olpagestat/terminal.h"
#include "tools/olpagestat/trails.h"

namespace olpager::tools {

enum class SortBy : uint8_t {
  kTraffic,
  kFaults,
  kVram,
  kPid,
  kProgram,
  kHost,
  kRemote,
  kLaunches,
  kHitRate,
  kWaits
};
inline constexpr unsigned kSorts = 10;

/// The user's choices.
struct View {
  SortBy sort = SortBy::kTraffic;
  bool reversed = false;  // the other way round
  std::string filter;     // only programs whose name or process id has this in it
  bool typing = false;    // the filter
  DeviceChoice devices;
  std::optional<ProcessKey> chosen;  // the highlighted process; the first when it is gone
  bool map = true;
  bool plots = true;
  bool help = false;     // instead of all else
  bool unicode = false;  // the terminal shows braille
  bool paused = false;
  double interval = 1;  // seconds
};

/// The processes that are shown, in their order.
std::vector<ProcessKey> orderOf(const Sample& now, const Sample* before, const View& view);

/// In at most `height` lines.
std::vector<Line> screen(const Sample& now, const Sample* before, const Trails& trails,
                         const View& view, unsigned width, unsigned height);

/// The columns of --watch, and a line of it for each process.
std::string watchHead();
std::string watchLine(const pager::CountersSnapshot& process, const Figures& figures,
                      const std::string& time);

/// The live screen until the user ends it, `duration` is over (0: never), or there is no terminal
/// any more.
int runLive(const SampleSource& source, double interval, double duration);

}  // namespace olpager::tools
