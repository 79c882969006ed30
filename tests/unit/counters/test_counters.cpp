#include "pager/counters/counters.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "pager/counters/files.h"
#include "pager/counters/trace.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager;
using namespace olpager::pager;
namespace fs = std::filesystem;

namespace {

struct Folder : olpager::test::TemporaryFolder {
  fs::path root = path;
  Folder() {
    setenv("XDG_RUNTIME_DIR", root.c_str(), 1);
    unsetenv("OL_COUNTERS_KEEP");
  }
  std::string olpager() const { return (root / "olpager").string(); }
  size_t files() const {
    size_t count = 0;
    if (fs::exists(olpager())) {
      for ([[maybe_unused]] const auto& entry : fs::directory_iterator(olpager())) count++;
    }
    return count;
  }
};

// Runs `body` in a child whose standard error is captured; returns what it wrote. `exit_by` ends
// the child.
struct ChildResult {
  int status = 0;
  std::string errors;
};
ChildResult inChild(const std::function<void()>& body, bool exit_normally = true) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  base::UniqueFd from(ends[0]);
  base::UniqueFd to(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    dup2(to.get(), STDERR_FILENO);
    body();
    if (exit_normally) std::exit(0);
    _exit(0);
  }
  to.reset();
  ChildResult result;
  char buffer[1024];
  for (ssize_t n = 0; (n = ::read(from.get(), buffer, sizeof buffer)) > 0;)
    result.errors.append(buffer, size_t(n));
  waitpid(child, &result.status, 0);
  return result;
}

void require(bool condition) {
  if (!condition) _exit(7);
}

}  // namespace

TEST_CASE("a process's counters can be read while it runs and go with it", "[counters]") {
  Folder folder;
  const auto child = inChild([&] {
    Counters& mine = counters();
    require(&mine == &counters());
    add(mine.device(2).launches, 5);
    set(mine.pool_bytes, 1ull << 30);
    const auto reading = readCounters(countersFolders(folder.root));
    require(reading.processes.size() == 1 && reading.notes.empty());
    const Counters& read_in = *reading.processes[0].counters;
    require(read_in.pid == static_cast<uint32_t>(getpid()) && read_in.uid == getuid());
    require(valueOf(read_in.device_count) == 3 && valueOf(read_in.devices[2].launches) == 5);
    require(valueOf(read_in.pool_bytes) == 1ull << 30);
    require(std::strcmp(read_in.program, program_invocation_short_name) == 0);
    require(folder.files() == 1);
  });
  CHECK(child.status == 0);
  CHECK(child.errors.empty());
  CHECK(std::memcmp(&kCountersMagic, "OLCOUNT", 8) == 0);
  CHECK(folder.files() == 0);
  struct stat about {};
  REQUIRE(stat(folder.olpager().c_str(), &about) == 0);
  CHECK((about.st_mode & 07777) == 0700);
}

TEST_CASE("the file of a killed process is removed by the reader", "[counters]") {
  Folder folder;
  CHECK(WTERMSIG(inChild([] {
                   add(counters().device(0).launches);
                   raise(SIGKILL);
                 }).status) == SIGKILL);
  CHECK(folder.files() == 1);
  CHECK(readCounters(countersFolders(folder.root)).processes.empty());
  CHECK(folder.files() == 0);
}

TEST_CASE("OL_COUNTERS_KEEP keeps the file of an ended process until somebody removes it",
          "[counters]") {
  Folder folder;
  CHECK(inChild([] {
          setenv("OL_COUNTERS_KEEP", "77", 1);
          add(counters().device(0).launches, 3);
        }).status == 0);
  const auto reading = readCounters(countersFolders(folder.root));
  REQUIRE(reading.processes.size() == 1);
  const auto& kept = reading.processes[0];
  CHECK(kept.state == CountersSnapshot::State::kEnded);
  CHECK(kept.counters->keep_token == 77);
  CHECK(valueOf(kept.counters->ended_unix_ns) >= kept.counters->started_unix_ns);
  CHECK(valueOf(kept.counters->devices[0].launches) == 3);
  removeCountersFile(kept.folder, kept.counters->pid, kept.counters->start_ticks);
  CHECK(folder.files() == 0);
}

TEST_CASE("a forked child counts for itself and leaves its parent's file", "[counters]") {
  Folder folder;
  const auto child = inChild([&] {
    Counters& mine = counters();
    add(mine.device(0).launches, 4);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      require(valueOf(mine.devices[0].launches) == 0 && &counters() == &mine);
      add(mine.device(0).launches, 100);
      std::exit(0);
    }
    int status = 0;
    waitpid(grandchild, &status, 0);
    require(status == 0);
    require(valueOf(mine.devices[0].launches) == 4 && folder.files() == 1);
  });
  CHECK(child.status == 0);
  CHECK(folder.files() == 0);
}

TEST_CASE("a process that execs makes its file anew", "[counters]") {
  Folder folder;
  CHECK(inChild([&] {
          auto first = createCountersFile(folder.olpager(), 0);
          require(first.ok());
          add(first.value()->head.device(0).launches, 9);
          auto second = createCountersFile(folder.olpager(), 0);
          require(second.ok() && valueOf(second.value()->head.devices[0].launches) == 0);
          require(folder.files() == 1);
        }).status == 0);
}

TEST_CASE("hostile or broken folders are refused with a line, counting goes on", "[counters]") {
  Folder folder;
  std::string expected;
  SECTION("a symbolic link") {
    fs::create_directory(folder.root / "elsewhere");
    fs::permissions(folder.root / "elsewhere", fs::perms::owner_all);
    fs::create_symlink(folder.root / "elsewhere", folder.olpager());
    expected = "symbolic link";
  }
  SECTION("open to others") {
    fs::create_directory(folder.olpager());
    fs::permissions(folder.olpager(), fs::perms::all);
    expected = "chmod 700";
  }
  SECTION("a file") {
    std::ofstream(folder.olpager()) << "x";
    expected = "not a real folder";
  }
  SECTION("another user's") {
    if (geteuid() != 0) return;  // only root can make one
    fs::create_directory(folder.olpager());
    fs::permissions(folder.olpager(), fs::perms::owner_all);
    REQUIRE(chown(folder.olpager().c_str(), 12345, 12345) == 0);
    expected = "belongs to user 12345";
  }
  const auto folders = countersFolders(folder.root);
  const auto made = createCountersFile(folders[0], 0);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().message.find(expected) != std::string::npos);
  CHECK(made.error().message.find('\n') == std::string::npos);
  const auto reading = readCounters({folders[0]});
  CHECK(reading.processes.empty());
  REQUIRE(reading.notes.size() == 1);
  CHECK(reading.notes[0].find(expected) != std::string::npos);
}

TEST_CASE("who takes the name of our folder does not keep us from one", "[counters]") {
  if (geteuid() != 0) return;  // only root can make another user's
  const Folder folder;
  unsetenv("XDG_RUNTIME_DIR");
  const std::string usual = (folder.root / "olpager-0").string();
  REQUIRE(countersFolders(folder.root) == std::vector<std::string>{usual});
  fs::create_directory(usual);
  REQUIRE(chown(usual.c_str(), 12345, 12345) == 0);
  fs::create_directory(usual + "-000000");  // he can't know our name, and makes others
  REQUIRE(chown((usual + "-000000").c_str(), 12345, 12345) == 0);
  const auto folders = countersFolders(folder.root);
  REQUIRE(folders.size() == 1);
  CHECK(folders[0].starts_with(usual + "-"));
  CHECK(openCountersFolder(folders[0], true).ok());
  CHECK(countersFolders(folder.root) == folders);
}

TEST_CASE("a squatted name of our file can't be written through", "[counters]") {
  Folder folder;
  fs::create_directory(folder.olpager());
  fs::permissions(folder.olpager(), fs::perms::owner_all);
  std::ofstream(folder.root / "victim") << "precious";
  CHECK(inChild([&] {
          const auto pid = static_cast<uint64_t>(getpid());
          const auto name = countersFileName(pid, processStartTicks(pid));
          fs::create_symlink(folder.root / "victim", fs::path(folder.olpager()) / name);
          require(createCountersFile(folder.olpager(), 0).ok());
          require(fs::is_regular_file(fs::symlink_status(fs::path(folder.olpager()) / name)));
        }).status == 0);
  CHECK(fs::file_size(folder.root / "victim") == 8);
}

TEST_CASE("what is no counters file is passed over", "[counters]") {
  Folder folder;
  fs::create_directory(folder.olpager());
  fs::permissions(folder.olpager(), fs::perms::owner_all);
  const fs::path in = folder.olpager();
  std::ofstream(in / "notes.txt") << "x";
  std::ofstream(in / "1-1.counters") << "short";
  fs::create_symlink("/etc/passwd", in / "2-1.counters");
  REQUIRE(mkfifo((in / "3-1.counters").c_str(), 0600) == 0);
  Counters future;
  set(future.magic, kCountersMagic);
  future.version = kCountersVersion + 1;
  std::ofstream(in / "4-1.counters", std::ios::binary)
      .write(reinterpret_cast<const char*>(&future), sizeof future);
  const auto reading = readCounters({folder.olpager()});
  CHECK(reading.processes.empty());
  REQUIRE(reading.notes.size() == 2);  // the pipe and the other version
  CHECK((reading.notes[0] + reading.notes[1])
            .find("layout version " + std::to_string(kCountersVersion + 1)) != std::string::npos);
}

TEST_CASE("names that their writer has not ended are ended where they are read", "[counters]") {
  Folder folder;
  fs::create_directory(folder.olpager());
  fs::permissions(folder.olpager(), fs::perms::owner_all);
  const auto pid = static_cast<uint64_t>(getpid());
  const uint64_t start = processStartTicks(pid);
  const std::string path = folder.olpager() + "/" + countersFileName(pid, start);
  // All that is not looked at before it is taken is 0xff, to the last byte.
  auto block = std::make_unique<CountersFile>();
  Counters& head = block->head;
  std::memset(static_cast<void*>(head.program), 0xff, sizeof head.program);
  std::memset(static_cast<void*>(&head.unified), 0xff, sizeof head.unified);
  std::memset(static_cast<void*>(&head.rdma), 0xff, sizeof head.rdma);
  std::memset(static_cast<void*>(&head.why), 0xff, sizeof head.why);
  std::memset(static_cast<void*>(&head.links), 0xff, sizeof head.links);
  set(head.magic, kCountersMagic);
  head.version = kCountersVersion;
  head.bytes = sizeof(CountersFile);
  head.pid = static_cast<uint32_t>(pid);
  head.start_ticks = start;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(block.get()), sizeof *block);
  const auto check = [](const Counters& counters) {
    const auto ends = [](const auto& name) { return std::memchr(name, 0, sizeof name) != nullptr; };
    CHECK(ends(counters.program));
    for (const auto& why : counters.why.devices) {
      CHECK(ends(why.reaching_all_kernel));
      CHECK(ends(why.in_place_kernel));
    }
    for (const auto& executor : counters.unified.executors) CHECK(ends(executor.gpunode));
    const auto link = [&](const auto& one) {
      CHECK(ends(one.peer));
      for (const auto& rail : one.rails) CHECK(ends(rail.device));
    };
    for (const auto& one : counters.rdma.links) link(one);
    for (const auto& one : counters.links.links) link(one);
  };
  const auto reading = readCounters({folder.olpager()});
  REQUIRE(reading.processes.size() == 1);
  check(*reading.processes.front().counters);
  auto named = readCountersFile(path);
  REQUIRE(named.ok());
  check(*named.value().counters);
  auto trace = TraceReader::open(folder.olpager(), pid, start);
  REQUIRE(trace.ok());
  const auto counters = trace.value().counters();
  REQUIRE(counters != nullptr);
  check(*counters);
}

TEST_CASE("no more files are opened than asked for, over all folders", "[counters]") {
  Folder folder;
  std::vector<std::string> folders;
  for (const char* name : {"a", "b"}) {
    const fs::path in = folder.root / name;
    fs::create_directory(in);
    fs::permissions(in, fs::perms::owner_all);
    folders.push_back(in.string());
    for (int i = 0; i < 5; i++)
      std::ofstream(in / base::format("{}-1.counters", i + 1)) << "no counters";
  }
  CHECK(readCounters(folders, false, 10).notes.empty());
  const auto some = readCounters(folders, false, 7);
  REQUIRE(some.notes.size() == 1);
  CHECK(some.notes[0] == folders[1] + ": has more files than the 7 that are read; passed over");
  CHECK(readCounters(folders, false, 3).notes.size() == 2);
}

TEST_CASE("a block of an older layout and damaged ones are a line each", "[counters]") {
  Folder folder;
  fs::create_directory(folder.olpager());
  fs::permissions(folder.olpager(), fs::perms::owner_all);
  const fs::path in = folder.olpager();
  auto block = std::make_unique<CountersFile>();
  const auto write = [&](const char* name, size_t bytes) {
    std::ofstream(in / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(block.get()), long(bytes));
  };
  set(block->head.magic, kCountersMagic);
  block->head.version = 1;
  block->head.bytes = 11520;
  write("1-1.counters", 11520);
  block->head.version = kCountersVersion;
  block->head.bytes = sizeof(CountersFile);
  write("2-1.counters", sizeof(CountersFile) - 1);  // cut off
  write("3-1.counters", 12);                        // more so
  set(block->head.device_count, 1000);
  write("4-1.counters", sizeof(CountersFile));
  for (const bool details : {false, true}) {
    const auto reading = readCounters({folder.olpager()}, details);
    CHECK(reading.processes.empty());
    REQUIRE(reading.notes.size() == 4);
    std::string all;
    for (const auto& note : reading.notes) all += note + "\n";
    CHECK(all.find("1-1.counters is of layout version 1, this program reads version " +
                   std::to_string(kCountersVersion) + "; passed over") != std::string::npos);
    for (const char* name : {"2-1", "3-1", "4-1"}) {
      CHECK(all.find(std::string(name) + ".counters is damaged (") != std::string::npos);
    }
  }
}

TEST_CASE("without any folder counting still works, said once", "[counters]") {
  Folder folder;
  const auto child = inChild([&] {
    rlimit nothing{};
    // No file may grow: the file system is full, as far as this process can tell.
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &nothing);
    add(counters().device(0).launches);
    add(counters().device(0).launches);
    require(valueOf(counters().devices[0].launches) == 2);
  });
  CHECK(child.status == 0);
  CHECK(child.errors.find("olpager: warn: no counters for olpagestat: ") == 0);
  CHECK(child.errors.find('\n') == child.errors.size() - 1);
  CHECK(folder.files() == 0);
}

TEST_CASE("first calls from many threads give one file", "[counters]") {
  Folder folder;
  CHECK(inChild([&] {
          std::vector<std::thread> threads;
          for (int t = 0; t < 8; t++) {
            threads.emplace_back([] {
              for (int i = 0; i < 1000; i++) add(counters().device(0).launches);
            });
          }
          for (auto& thread : threads) thread.join();
          require(valueOf(counters().devices[0].launches) == 8000 && folder.files() == 1);
        }).status == 0);
}

TEST_CASE("fields lie where the documentation says", "[counters]") {
  Counters all{};
  const auto at = [&](const auto& field) {
    return reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(&all);
  };
  CHECK(at(all.devices[0].trace_until_ns) == 256 + 40);
  CHECK(at(all.magic) == 0);
  CHECK(at(all.version) == 8);
  CHECK(at(all.pid) == 16);
  CHECK(at(all.pid_namespace) == 24);
  CHECK(at(all.keep_token) == 48);
  CHECK(at(all.program) == 56);
  CHECK(at(all.ended_unix_ns) == 128);
  CHECK(at(all.pinned_host_bytes) == 192);
  CHECK(at(all.memservers_tcp) == 200);
  CHECK(at(all.memservers_shm) == 208);
  CHECK(at(all.memserver_bytes) == 216);
  CHECK(at(all.memservers_verbs) == 224);
  CHECK(at(all.card_registrations) == 232);
  CHECK(at(all.card_bytes) == 240);
  CHECK(at(all.host_wait_ns) == 248);
  CHECK(at(all.devices) == 256);
  const auto& second = all.devices[1];
  CHECK(at(second) == 256 + 704);
  CHECK(at(second.allocated_bytes) - at(second) == 64);
  CHECK(at(second.allocated_bytes.peak) - at(second) == 72);
  CHECK(at(second.allocations) - at(second) == 144);
  CHECK(at(second.demand_faults) - at(second) == 192);
  CHECK(at(second.hashed_bytes) - at(second) == 264);
  CHECK(at(second.remote_bytes) - at(second) == 168);
  CHECK(at(second.remote_out) - at(second) == 272);
  CHECK(at(second.fault_wait) - at(second) == 320);
  CHECK(at(all.unified) == 11520);
  CHECK(at(all.unified.bringing_ns) == 11520 + 32);
  CHECK(at(all.unified.cpu_bytes_out) == 11520 + 56);
  CHECK(at(all.unified.executors) == 11584);
  const auto& executor = all.unified.executors[1];
  CHECK(at(executor) == 11584 + 384);
  CHECK(at(executor.room_bytes) - at(executor) == 128);
  CHECK(at(executor.routed) - at(executor) == 192);
  CHECK(at(executor.launches) - at(executor) == 272);
  CHECK(at(executor.owned_bytes) - at(executor) == 320);
  CHECK(at(executor.bytes_out) - at(executor) == 336);
  CHECK(at(executor.in_part_bytes) - at(executor) == 360);
  CHECK(at(executor.retained_bytes) - at(executor) == 368);
  CHECK(at(executor.pushed_bytes) - at(executor) == 376);
  CHECK(at(all.unified.last_moves) == 23872);
  CHECK(at(all.unified.last_moves[1].finishing_ns) == 23872 + 64 + 48);
  CHECK(at(all.rdma) == 24896);
  CHECK(at(all.rdma.frames_in) == 24896 + 16);
  const auto& link = all.rdma.links[1];
  CHECK(at(link) == 24896 + 64 + 384);
  CHECK(at(link.rails[1]) - at(link) == 128 + 64);
  CHECK(at(link.rails[0].bytes) - at(link) == 128 + 56);
  CHECK(at(all.why) == 31104);
  const auto& why = all.why.devices[1];
  CHECK(at(why) == 31104 + 1024);
  CHECK(at(why.limited_ns) - at(why) == 16);
  CHECK(at(why.link_in_ns) - at(why) == 152);
  CHECK(at(why.round_kept_bytes) - at(why) == 184);
  CHECK(at(all.links) == 49792);
  const auto& counted = all.links.links[1];
  CHECK(at(counted) == 49792 + 512);
  CHECK(at(counted.end) - at(counted) == 128);
  CHECK(at(counted.pinned_ns) - at(counted) == 184);
  CHECK(at(counted.rails[1].bytes) - at(counted) == 256 + 64 + 56);
  CHECK(at(all.disk) == 66176);
  CHECK(at(all.disk.written_bytes) == 66176 + 16);
  CHECK(sizeof all == 66240);
}

TEST_CASE("moves of all are kept until others take their places", "[counters]") {
  const auto counters = std::make_unique<status::UnifiedCounters>();
  status::Move move;
  CHECK_FALSE(status::moveOf(*counters, 0, move));
  counters->count = 3;
  constexpr uint64_t kMoves = status::kKeptMoves + 3;
  for (uint64_t n = 0; n < kMoves; ++n) {
    status::noteMove(*counters, {.from = static_cast<unsigned>(n % 3),
                                 .to = static_cast<unsigned>((n + 1) % 3),
                                 .reason = status::RouteReason::kRoom,
                                 .begun_ns = 10 * n,
                                 .ended_ns = 10 * n + 5,
                                 .pages_there = n,
                                 .pages_coming = 2 * n,
                                 .finishing_ns = 4});
    CHECK(valueOf(counters->active) == (n + 1) % 3);
  }
  CHECK(valueOf(counters->moves) == kMoves);
  for (uint64_t n = 0; n < kMoves; ++n) {
    INFO(n);
    CHECK(status::moveOf(*counters, n, move) == (n >= 3));
    if (n < 3) continue;
    CHECK(move.from == n % 3);
    CHECK(move.to == (n + 1) % 3);
    CHECK(move.reason == status::RouteReason::kRoom);
    CHECK(move.ended_ns - move.begun_ns == 5);
    CHECK(move.pages_there == n);
    CHECK(move.pages_coming == 2 * n);
    CHECK(move.finishing_ns == 4);
  }
  // Not whole, or of an executor that there is not.
  set(counters->last_moves[5].sequence, 0);
  CHECK_FALSE(status::moveOf(*counters, 5, move));
  set(counters->last_moves[6].about, 7);
  CHECK_FALSE(status::moveOf(*counters, 6, move));
  CHECK(status::textOf(static_cast<status::RouteReason>(200)) == "?");
}

TEST_CASE("a gauge remembers its peak", "[counters]") {
  DeviceCounters device{};
  add(device.allocated_bytes, 100);
  subtract(device.allocated_bytes, 60);
  add(device.allocated_bytes, 30);
  CHECK(valueOf(device.allocated_bytes) == 70);
  CHECK(valueOf(device.allocated_bytes.peak) == 100);
}

TEST_CASE("devices beyond the table share its last entry", "[counters]") {
  Counters mine{};
  CHECK(&mine.device(kMaxCountedDevices + 3) == &mine.devices[kMaxCountedDevices - 1]);
  CHECK(valueOf(mine.device_count) == kMaxCountedDevices);
}

TEST_CASE("waits fall into powers of two and percentiles come out of them", "[counters]") {
  WaitHistogram waits{};
  CHECK(waitPercentile(waits, 0.5) == 0);
  waits.record(0);
  waits.record(1);
  CHECK(valueOf(waits.buckets[0]) == 2);
  for (int i = 0; i < 96; i++) waits.record(1500);
  waits.record(UINT64_MAX);
  waits.record(1ull << 40);
  CHECK(valueOf(waits.buckets[10]) == 96);
  CHECK(valueOf(waits.buckets[kWaitBuckets - 1]) == 1);
  const double p50 = waitPercentile(waits, 0.5);
  CHECK(p50 >= 1024);
  CHECK(p50 <= 2048);
  CHECK(waitPercentile(waits, 0.99) > 1e12);
}

TEST_CASE("the parts of the file lie where the documentation says", "[counters]") {
  const auto file = std::make_unique<CountersFile>();
  const auto at = [&](const auto& field) {
    return reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(file.get());
  };
  CHECK(at(file->hot) == 66240);
  CHECK(at(file->hot.entries[1].fetched) == 66240 + 64 + 24);
  CHECK(at(file->map) == 74432);
  CHECK(at(file->map.addresses) == 74496);
  CHECK(at(file->map.pages) == 75520);
  CHECK(at(file->trace) == 599808);
  CHECK(at(file->trace.dropped) == 599816);
  CHECK(at(file->trace.events) == 599872);
  CHECK(at(file->trace.events[1].value) == 599872 + 64 + 48);
  CHECK(sizeof(CountersFile) == 1124160);
}

namespace {
constexpr uint64_t kMiB = 1 << 20;
Place placeAt(const ResidencyMap& map, uint64_t address) {
  const uint64_t block = address / ResidencyMap::kBlockBytes * ResidencyMap::kBlockBytes;
  for (unsigned i = 0; i < ResidencyMap::kBlocks; i++) {
    if (valueOf(map.addresses[i]) != block) continue;
    return static_cast<Place>(map.pages[i][(address - block) / ResidencyMap::kPageBytes].load() &
                              0xf);
  }
  return Place::kNone;
}
}  // namespace

TEST_CASE("the map knows where each page is, over blocks and when it is full", "[counters][map]") {
  const auto file = std::make_unique<CountersFile>();
  const uint64_t base = 0x230000000000;
  const uint64_t edge = base + ResidencyMap::kBlockBytes;
  PlaceChange change{.device = 3,
                     .address = edge - 4 * kMiB,
                     .bytes = 8 * kMiB,
                     .region = base,
                     .region_bytes = 64 * kMiB};
  change.place = Place::kVram;
  CHECK(notePlace(*file, change) == Place::kNone);
  change.place = Place::kLeaving;
  CHECK(notePlace(*file, change) == Place::kVram);
  for (const int64_t offset : {-4, -2, 0, 2})
    CHECK(placeAt(file->map, edge + uint64_t(offset) * kMiB) == Place::kLeaving);
  CHECK(placeAt(file->map, edge + 4 * kMiB) == Place::kNone);
  CHECK(placeAt(file->map, edge - 6 * kMiB) == Place::kNone);
  // Addresses in more blocks than there are: counted, the rest stays true.
  for (uint64_t i = 0; i < 300; i++) {
    notePlace(*file, {.address = base + (i + 2) * ResidencyMap::kBlockBytes,
                      .bytes = 4 * kMiB,
                      .region = 1,
                      .place = Place::kHost});
  }
  CHECK(valueOf(file->map.unmapped_pages) == 2 * (300 - (ResidencyMap::kBlocks - 2)));
  CHECK(placeAt(file->map, edge) == Place::kLeaving);
  change.place = Place::kNone;
  CHECK(notePlace(*file, change) == Place::kLeaving);
  CHECK(placeAt(file->map, edge) == Place::kNone);
  CHECK(notePlace(*file, {.address = 0, .bytes = 2 * kMiB, .place = Place::kVram}) ==
        Place::kVram);  // without an address
}

TEST_CASE("what moves most stays in the table", "[counters][hot]") {
  const auto file = std::make_unique<CountersFile>();
  const auto move = [&](uint64_t region, bool written) {
    PlaceChange change{.device = 1,
                       .address = region,
                       .bytes = 2 * kMiB,
                       .region = region,
                       .region_bytes = 32 * kMiB};
    for (const Place place : {Place::kIn, Place::kVram, Place::kLeaving,
                              written ? Place::kOut : Place::kLeaving, Place::kHost}) {
      change.place = place;
      notePlace(*file, change);
    }
  };
  const uint64_t base = 0x230000000000;
  for (int round = 0; round < 20; round++) {
    for (uint64_t hot = 0; hot < 8; hot++) move(base + hot * 64 * kMiB, hot % 2 == 0);
    for (uint64_t cold = 0; cold < 16; cold++)
      move(base + (1000 + uint64_t(round) * 16 + cold) * 64 * kMiB, false);
  }
  unsigned found = 0;
  for (const auto& entry : file->hot.entries) {
    if (valueOf(entry.fetched) < 15)
      continue;  // one that came back after it had lost its place counts anew
    const uint64_t hot = (valueOf(entry.base) - base) / (64 * kMiB);
    REQUIRE(hot < 8);
    CHECK(valueOf(entry.evicted) == valueOf(entry.fetched));
    CHECK(valueOf(entry.bytes) == 32 * kMiB);
    CHECK(valueOf(entry.device) == 1);
    CHECK(valueOf(entry.bytes_in) == valueOf(entry.fetched) * 2 * kMiB);
    CHECK(valueOf(entry.bytes_out) == (hot % 2 == 0 ? valueOf(entry.bytes_in) : 0));
    found++;
  }
  CHECK(found == 8);
  // A region that is freed is no longer shown.
  notePlace(*file, {.address = base, .bytes = 2 * kMiB, .region = base, .place = Place::kNone});
  for (const auto& entry : file->hot.entries) CHECK(valueOf(entry.base) != base);
}

TEST_CASE("events come through whole, in order, or are counted as lost", "[counters][trace]") {
  Folder folder;
  const auto child = inChild([&] {
    Counters& mine = counters();
    require(traceBegins(mine.device(0)) == 0);
    auto reader =
        TraceReader::open(folder.olpager(), static_cast<uint64_t>(getpid()), mine.start_ticks);
    require(reader.ok());
    reader.value().ask(nowNs() + 60'000'000'000);
    require(traceBegins(mine.device(0)) != 0 && traceBegins(mine.device(15)) != 0);
    // Several writers, one reader; each event carries a sum of its fields.
    constexpr uint64_t kThreads = 4, kEach = 40000;
    std::atomic<unsigned> running{kThreads};
    std::vector<std::thread> writers;
    for (uint64_t t = 0; t < kThreads; t++) {
      writers.emplace_back([&, t] {
        for (uint64_t i = 0; i < kEach; i++) {
          putEvent(countersFile().trace, TraceKind::kFault, static_cast<unsigned>(t), i, i + 1,
                   t << 32 | i, i * 3, i * 3 + (t << 32 | i));
          if (i % 512 == 0) std::this_thread::yield();
        }
        running--;
      });
    }
    std::vector<TraceReader::Event> events;
    while (running != 0) require(reader.value().read(events));
    for (auto& writer : writers) writer.join();
    for (int i = 0; i < 30; i++) require(reader.value().read(events));
    std::vector<uint64_t> next(kThreads);
    for (const auto& event : events) {
      require(event.kind == TraceKind::kFault && event.device < kThreads &&
              event.end_ns == event.start_ns + 1);
      require(event.value == event.address + event.bytes && event.bytes == event.start_ns * 3);
      require(event.address >> 32 == event.device &&
              (event.address & 0xffffffff) == event.start_ns);
      require(event.start_ns >= next[event.device]);  // of a thread in order
      next[event.device] = event.start_ns + 1;
    }
    // One whose writer is overtaken while it writes may be counted twice, or not at all.
    constexpr uint64_t kAll = kThreads * kEach, kUnsure = kAll / 50;
    const uint64_t seen = events.size() + reader.value().lost();
    require(seen + kUnsure >= kAll && seen <= kAll + kUnsure);
    require(!events.empty());
    // Asking ends, by word or by time.
    reader.value().ask(0);
    require(traceBegins(mine.device(0)) == 0);
    reader.value().ask(nowNs() - 1);
    require(traceBegins(mine.device(0)) == 0 && valueOf(mine.device(0).trace_until_ns) == 0);
  });
  CHECK(child.status == 0);
}
