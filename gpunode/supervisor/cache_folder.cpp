#include "gpunode/supervisor/cache_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace olpager::gpunode {
namespace {

namespace fs = std::filesystem;

std::string usualPlace() {
  const auto variable = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  // systemd's CacheDirectory= is ours already.
  if (const std::string given = variable("CACHE_DIRECTORY"); !given.empty())
    return given.substr(0, given.find(':'));
  if (const std::string caches = variable("XDG_CACHE_HOME"); !caches.empty())
    return caches + "/olpager";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/olpager";
  return "/var/cache/olpager";
}

}  // namespace

Result<std::string> makeCacheFolder(const std::string& wanted) {
  const fs::path folder = fs::path(wanted.empty() ? usualPlace() : wanted) / "modules";
  const auto failed = [&](const std::string& why) {
    return Error{"module cache " + folder.string() + ": " + why};
  };
  std::error_code problem;
  fs::create_directories(folder.parent_path(), problem);
  if (problem) return failed(problem.message());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed(std::strerror(errno));
  struct stat about {};
  if (lstat(folder.c_str(), &about) != 0) return failed(std::strerror(errno));
  if (!S_ISDIR(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 077) != 0)
    return failed("it is not a folder of this user's alone; chmod 700, or name another one");
  return folder.string();
}

}  // namespace olpager::gpunode
