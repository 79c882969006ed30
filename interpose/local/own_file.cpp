#include "interpose/local/own_file.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace olpager::local {

namespace {

// An address inside this library.
const char kMarker = 0;

// The mapping table names files absolutely even when LD_PRELOAD named us relative to a folder that
// was left since.
std::string fileFromMaps(uintptr_t address) {
  std::string found;
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return found;
  char* line = nullptr;
  size_t capacity = 0;
  while (found.empty() && getline(&line, &capacity, maps) > 0) {
    unsigned long begin = 0;
    unsigned long end = 0;
    int path_at = 0;
    if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &path_at) < 2 || path_at == 0)
      continue;
    if (address < begin || address >= end || line[path_at] != '/') continue;
    found = line + path_at;
    while (!found.empty() && found.back() == '\n') found.pop_back();
  }
  free(line);
  fclose(maps);
  return found;
}

}  // namespace

std::string ownFile() {
  std::string file = fileFromMaps(reinterpret_cast<uintptr_t>(&kMarker));
  if (!file.empty()) return file;
  Dl_info info{};
  if (dladdr(&kMarker, &info) == 0 || info.dli_fname == nullptr) return {};
  char* real = realpath(info.dli_fname, nullptr);
  if (real == nullptr) return {};
  file = real;
  free(real);
  return file;
}

std::string ownFolder() {
  const std::string file = ownFile();
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash);
}

bool isOwnFile(const char* path) {
  struct stat theirs {};
  struct stat ours {};
  const std::string file = ownFile();
  if (file.empty() || stat(path, &theirs) != 0 || stat(file.c_str(), &ours) != 0) return false;
  return theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino;
}

}  // namespace olpager::local
