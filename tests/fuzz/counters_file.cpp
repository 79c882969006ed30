// libFuzzer target: files in the counters' folder, which another program of the user may have made.
// The first byte chooses whether the input is the file's beginning as it is, or laid over a good
// one (8 bytes each: where, and what); both lengths are right or not.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "pager/counters/files.h"

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  using namespace olpager::pager;
  static const std::string folder = [] {
    std::string name = "/tmp/ol-fuzz-counters-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::_Exit(1);
    static std::string kept = name;
    std::atexit([] { rmdir(kept.c_str()); });
    return name;
  }();
  static const uint64_t start = processStartTicks(static_cast<uint64_t>(getpid()));
  static const std::string path =
      folder + "/" + countersFileName(static_cast<uint64_t>(getpid()), start);
  static const std::vector<char> good = [] {
    CountersFile* const made = createCountersFile(folder, 0).value();
    std::vector<char> bytes(sizeof(CountersFile));
    std::memcpy(bytes.data(), static_cast<void*>(made), bytes.size());
    return bytes;
  }();
  if (size == 0) return 0;
  std::vector<char> file = good;
  if ((data[0] & 1) == 0) {
    std::memcpy(file.data(), data + 1, std::min(size - 1, file.size()));
  } else {
    for (size_t at = 1; at + 8 <= size; at += 8) {
      uint32_t where = 0;
      std::memcpy(&where, data + at, 4);
      where %= static_cast<uint32_t>(file.size() - 4);
      std::memcpy(file.data() + ((data[0] & 4) != 0 ? where : where % 8192), data + at + 4, 4);
    }
  }
  if ((data[0] & 2) != 0) file.resize(file.size() / (1 + data[0] / 16u));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, file.data(), file.size()) != static_cast<ssize_t>(file.size()))
    std::_Exit(1);
  close(fd);
  const CountersReading reading = readCounters({folder}, true);
  for (const std::string& note : reading.notes)
    if (note.empty() || note.find('\n') != std::string::npos) std::abort();
  for (const CountersSnapshot& process : reading.processes)
    if (std::memchr(process.counters->program, 0, sizeof process.counters->program) == nullptr)
      std::abort();
  if (auto trace = TraceReader::open(folder, static_cast<uint64_t>(getpid()), start); trace.ok()) {
    std::vector<TraceReader::Event> events;
    trace.value().read(events);
    trace.value().read(events);
    if (events.size() > 2 * 8192) std::abort();
  }
  unlink(path.c_str());
  return 0;
}
