// Finds this library's own file, so that the search for the real driver skips it.
#pragma once

#include <string>

namespace olpager::local {

/// Absolute path of the file that holds this code; empty when it cannot be told (/proc absent and a
/// relative preload). Thread-safe. Makes system calls.
std::string ownFile();

/// The folder of ownFile(), without a slash at its end.
std::string ownFolder();

/// True when `path` names (through links too) the very file that holds this code.
bool isOwnFile(const char* path);

}  // namespace olpager::local
