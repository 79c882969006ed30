// Finds this project's own files from a binary's place: in the build tree or below an
// installation's prefix. Thread-safety: pure but for the file system. Errors: an empty string when
// there is no such file.
#pragma once

#include <string>
#include <string_view>

namespace olpager::base {

/// Absolute path of `name` ("libolpager.so", "libolsimcuda.so") as seen from `binary`, the absolute
/// path of an executable or library of the project. Looks in the build tree's folders for that
/// name, then <prefix>/lib/olpager and the like.
std::string locateLibrary(std::string_view binary, std::string_view name);

/// A program that another of ours starts, beside `binary` in the build tree or installation; ""
/// when it is not there.
std::string locateProgram(std::string_view binary, std::string_view name);

/// The folder that holds links named libcuda.so and libcuda.so.1 to libolpager.so, for
/// LD_LIBRARY_PATH.
std::string locateLinkFolder(std::string_view binary);

/// The folder with the links libnvidia-ml.so and libnvidia-ml.so.1 to libolnvml.so, for
/// LD_LIBRARY_PATH of forwarded programs.
std::string locateNvmlFolder(std::string_view binary);

/// Path of the running executable (/proc/self/exe).
std::string currentExecutable();

}  // namespace olpager::base
