// Where this user's sockets and counters are. Thread-safety: any thread.
#pragma once

#include <string>
#include <vector>

namespace olpager::base {

/// In the order in which they are looked through; the first is where things are made. It is
/// $XDG_RUNTIME_DIR/olpager where that variable names a folder of this user, then
/// /tmp/olpager-<uid>. Where another user has taken that name it is one of a name that nobody can
/// know before, /tmp/olpager-<uid>-XXXXXX, which is made here and found again by its owner.
/// `fallback` stands for /tmp.
std::vector<std::string> runtimeFolders(const std::string& fallback = "/tmp");

}  // namespace olpager::base
