#include "base/runtime_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/format.h"

namespace olpager::base {
namespace {

bool isOwnFolder(const std::string& path) {
  struct stat about {};
  return lstat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == geteuid() &&
         (about.st_mode & 077) == 0;
}

bool isTaken(const std::string& path) {
  struct stat about {};
  return lstat(path.c_str(), &about) == 0 && about.st_uid != geteuid();
}

std::vector<std::string> othersIn(const std::string& parent, const std::string& usual) {
  const std::string start = usual.substr(parent.size() + 1) + "-";
  std::vector<std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(parent.c_str()), closedir);
  for (const dirent* entry = nullptr; folder && (entry = readdir(folder.get())) != nullptr;) {
    if (!std::string_view(entry->d_name).starts_with(start)) continue;
    std::string path = format("{}/{}", parent, entry->d_name);
    if (isOwnFolder(path)) found.push_back(std::move(path));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<std::string> runtimeFolders(const std::string& fallback) {
  std::vector<std::string> folders;
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  struct stat about {};
  if (runtime != nullptr && runtime[0] == '/' && stat(runtime, &about) == 0 &&
      S_ISDIR(about.st_mode) && about.st_uid == geteuid())
    folders.push_back(format("{}/olpager", runtime));
  const std::string usual = format("{}/olpager-{}", fallback, geteuid());
  if (!isTaken(usual)) {
    folders.push_back(usual);
    return folders;
  }
  auto others = othersIn(fallback, usual);
  // A process that makes one at the same moment makes another one: all look into both, and take the
  // first.
  if (std::string made = usual + "-XXXXXX"; others.empty() && mkdtemp(made.data()) != nullptr)
    others = othersIn(fallback, usual);
  folders.insert(folders.end(), others.begin(), others.end());
  if (folders.empty()) folders.push_back(usual);  // whose error tells of it
  return folders;
}

}  // namespace olpager::base
