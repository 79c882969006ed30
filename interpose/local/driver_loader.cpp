#include "interpose/local/driver_loader.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "interpose/local/dlopen_hook.h"
#include "interpose/local/own_file.h"

// Exported so that a copy of this library under another name is known for what it is.
extern "C" __attribute__((visibility("default"))) const int olpager_interposer_marker = 1;

namespace olpager::local {

namespace {

constexpr const char* kDriverName = "libcuda.so.1";
constexpr const char* kSimulatedName = "libolsimcuda.so";

bool isFile(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// The toolkit's stubs folder holds a libcuda to link against, which only returns errors.
bool inStubsFolder(const std::string& path) {
  bool stubs = path.find("/stubs/") != std::string::npos;
  if (char* real = realpath(path.c_str(), nullptr)) {
    stubs = stubs || strstr(real, "/stubs/") != nullptr;
    free(real);
  }
  return stubs;
}

void addCandidate(std::vector<std::string>& into, const std::string& path) {
  if (!isFile(path) || inStubsFolder(path) || isOwnFile(path.c_str())) return;
  if (std::find(into.begin(), into.end(), path) == into.end()) into.push_back(path);
}

// Empty entries of LD_LIBRARY_PATH mean the working directory, as for the loader.
std::vector<std::string> libraryPathFolders() {
  std::vector<std::string> folders;
  const char* value = getenv("LD_LIBRARY_PATH");
  if (value == nullptr || *value == '\0') return folders;
  const std::string all = value;
  size_t begin = 0;
  while (begin <= all.size()) {
    const size_t end = std::min(all.find_first_of(":;", begin), all.size());
    folders.push_back(end == begin ? "." : all.substr(begin, end - begin));
    begin = end + 1;
  }
  return folders;
}

std::string readFile(const char* path) {
  std::string bytes;
  FILE* file = fopen(path, "re");
  if (file == nullptr) return bytes;
  char buffer[65536];
  size_t got = 0;
  while ((got = fread(buffer, 1, sizeof(buffer), file)) > 0) bytes.append(buffer, got);
  fclose(file);
  return bytes;
}

// On-disk layout of the cache; all numbers little-endian.
struct CacheHeader {
  char magic[20];  // "glibc-ld.so.cache1.1"
  uint32_t count;
  uint32_t string_bytes;
  uint8_t flags;
  uint8_t padding[3];
  uint32_t extension_offset;
  uint32_t unused[3];
};
static_assert(sizeof(CacheHeader) == 48);

struct CacheEntry {
  int32_t flags;
  uint32_t key;  // offsets of NUL-terminated strings from the header
  uint32_t value;
  uint32_t os_version;
  uint64_t hardware;
};
static_assert(sizeof(CacheEntry) == 24);

constexpr char kCacheMagic[] = "glibc-ld.so.cache1.1";
constexpr char kOldCacheMagic[] = "ld.so-1.7.0";
constexpr int32_t kFlagX8664Libc6 = 0x0303;

// The start of the modern cache: at the start, or behind an old-format one.
size_t findCache(const std::string& bytes) {
  if (bytes.compare(0, sizeof(kCacheMagic) - 1, kCacheMagic) == 0) return 0;
  if (bytes.compare(0, sizeof(kOldCacheMagic) - 1, kOldCacheMagic) == 0)
    return bytes.find(kCacheMagic);
  return std::string::npos;
}

Result<LoadedDriver> openDriver(const std::string& path) {
  void* handle = nextDlopen()(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return Error{"the CUDA driver " + path +
                 " can't be loaded: " + (why != nullptr ? why : "unknown reason")};
  }
  if (dlsym(handle, "olpager_interposer_marker") != nullptr) {
    dlclose(handle);
    return Error{
        path +
        " is this interposer, not a CUDA driver; set OL_DRIVER to the driver's libcuda.so.1"};
  }
  if (dlsym(handle, "cuInit") == nullptr) {
    dlclose(handle);
    return Error{
        path +
        " exports no cuInit: it is not a CUDA driver; set OL_DRIVER to the driver's libcuda.so.1"};
  }
  return LoadedDriver{handle, path};
}

Result<LoadedDriver> loadSimulated() {
  const std::string folder = ownFolder();
  // Installed: both in one folder. In the build tree: interpose/ beside gpunode/simgpu/.
  const char* places[] = {"/", "/olpager/", "/../gpunode/simgpu/", "/../../gpunode/simgpu/"};
  for (const char* place : places) {
    const std::string path = folder + place + kSimulatedName;
    if (isFile(path)) return openDriver(path);
  }
  return Error{std::string("OL_DRIVER=sim: ") + kSimulatedName +
               " was not found beside this library in " + folder +
               "; build or install it, or set OL_DRIVER to its path"};
}

}  // namespace

std::vector<std::string> pathsInLdCache(const char* cache_file, const char* name) {
  std::vector<std::string> paths;
  const std::string bytes = readFile(cache_file);
  const size_t start = findCache(bytes);
  if (start == std::string::npos || bytes.size() - start < sizeof(CacheHeader)) return paths;
  const char* base = bytes.data() + start;
  const size_t size = bytes.size() - start;
  CacheHeader header;
  memcpy(&header, base, sizeof(header));
  // Strings end inside the buffer: std::string keeps a NUL behind its last byte.
  for (uint64_t i = 0; i < header.count; ++i) {
    const uint64_t at = sizeof(CacheHeader) + i * sizeof(CacheEntry);
    if (at + sizeof(CacheEntry) > size) break;
    CacheEntry entry;
    memcpy(&entry, base + at, sizeof(entry));
    if (entry.flags != kFlagX8664Libc6 || entry.key >= size || entry.value >= size) continue;
    if (strcmp(base + entry.key, name) == 0) paths.emplace_back(base + entry.value);
  }
  return paths;
}

std::vector<std::string> driverCandidates() {
  std::vector<std::string> candidates;
  for (const std::string& folder : libraryPathFolders())
    addCandidate(candidates, folder + "/" + kDriverName);
  for (const std::string& path : pathsInLdCache("/etc/ld.so.cache", kDriverName))
    addCandidate(candidates, path);
  const char* folders[] = {"/lib/x86_64-linux-gnu",
                           "/usr/lib/x86_64-linux-gnu",
                           "/lib64",
                           "/usr/lib64",
                           "/lib",
                           "/usr/lib",
                           "/usr/local/nvidia/lib64",
                           "/usr/local/nvidia/lib",
                           "/usr/lib/x86_64-linux-gnu/nvidia/current",
                           "/run/opengl-driver/lib",
                           "/usr/lib/wsl/lib"};
  for (const char* folder : folders)
    addCandidate(candidates, std::string(folder) + "/" + kDriverName);
  return candidates;
}

Result<LoadedDriver> loadDriver(const std::string& setting) {
  if (setting == "sim") return loadSimulated();
  if (!setting.empty()) {
    if (!isFile(setting)) {
      return Error{"OL_DRIVER=" + setting +
                   ": no such file; give the path of the driver's libcuda.so.1, or `sim`"};
    }
    // A path without a slash would be searched for by name, which is our own.
    return openDriver(setting.find('/') == std::string::npos ? "./" + setting : setting);
  }
  std::string why;
  for (const std::string& path : driverCandidates()) {
    Result<LoadedDriver> opened = openDriver(path);
    if (opened.ok()) return opened;
    if (why.empty()) why = opened.error().message;
  }
  if (!why.empty()) return Error{why};
  return Error{
      "no CUDA driver: libcuda.so.1 is in none of the loader's folders; install the NVIDIA driver, "
      "set OL_DRIVER to "
      "its "
      "libcuda.so.1, or OL_DRIVER=sim for the simulated GPU"};
}

}  // namespace olpager::local
