#include "base/locate.h"

#include <filesystem>
#include <initializer_list>
#include <system_error>

namespace olpager::base {
namespace fs = std::filesystem;

namespace {

bool isThere(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The build tree that holds `binary`, known by ninja's own file in its root; else empty.
fs::path buildRootOf(const fs::path& binary) {
  fs::path folder = binary.parent_path();
  for (int level = 0; level < 5 && folder.has_relative_path();
       level++, folder = folder.parent_path()) {
    if (isThere(folder / "build.ninja")) return folder;
  }
  return {};
}

// The prefix of an installation: binaries lie in <prefix>/bin or <prefix>/<libdir>.
fs::path prefixOf(const fs::path& binary) {
  const fs::path folder = binary.parent_path();
  if (folder.filename() == "bin") return folder.parent_path();
  const fs::path libdir = OLPAGER_LIBDIR;
  fs::path prefix = folder;
  for (auto part = libdir.begin(); part != libdir.end(); ++part) prefix = prefix.parent_path();
  return prefix / libdir == folder ? prefix : fs::path();
}

std::string firstOf(std::initializer_list<fs::path> candidates) {
  for (const auto& path : candidates) {
    if (isThere(path)) return path.string();
  }
  return {};
}

}  // namespace

std::string locateLibrary(std::string_view binary, std::string_view name) {
  if (const fs::path build = buildRootOf(binary); !build.empty()) {
    return firstOf({build / "interpose" / name, build / "gpunode" / "simgpu" / name});
  }
  const fs::path prefix = prefixOf(binary);
  if (prefix.empty()) return {};
  for (const fs::path libdir : {OLPAGER_LIBDIR, "lib"}) {
    const fs::path folder = prefix / libdir / "olpager";
    if (const std::string found = firstOf({folder / name}); !found.empty()) return found;
    // If an installation holds no links (a Python package), the library has the driver's name.
    if (const fs::path bare = folder / "libcuda.so.1"; name == "libolpager.so" && isThere(bare))
      return bare.string();
  }
  return {};
}

std::string locateProgram(std::string_view binary, std::string_view name) {
  if (const fs::path build = buildRootOf(binary); !build.empty()) {
    return firstOf({build / "gpunode" / "worker" / name, build / "gpunode" / "supervisor" / name});
  }
  const fs::path prefix = prefixOf(binary);
  return prefix.empty() ? std::string()
                        : firstOf({prefix / "libexec" / "olpager" / name, prefix / "bin" / name});
}

std::string locateLinkFolder(std::string_view binary) {
  if (const fs::path build = buildRootOf(binary); !build.empty()) {
    return firstOf({build / "interpose" / "olpager-lib"});
  }
  const fs::path prefix = prefixOf(binary);
  return prefix.empty()
             ? std::string()
             : firstOf({prefix / OLPAGER_LIBDIR / "olpager", prefix / "lib" / "olpager"});
}

std::string locateNvmlFolder(std::string_view binary) {
  if (const fs::path build = buildRootOf(binary); !build.empty())
    return firstOf({build / "interpose" / "olpager-nvml"});
  const fs::path prefix = prefixOf(binary);
  return prefix.empty() ? std::string()
                        : firstOf({prefix / OLPAGER_LIBDIR / "olpager" / "nvml",
                                   prefix / "lib" / "olpager" / "nvml"});
}

std::string currentExecutable() {
  std::error_code failure;
  const fs::path path = fs::read_symlink("/proc/self/exe", failure);
  return failure ? std::string() : path.string();
}

}  // namespace olpager::base
