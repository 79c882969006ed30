// The folder of this user's sockets and counters. Thread-safety: any thread.
#pragma once

#include <string>
#include <vector>

namespace olpager::base {

/// The folders in their order of search; new files go to the first. First $XDG_RUNTIME_DIR/olpager,
/// if that variable names a folder of this user, then /tmp/olpager-<uid>. If another user has taken
/// that name, a folder with a name that nobody can guess, /tmp/olpager-<uid>-XXXXXX, is made here
/// and found again by its owner. `fallback` stands for /tmp.
std::vector<std::string> runtimeFolders(const std::string& fallback = "/tmp");

}  // namespace olpager::base
