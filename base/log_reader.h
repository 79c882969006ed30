// A daemon's log and its reader (log.h).
#pragma once

namespace olpager::base {

/// For a daemon, before it has a second thread: where standard error takes nothing now (a pipe that
/// nobody reads) nobody waits. The line is lost, and the next that is written says how many were.
void neverWaitForLogReader() noexcept;

}  // namespace olpager::base
