#include "gpunode/worker/module_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/log.h"

namespace olpager::gpunode {
namespace {

constexpr size_t kNameLength = 64;
constexpr time_t kAbandoned = 3600;  // a file that is being written for so long

std::string nameOf(const calls::Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (const uint8_t byte : digest) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

bool isName(const std::string& name) {
  return name.size() == kNameLength &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool readAll(int file, std::vector<std::byte>& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        pread(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

bool writeAll(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(file, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace

Status ModuleCache::open(const std::string& folder, uint64_t most_bytes) {
  const auto failed = [&](const char* what) {
    return Error{"module cache " + folder + ": " + what};
  };
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed(std::strerror(errno));
  base::UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) return failed(std::strerror(errno));
  struct stat about {};
  if (fstat(opened.get(), &about) != 0) return failed(std::strerror(errno));
  if (about.st_uid != geteuid()) return failed("it is another user's");
  if ((about.st_mode & 077) != 0) return failed("others can get into it; chmod 700");
  std::lock_guard lock(mutex_);
  folder_ = std::move(opened);
  name_ = folder;
  most_bytes_ = most_bytes;
  return {};
}

std::optional<std::vector<std::byte>> ModuleCache::find(const calls::Digest& digest) {
  std::lock_guard lock(mutex_);
  if (!folder_) return std::nullopt;
  const std::string name = nameOf(digest);
  const base::UniqueFd file(
      openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file || fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) return std::nullopt;
  calls::Digest found{};
  std::vector<std::byte> bytes;
  if (static_cast<uint64_t>(about.st_size) <= most_bytes_) {
    bytes.resize(static_cast<size_t>(about.st_size));
    if (readAll(file.get(), bytes) && calls::digestOf(bytes, found) && found == digest) {
      (void)futimens(file.get(), nullptr);  // used now
      return bytes;
    }
  }
  base::logWarn("module cache %s: %s does not hold what its name says, and is removed",
                name_.c_str(), name.c_str());
  (void)unlinkat(folder_.get(), name.c_str(), 0);
  return std::nullopt;
}

void ModuleCache::store(std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  calls::Digest digest{};
  if (!folder_ || bytes.size() > most_bytes_ || !calls::digestOf(bytes, digest)) return;
  const std::string name = nameOf(digest);
  if (faccessat(folder_.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) return;
  makeRoom(bytes.size());
  const std::string part = "part-" + std::to_string(getpid()) + "-" + std::to_string(next_++);
  const base::UniqueFd file(openat(folder_.get(), part.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file && writeAll(file.get(), bytes) &&
      renameat(folder_.get(), part.c_str(), folder_.get(), name.c_str()) == 0)
    return;
  base::warnOnce("module-cache", "module cache %s: a module can't be kept: %s", name_.c_str(),
                 std::strerror(errno));
  if (file) (void)unlinkat(folder_.get(), part.c_str(), 0);
}

void ModuleCache::makeRoom(uint64_t bytes) {
  struct File {
    std::string name;
    uint64_t bytes;
    timespec used;
  };
  const int copy = openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const opened = copy >= 0 ? fdopendir(copy) : nullptr;
  if (opened == nullptr) {
    if (copy >= 0) close(copy);
    return;
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opened, closedir);
  std::vector<File> files;
  uint64_t all = bytes;
  const time_t now = time(nullptr);
  while (const dirent* const entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    struct stat about {};
    if (name.starts_with('.') ||
        fstatat(folder_.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (name.starts_with("part-") && now - about.st_mtim.tv_sec > kAbandoned)
      (void)unlinkat(folder_.get(), name.c_str(), 0);
    if (!isName(name)) continue;
    files.push_back({name, static_cast<uint64_t>(about.st_size), about.st_mtim});
    all += files.back().bytes;
  }
  if (all <= most_bytes_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const File& file : files) {
    if (all <= most_bytes_) break;
    if (unlinkat(folder_.get(), file.name.c_str(), 0) == 0) all -= file.bytes;
  }
}

}  // namespace olpager::gpunode
