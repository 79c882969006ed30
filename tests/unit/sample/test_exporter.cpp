// The page of olpagestat --prometheus: what liars at the other end can make of it, and as whom a
// user's files are read.
#include "tools/olpagestat/exporter.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/fd.h"
#include "base/format.h"
#include "pager/counters/files.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager;
using namespace olpager::tools;
namespace fs = std::filesystem;

namespace {

NodeSample daemon(const std::string& kind, std::vector<status::Figure> figures) {
  NodeSample sample;
  sample.address = "10.0.0.2:7070";
  sample.told.emplace();
  sample.told->status.kind = kind;
  sample.told->status.figures = std::move(figures);
  return sample;
}

// The lines with figures; each name and its labels are there once.
std::vector<std::string> figuresOf(const std::string& page) {
  std::vector<std::string> lines;
  std::set<std::string> names;
  std::istringstream in(page);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) continue;
    const size_t end = line.rfind(' ');
    INFO(line);
    REQUIRE(end != std::string::npos);
    CHECK(names.insert(line.substr(0, end)).second);
    lines.push_back(line);
  }
  return lines;
}

bool has(const std::vector<std::string>& lines, const std::string& begin) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const auto& line) { return line.starts_with(begin); });
}

pager::CountersSnapshot program(uint32_t pid) {
  pager::CountersSnapshot one;
  one.counters = std::make_unique<pager::Counters>();
  one.counters->pid = pid;
  std::strcpy(one.counters->program, "saxpy");
  one.counters->device(0);
  return one;
}

// The file of a process `pid` that runs, in `folder`, as `user` has written it. Returns its path.
std::string writeCounters(const std::string& folder, uint64_t pid, uid_t user) {
  auto block = std::make_unique<pager::CountersFile>();
  pager::set(block->head.magic, pager::kCountersMagic);
  block->head.version = pager::kCountersVersion;
  block->head.bytes = sizeof *block;
  block->head.pid = static_cast<uint32_t>(pid);
  block->head.start_ticks = pager::processStartTicks(pid);
  struct stat about {};
  REQUIRE(stat("/proc/self/ns/pid", &about) == 0);
  block->head.pid_namespace = about.st_ino;
  std::strcpy(block->head.program, "cat");
  const std::string path = folder + "/" + pager::countersFileName(pid, block->head.start_ticks);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(block.get()), sizeof *block);
  REQUIRE(chown(path.c_str(), user, user) == 0);
  return path;
}

}  // namespace

TEST_CASE("a daemon's figures stay its own", "[exporter]") {
  const auto good = figuresOf(exporterText(
      {}, {daemon("memserver", {{"lent_bytes", 7}, {R"(links{transport="tcp"})", 2}})}));
  CHECK(has(good, R"(olmemserver_lent_bytes{node="10.0.0.2:7070"} 7)"));
  CHECK(has(good, R"(olmemserver_links{node="10.0.0.2:7070",transport="tcp"} 2)"));
  // With another kind its figures would have the names of programs, and of the page itself.
  const std::string text = exporterText(
      {}, {daemon("pager", {{"programs", 1000}, {R"(resident_bytes{user="anna"})", 1}})});
  const auto lines = figuresOf(text);
  CHECK(has(lines, "olpager_programs 0"));
  CHECK_FALSE(has(lines, "olpager_programs{"));
  CHECK_FALSE(has(lines, "olpager_resident_bytes"));
  CHECK(has(lines, R"(olpager_node_up{node="10.0.0.2:7070"} 1)"));
}

TEST_CASE("what comes twice is told once", "[exporter]") {
  NodeSample liar = daemon("memserver", {{"lent_bytes", 7}, {"lent_bytes", 8}});
  liar.told->status.tiers = {{"RAM", 3, 1, 2}, {"RAM", 4, 2, 2}};
  std::vector<UsersPrograms> users(1);
  users[0].user = "anna";
  users[0].reading.processes.push_back(program(1));
  pager::Counters& counters = *users[0].reading.processes[0].counters;
  counters.unified.count = 2;  // of one name
  for (int i = 0; i < 2; ++i) {
    std::strcpy(counters.unified.executors[i].gpunode, "box\"2");
    status::LinkBytes& link = counters.links.links[i];
    pager::set(link.end, static_cast<uint64_t>(status::LinkEnd::kGpunode));
    for (status::RailCounters& rail : link.rails)
      pager::set(rail.state, static_cast<uint64_t>(status::RailState::kInUse));
  }
  // The daemon is asked twice, by the same name.
  const auto lines = figuresOf(exporterText(users, {liar, liar}));
  CHECK(has(lines, R"(olmemserver_lent_bytes{node="10.0.0.2:7070"} 7)"));
  CHECK(has(lines, R"(olpager_executor_owned_bytes{user="anna",pid="1",program="saxpy",)"
                   R"(executor="box\"2"} 0)"));
  CHECK(has(lines, "olpager_rail_in_use"));
}

TEST_CASE("one user's files leave room for the others'", "[exporter]") {
  std::vector<UsersPrograms> users(2);
  users[0].user = "anna";
  users[1].user = "bert";
  for (uint32_t pid = 1; pid <= 1000; ++pid) users[0].reading.processes.push_back(program(pid));
  users[1].reading.processes.push_back(program(1));
  const auto lines = figuresOf(exporterText(users, {}));
  CHECK(has(lines, R"(olpager_launches_total{user="bert",pid="1")"));
  CHECK(has(lines, "olpager_programs 257"));
  CHECK(has(lines, "olpager_programs_left_out 744"));
}

// As root: a program of a user without a name, whose first argument is a file that root's group may
// read and that user not.
TEST_CASE("a user's files are read as that user, with no group of root's", "[exporter][root]") {
  if (geteuid() != 0) {
    WARN("not tried: not root");
    return;
  }
  const auto user = static_cast<uid_t>(3'000'000 + getpid());
  const test::TemporaryFolder scratch;
  fs::permissions(scratch.path, fs::perms(0755));
  const std::string open = scratch.write("open.txt", "text\n");
  const std::string closed = scratch.write("closed.txt", "text\n");
  chmod(open.c_str(), 0644);
  chmod(closed.c_str(), 0640);
  const std::string folder = base::format("/tmp/olpager-{}", user);
  const struct Goes {
    const std::string& path;
    ~Goes() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } goes{folder};
  REQUIRE(mkdir(folder.c_str(), 0700) == 0);
  REQUIRE(chown(folder.c_str(), user, user) == 0);
  for (const std::string& argument : {open, closed}) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    base::UniqueFd from(ends[0]), to(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
      dup2(from.get(), STDIN_FILENO);
      if (setgid(user) != 0 || setuid(user) != 0) _exit(1);
      execlp("cat", "cat", "-", argument.c_str(), nullptr);  // it waits for standard input
      _exit(1);
    }
    const auto pid = static_cast<uint64_t>(child);
    const auto isCat = [&] {
      std::ifstream comm(base::format("/proc/{}/comm", pid));
      std::string name;
      return std::getline(comm, name) && name == "cat";
    };
    while (!isCat() && waitpid(child, nullptr, WNOHANG) == 0) usleep(1000);
    REQUIRE(isCat());
    const std::string path = writeCounters(folder, pid, user);

    const auto all = readAllUsers({});
    CHECK(geteuid() == 0);
    CHECK(getegid() == 0);
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const auto& one) { return one.user == std::to_string(user); });
    REQUIRE(found != all.end());
    REQUIRE(found->reading.processes.size() == 1);
    CHECK(std::string(found->reading.processes[0].counters->program) ==
          (argument == open ? "cat open.txt" : "cat"));
    to.reset();
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    unlink(path.c_str());
  }
}

TEST_CASE("root's own files are read without the right to become another user",
          "[exporter][root]") {
  if (geteuid() != 0) {
    WARN("not tried: not root");
    return;
  }
  const std::string folder = "/tmp/olpager-0";  // another program of root's may have it
  mkdir(folder.c_str(), 0700);
  const std::string path = writeCounters(folder, static_cast<uint64_t>(getpid()), 0);
  const pid_t child = fork();
  if (child == 0) {
    __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    if (syscall(SYS_capset, &head, none) != 0) _exit(2);
    bool found = false;
    for (const auto& user : readAllUsers({}))
      for (const auto& process : user.reading.processes)
        found |= process.counters->pid == static_cast<uint32_t>(getppid());
    _exit(found ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  unlink(path.c_str());
  rmdir(folder.c_str());
}
