#include "pager/counters/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <optional>

#include "base/format.h"
#include "base/runtime_folder.h"

namespace olpager::pager {
namespace {

using base::UniqueFd;

constexpr std::string_view kSuffix = ".counters";
constexpr time_t kUnfinishedSeconds =
    60;  // a file still without its magic after that was never finished

uint64_t pidNamespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

uint64_t realtimeNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

struct FileName {
  uint64_t pid = 0;
  uint64_t start_ticks = 0;
};

std::optional<FileName> parseName(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  FileName parsed;
  const char* const end = name.data() + name.size();
  const auto pid = std::from_chars(name.data(), end, parsed.pid);
  if (pid.ec != std::errc() || pid.ptr == end || *pid.ptr != '-') return std::nullopt;
  const auto start = std::from_chars(pid.ptr + 1, end, parsed.start_ticks);
  if (start.ec != std::errc() || start.ptr != end) return std::nullopt;
  return parsed;
}

// Offsets in the file (Gauge is no standard-layout type, so offsetof is not for the counters; a
// test checks them).
constexpr uint64_t kDevicesOffset = 256;
constexpr uint64_t kTraceUntilOffset = 40;
constexpr off_t offsetOfRing() {
  return static_cast<off_t>(sizeof(CountersFile) - sizeof(TraceRing));
}
constexpr uint64_t offsetOfEvents() { return sizeof(TraceRing) - sizeof(TraceRing::events); }

template <size_t size>
void endName(char (&name)[size]) {
  name[size - 1] = '\0';
}

// The writer of the file need not have ended a name.
void endNames(Counters& counters) {
  endName(counters.program);
  for (DeviceWhy& why : counters.why.devices) {
    endName(why.reaching_all_kernel);
    endName(why.in_place_kernel);
  }
  for (auto& executor : counters.unified.executors) endName(executor.gpunode);
  const auto ofLink = [](auto& link) {
    endName(link.peer);
    for (status::RailCounters& rail : link.rails) endName(rail.device);
  };
  for (LinkCounters& link : counters.rdma.links) ofLink(link);
  for (status::LinkBytes& link : counters.links.links) ofLink(link);
}

UniqueFd createFile(int folder, const std::string& name) {
  return UniqueFd(
      openat(folder, name.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600));
}

// Reads one file; sets `note` when there is something in it that is not for us.
std::unique_ptr<Counters> readOpened(int file, struct stat& about, std::string& note,
                                     std::unique_ptr<CountersFile>* details) {
  if (fstat(file, &about) != 0) return nullptr;
  if (!S_ISREG(about.st_mode) || about.st_uid != geteuid()) {
    note = "is not a regular file of this user, passed over";
    return nullptr;
  }
  auto counters = std::make_unique<Counters>();
  const ssize_t got = pread(file, static_cast<void*>(counters.get()), sizeof(Counters), 0);
  if (got < static_cast<ssize_t>(sizeof counters->magic) ||
      valueOf(counters->magic) != kCountersMagic) {
    set(counters->magic, 0);
    return counters;  // not finished yet
  }
  if (got >= 12 && counters->version != kCountersVersion) {
    note = base::format("is of layout version {}, this program reads version {}; passed over",
                        counters->version, kCountersVersion);
    return nullptr;
  }
  if (got != static_cast<ssize_t>(sizeof(Counters)) || counters->bytes != sizeof(CountersFile) ||
      about.st_size != static_cast<off_t>(sizeof(CountersFile)) ||
      valueOf(counters->device_count) > kMaxCountedDevices) {
    note = base::format("is damaged ({} bytes of {}); passed over", about.st_size,
                        sizeof(CountersFile));
    return nullptr;
  }
  if (details != nullptr) {
    *details = std::make_unique<CountersFile>();
    if (pread(file, static_cast<void*>(details->get()), sizeof(CountersFile), 0) !=
        static_cast<ssize_t>(sizeof(CountersFile))) {
      note = "could not be read whole; passed over";
      return nullptr;
    }
  }
  endNames(*counters);
  return counters;
}

std::unique_ptr<Counters> readFile(int folder, const char* name, struct stat& about,
                                   std::string& note, std::unique_ptr<CountersFile>* details) {
  const UniqueFd file(openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return nullptr;  // its process has just ended, or a link
  return readOpened(file.get(), about, note, details);
}

}  // namespace

std::vector<std::string> countersFolders(const std::string& fallback) {
  return base::runtimeFolders(fallback);
}

Result<UniqueFd> openCountersFolder(const std::string& folder, bool create) {
  if (create && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Error{base::format("{}: can't be made: {}", folder, std::strerror(errno))};
  }
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return UniqueFd();
    if (errno == ENOTDIR || errno == ELOOP) {
      return Error{
          base::format("{}: is not a real folder (a file or a symbolic link); remove it", folder)};
    }
    return Error{base::format("{}: can't be opened: {}", folder, std::strerror(errno))};
  }
  struct stat about {};
  if (fstat(fd.get(), &about) != 0)
    return Error{base::format("{}: {}", folder, std::strerror(errno))};
  if (about.st_uid != geteuid()) {
    return Error{base::format(
        "{}: belongs to user {}, not to {}; remove it, or set XDG_RUNTIME_DIR to a folder of yours",
        folder, about.st_uid, geteuid())};
  }
  if ((about.st_mode & 077) != 0) {
    return Error{base::format("{}: is open to others (mode {:o}); chmod 700 it", folder,
                              about.st_mode & 07777)};
  }
  return fd;
}

std::string countersFileName(uint64_t pid, uint64_t start_ticks) {
  return base::format("{}-{}{}", pid, start_ticks, kSuffix);
}

uint64_t processStartTicks(uint64_t pid) {
  const UniqueFd file(open(base::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return 0;
  char text[1024];
  const ssize_t length = read(file.get(), text, sizeof text - 1);
  if (length <= 0) return 0;
  text[length] = '\0';
  // The name in field 2 may hold spaces and parentheses: count from the last one.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X') return 0;
  at += 2;  // field 3
  for (int field = 3; field < 22 && at != nullptr; field++) {
    at = std::strchr(at, ' ');
    if (at != nullptr) at++;
  }
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

Result<CountersFile*> createCountersFile(const std::string& folder, uint64_t keep_token) {
  auto opened = openCountersFolder(folder, true);
  if (!opened.ok()) return opened.error();
  const UniqueFd directory = std::move(opened.value());
  const auto pid = static_cast<uint64_t>(getpid());
  const uint64_t start_ticks = processStartTicks(pid);
  const std::string name = countersFileName(pid, start_ticks);
  UniqueFd file = createFile(directory.get(), name);
  if (!file && errno == EEXIST) {
    // This very process before an exec: the folder is ours alone, so nobody else made it.
    unlinkat(directory.get(), name.c_str(), 0);
    file = createFile(directory.get(), name);
  }
  if (!file)
    return Error{base::format("{}/{}: can't be made: {}", folder, name, std::strerror(errno))};
  // Allocated now: a full file system must not become a SIGBUS in the host program later.
  int failure = base::fileMayHave(sizeof(CountersFile))
                    ? posix_fallocate(file.get(), 0, sizeof(CountersFile))
                    : EFBIG;
  void* memory = MAP_FAILED;
  if (failure == 0) {
    memory = mmap(nullptr, sizeof(CountersFile), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) failure = errno;
  }
  if (failure != 0) {
    unlinkat(directory.get(), name.c_str(), 0);
    return Error{base::format("{}/{}: {}", folder, name, std::strerror(failure))};
  }
  auto* all = new (memory) CountersFile;
  Counters* const counters = &all->head;
  counters->version = kCountersVersion;
  counters->bytes = sizeof(CountersFile);
  counters->pid = static_cast<uint32_t>(pid);
  counters->uid = geteuid();
  counters->pid_namespace = pidNamespace();
  counters->start_ticks = start_ticks;
  counters->started_unix_ns = realtimeNs();
  counters->keep_token = keep_token;
  std::strncpy(counters->program, program_invocation_short_name, sizeof counters->program - 1);
  counters->magic.store(kCountersMagic, std::memory_order_release);
  return all;
}

void removeCountersFile(const std::string& folder, uint64_t pid, uint64_t start_ticks) noexcept {
  try {
    auto directory = openCountersFolder(folder, false);
    if (directory.ok() && directory.value()) {
      unlinkat(directory.value().get(), countersFileName(pid, start_ticks).c_str(), 0);
    }
  } catch (...) {  // out of memory: a reader removes it
  }
}

static CountersSnapshot::State stateOf(const Counters& counters, uint64_t our_namespace) {
  const bool ours = counters.pid_namespace == our_namespace;
  if (valueOf(counters.ended_unix_ns) != 0 ||
      (ours && processStartTicks(counters.pid) != counters.start_ticks))
    return CountersSnapshot::State::kEnded;
  return ours ? CountersSnapshot::State::kRunning : CountersSnapshot::State::kElsewhere;
}

Result<CountersSnapshot> readCountersFile(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) return Error{base::format("{}: {}", path, std::strerror(errno))};
  struct stat about {};
  std::string note;
  auto counters = readOpened(file.get(), about, note, nullptr);
  if (!note.empty()) return Error{base::format("{} {}", path, note)};
  if (!counters || valueOf(counters->magic) == 0)
    return Error{base::format("{} is no file of counters of olpager", path)};
  const CountersSnapshot::State state = stateOf(*counters, pidNamespace());
  return CountersSnapshot{
      .counters = std::move(counters), .details = nullptr, .state = state, .folder = std::string()};
}

CountersReading readCounters(const std::vector<std::string>& folders, bool details, size_t most) {
  CountersReading reading;
  const uint64_t our_namespace = pidNamespace();
  size_t files = 0;
  for (const auto& folder : folders) {
    auto opened = openCountersFolder(folder, false);
    if (!opened.ok()) {
      reading.notes.push_back(opened.error().message);
      continue;
    }
    if (!opened.value()) continue;
    const int fd = opened.value().get();
    DIR* listing = fdopendir(dup(fd));
    if (listing == nullptr) continue;
    while (const dirent* entry = readdir(listing)) {
      const auto name = parseName(entry->d_name);
      if (!name) continue;
      if (files == most) {
        reading.notes.push_back(base::format(
            "{}: has more files than the {} that are read; passed over", folder, most));
        break;
      }
      files++;
      struct stat about {};
      std::string note;
      std::unique_ptr<CountersFile> whole;
      auto counters = readFile(fd, entry->d_name, about, note, details ? &whole : nullptr);
      if (!note.empty())
        reading.notes.push_back(base::format("{}/{} {}", folder, entry->d_name, note));
      if (!counters) continue;
      if (valueOf(counters->magic) == 0) {
        if (processStartTicks(name->pid) != name->start_ticks &&
            time(nullptr) - about.st_mtime > kUnfinishedSeconds) {
          unlinkat(fd, entry->d_name, 0);
        }
        continue;
      }
      const CountersSnapshot::State state = stateOf(*counters, our_namespace);
      CountersSnapshot snapshot{.counters = std::move(counters),
                                .details = std::move(whole),
                                .state = state,
                                .folder = folder};
      const Counters& read_in = *snapshot.counters;
      if (snapshot.state == CountersSnapshot::State::kEnded && read_in.keep_token == 0) {
        unlinkat(fd, entry->d_name, 0);
        continue;
      }
      reading.processes.push_back(std::move(snapshot));
    }
    closedir(listing);
  }
  std::sort(reading.processes.begin(), reading.processes.end(),
            [](const auto& a, const auto& b) { return a.counters->pid < b.counters->pid; });
  return reading;
}

Result<TraceReader> TraceReader::open(const std::string& folder, uint64_t pid,
                                      uint64_t start_ticks) {
  auto opened = openCountersFolder(folder, false);
  if (!opened.ok()) return opened.error();
  const std::string name = countersFileName(pid, start_ticks);
  TraceReader reader;
  if (opened.value()) {
    reader.file_ = UniqueFd(
        openat(opened.value().get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  }
  struct stat about {};
  if (!reader.file_ || fstat(reader.file_.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      about.st_size != static_cast<off_t>(sizeof(CountersFile))) {
    return Error{base::format("{}/{}: has no ring of events", folder, name)};
  }
  uint64_t control[2] = {};
  if (pread(reader.file_.get(), control, sizeof control, offsetOfRing()) != sizeof control) {
    return Error{base::format("{}/{}: {}", folder, name, std::strerror(errno))};
  }
  reader.next_ = control[0];
  reader.dropped_ = reader.dropped_before_ = control[1];
  return reader;
}

void TraceReader::ask(uint64_t until_ns) {
  for (unsigned device = 0; device < kMaxCountedDevices; device++) {
    // A device that is not in use yet may be soon.
    const auto at =
        static_cast<off_t>(kDevicesOffset + device * sizeof(DeviceCounters) + kTraceUntilOffset);
    if (pwrite(file_.get(), &until_ns, sizeof until_ns, at) != sizeof until_ns) return;
  }
}

std::unique_ptr<Counters> TraceReader::counters() const {
  auto counters = std::make_unique<Counters>();
  const ssize_t got = pread(file_.get(), static_cast<void*>(counters.get()), sizeof(Counters), 0);
  if (got != static_cast<ssize_t>(sizeof(Counters))) return nullptr;
  endNames(*counters);
  return counters;
}

bool TraceReader::read(std::vector<Event>& into) {
  constexpr unsigned kStuck =
      20;  // readings after which an event that does not become whole is passed over
  uint64_t control[2] = {};
  const auto look = [&] {
    return pread(file_.get(), control, sizeof control, offsetOfRing()) == sizeof control;
  };
  if (!look()) return false;
  uint64_t raw[64][8];
  while (next_ != control[0]) {
    const uint64_t head = control[0];
    if (head - next_ > TraceRing::kEvents) {
      lost_ += head - TraceRing::kEvents - next_;
      next_ = head - TraceRing::kEvents;
    }
    const uint64_t slot = next_ % TraceRing::kEvents;
    const uint64_t count = std::min({head - next_, TraceRing::kEvents - slot, uint64_t{64}});
    const auto bytes = static_cast<ssize_t>(count * sizeof raw[0]);
    const auto at = offsetOfRing() + static_cast<off_t>(offsetOfEvents() + slot * sizeof raw[0]);
    if (pread(file_.get(), raw, static_cast<size_t>(bytes), at) != bytes || !look()) return false;
    for (uint64_t i = 0; i < count; i++) {
      // A writer that claimed a number a whole round later may have been in this slot while it was
      // read.
      if (control[0] - next_ > TraceRing::kEvents) break;
      const uint64_t* event = raw[i];
      if (event[0] != 2 * next_ + 2) {
        if (event[0] < 2 * next_ + 2 && ++stuck_ < kStuck) {
          dropped_ = control[1];
          return true;  // it is being written
        }
        // Dropped by its writer, who has counted it, or never finished.
      } else {
        into.push_back({static_cast<TraceKind>(event[3] & 0xff),
                        static_cast<unsigned>(event[3] >> 8 & 0xff),
                        static_cast<uint32_t>(event[3] >> 32), event[1], event[2], event[4],
                        event[5], event[6]});
      }
      stuck_ = 0;
      next_++;
    }
  }
  dropped_ = control[1];
  return true;
}

}  // namespace olpager::pager
