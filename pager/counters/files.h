// The counters' files: the user's folder, one file for each process in it, and how a reader finds
// those of live ones. docs/reference/counters.md has the rules. Thread-safety: no shared state;
// each call stands for itself. Errors: one line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "pager/counters/counters.h"
#include "pager/counters/details.h"

namespace olpager::pager {

/// The folders of such files; new ones go to the first (base/runtime_folder.h).
std::vector<std::string> countersFolders(const std::string& fallback = "/tmp");

/// Opens `folder` after checking that it is a real directory, ours, and closed to all others; makes
/// it when `create`. A folder that is somebody else's, a symbolic link or open to others is
/// refused: its owner could change or read our files. Not there and not `create`: an empty
/// descriptor.
Result<base::UniqueFd> openCountersFolder(const std::string& folder, bool create);

/// "<pid>-<start ticks>.counters"
std::string countersFileName(uint64_t pid, uint64_t start_ticks);

/// Field 22 of /proc/<pid>/stat; 0 when there is no such process or it is only waiting for its
/// parent to notice its end.
uint64_t processStartTicks(uint64_t pid);

/// A new file of this process in `folder`, mapped shared for the rest of the process's life, its
/// header filled in.
Result<CountersFile*> createCountersFile(const std::string& folder, uint64_t keep_token);

/// Removes the file of process (pid, start_ticks); silently when there is none.
void removeCountersFile(const std::string& folder, uint64_t pid, uint64_t start_ticks) noexcept;

/// A file as read at one moment. `details` only when they were asked for.
struct CountersSnapshot {
  enum class State : uint8_t {
    kRunning,
    kEnded,
    kElsewhere
  };  // kElsewhere: of another PID namespace, can't be asked
  std::unique_ptr<Counters> counters;
  std::unique_ptr<CountersFile> details;  // `counters` again, and what lies behind them
  State state = State::kRunning;
  std::string folder;
};

struct CountersReading {
  std::vector<CountersSnapshot> processes;  // by pid
  std::vector<std::string> notes;           // one line each: what was passed over, and why
};

/// Everything in `folders`. Files of processes that have ended are removed, unless they ask to be
/// kept (keep_token). No more than `most` files are opened: a note says that there are more.
CountersReading readCounters(const std::vector<std::string>& folders, bool details = false,
                             size_t most = SIZE_MAX);

/// The file `path`, wherever it lies. The Error is one line.
Result<CountersSnapshot> readCountersFile(const std::string& path);

/// A process's file, open to read the ring of events and to ask for them. The process may end
/// meanwhile: its last values can still be read.
class TraceReader {
 public:
  struct Event {
    TraceKind kind = TraceKind::kLaunch;
    unsigned device = 0;
    uint32_t thread = 0;
    uint64_t start_ns = 0, end_ns = 0, address = 0, bytes = 0, value = 0;
  };
  /// Events from now on. The Error is one line.
  static Result<TraceReader> open(const std::string& folder, uint64_t pid, uint64_t start_ticks);
  /// The program puts events into the ring until then (CLOCK_MONOTONIC), 0: no more.
  void ask(uint64_t until_ns);
  /// Appends the new events. False: the file can't be read any more.
  bool read(std::vector<Event>& into);
  /// The counters at this moment; nullptr when they can't be read.
  std::unique_ptr<Counters> counters() const;
  /// How many events were overwritten before they were read, or that the program had to drop.
  uint64_t lost() const { return lost_ + dropped_ - dropped_before_; }

 private:
  base::UniqueFd file_;
  uint64_t next_ = 0;  // number of the event to be read next
  uint64_t lost_ = 0, dropped_ = 0, dropped_before_ = 0;
  unsigned stuck_ = 0;  // readings in which the next event was not whole
};

}  // namespace olpager::pager
