#include "disk/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/memory_files.h"
#include "base/size.h"
#include "coherence/transport/core/own_descriptors.h"

namespace olpager::disk {
namespace {

constexpr uint64_t kFullNs = 1'000'000'000;

// A file without a name, by O_TMPFILE or, on a file system without that, by a name that is taken
// away at once. None with errno.
base::UniqueFd openOnce(const std::string& folder, int flags) {
  base::UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL | flags, 0600));
  if (fd || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  std::string name = folder + "/.olpager-XXXXXX";
  fd.reset(mkostemp(name.data(), O_CLOEXEC));
  // The flags come last: a file system that refuses them leaves nothing behind.
  if (fd && (unlink(name.c_str()) != 0 ||
             (flags != 0 && fcntl(fd.get(), F_SETFL, O_RDWR | flags) != 0))) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

}  // namespace

Result<base::UniqueFd> openNameless(const Folder& folder) {
  base::UniqueFd fd = openOnce(folder.path, O_DIRECT);
  const bool cached = !fd && errno == EINVAL;
  if (cached) fd = openOnce(folder.path, 0);
  if (fd && base::isInMemory(fd.get())) {
    base::logWarn(
        "disk: the file system of %s is in RAM (tmpfs): what is written there takes as much memory "
        "as it spares; name a folder on a disk",
        folder.path.c_str());
  } else if (fd && cached) {
    base::logWarn(
        "disk: the file system of %s takes no O_DIRECT: what is written there takes page cache, "
        "so memory, as well; name a folder on a disk",
        folder.path.c_str());
  }
  if (!fd)
    return Error{
        base::format("disk: no file can be made in {}: {}; name a folder that this user "
                     "may write to",
                     folder.path, std::strerror(errno))};
  if (!base::resizeFile(fd.get(), folder.bytes))
    return Error{base::format("disk: a file of {} can't be made in {}: {}; name a smaller size",
                              base::formatSize(folder.bytes), folder.path,
                              errno == EFBIG ? "files may not be so long (ulimit -f, or the file "
                                               "system's limit)"
                                             : std::strerror(errno))};
  struct statvfs system {};
  if (fstatvfs(fd.get(), &system) == 0) {
    const uint64_t free = static_cast<uint64_t>(system.f_bavail) * system.f_frsize;
    if (free < folder.bytes)
      base::logWarn(
          "disk: %s has %s free, less than the %s that were named; what has no room there "
          "stays in RAM",
          folder.path.c_str(), base::formatSize(free).c_str(),
          base::formatSize(folder.bytes).c_str());
  }
  transport::noteOwnDescriptor(fd.get());
  return fd;
}

Status Files::open(const std::vector<Folder>& folders) {
  for (const Folder& folder : folders) {
    File file;
    file.path = folder.path;
    file.pages = folder.bytes / kPlaceBytes;
    auto fd = openNameless({folder.path, file.pages * kPlaceBytes});
    if (!fd.ok()) return fd.error();
    auto own = OwnFile::make(std::move(fd).value());
    if (!own.ok())
      return Error{base::format("disk: the file in {} can't be mapped: {}; name another folder",
                                folder.path, own.error().message)};
    file.file = std::move(own).value();
    file.written.reserve(file.pages);
    file.unwritten.reserve(file.pages);
    files_.push_back(std::move(file));
  }
  return {};
}

uint64_t Files::File::room(uint64_t now_ns) const {
  if (broken) return 0;
  return written.size() + (now_ns < full_until_ns ? 0 : unwritten.size() + pages - first);
}

std::optional<std::vector<Place>> Files::take(uint64_t count, uint64_t now_ns) {
  std::vector<Place> places;
  places.reserve(count);
  while (places.size() < count) {
    uint32_t best = 0;
    double least = 2;
    for (uint32_t i = 0; i < files_.size(); ++i) {
      const File& file = files_[i];
      const double share =
          static_cast<double>(file.used + file.bad) / static_cast<double>(file.pages);
      if (file.room(now_ns) == 0 || share >= least) continue;
      best = i;
      least = share;
    }
    if (least > 1) {
      give(places);
      return std::nullopt;
    }
    File& file = files_[best];
    Place place;
    place.file = best;
    if (!file.written.empty()) {
      place.page = file.written.back();
      place.has_room = true;
      file.written.pop_back();
    } else if (!file.unwritten.empty()) {
      place.page = file.unwritten.back();
      file.unwritten.pop_back();
    } else {
      place.page = static_cast<uint32_t>(file.first++);
    }
    ++file.used;
    places.push_back(place);
  }
  return places;
}

// The last first, so that they are taken in order again.
void Files::give(const std::vector<Place>& places) {
  for (auto place = places.rbegin(); place != places.rend(); ++place) give(*place);
}

void Files::give(const Place& place) {
  File& file = files_[place.file];
  --file.used;
  if (place.bad) {
    ++file.bad;
  } else {
    (place.has_room ? file.written : file.unwritten).push_back(place.page);
  }
}

void Files::full(uint32_t file, uint64_t now_ns) { files_[file].full_until_ns = now_ns + kFullNs; }

uint64_t Files::capacity(uint64_t now_ns) const {
  uint64_t all = 0;
  for (const File& file : files_) all += file.used + file.room(now_ns);
  return all;
}

uint64_t Files::used() const {
  uint64_t all = 0;
  for (const File& file : files_) all += file.used;
  return all;
}

}  // namespace olpager::disk
