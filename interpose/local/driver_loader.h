// Finds and opens the real driver: the libcuda.so.1 that the program would have got without us.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace olpager::local {

/// An opened driver. The handle is never closed: the driver's own threads and exit handlers outlive
/// every caller.
struct LoadedDriver {
  void* handle = nullptr;
  std::string path;
};

/// `setting` is OL_DRIVER: a path, `sim` for the simulated GPU that is installed (or built) beside
/// us, or empty for the search below. The error is one line for the user. Start-up only: reads
/// files and may allocate.
Result<LoadedDriver> loadDriver(const std::string& setting);

/// The files where the loader would look for libcuda.so.1, in its order: LD_LIBRARY_PATH, the
/// ldconfig cache, the system's folders, then the folders in which containers and WSL put the
/// driver. Existing files only; neither us nor a toolkit's stubs.
std::vector<std::string> driverCandidates();

/// The paths that an ldconfig cache gives for `name` (64-bit x86 entries of the format
/// "glibc-ld.so.cache1.1", which is laid out as in glibc's sysdeps/generic/dl-cache.h). Empty when
/// the file is missing or is not such a cache.
std::vector<std::string> pathsInLdCache(const char* cache_file, const char* name);

}  // namespace olpager::local
