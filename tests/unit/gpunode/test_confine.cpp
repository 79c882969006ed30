// Calls that a confined process can't make, and those that it still can. In a child: there is no
// way back.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/process.h"
#include "gpunode/worker/confine.h"
#include "tests/catch.h"

namespace {

// 0, or the number of the first expectation that does not hold.
template <typename... Expectations>
int inChild(bool connects, Expectations... expectations) {
  const pid_t child = fork();
  if (child == 0) {
    if (!olpager::gpunode::confine({connects}).ok()) _exit(100);
    int number = 0, failed = 0;
    ((++number, failed = failed == 0 && !expectations() ? number : failed), ...);
    _exit(failed);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

bool refused(long result) { return result < 0 && errno == EPERM; }

bool noProgram() {
  char name[] = "/bin/true";
  char* const arguments[] = {name, nullptr};
  return refused(execve(name, arguments, nullptr));
}
bool noProcess() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  return refused(child);
}
bool threads() {
  bool ran = false;
  std::thread([&] { ran = true; }).join();
  return ran;
}
bool threadsAreConfined() {
  bool held = false;
  std::thread([&] { held = noProgram(); }).join();
  return held;
}
bool noTracing() { return refused(ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr)); }
bool noRights() { return refused(syscall(SYS_setuid, 0)) && refused(syscall(SYS_unshare, 0)); }
bool noConnections() {
  return refused(socket(AF_INET, SOCK_STREAM, 0)) && refused(socket(AF_INET6, SOCK_STREAM, 0));
}
bool connections() {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  return made >= 0 && close(made) == 0;
}
bool ownSockets() {
  int ends[2];
  return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}
bool memory() {
  void* const mapped =
      mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped != MAP_FAILED && mprotect(mapped, 1 << 20, PROT_READ | PROT_EXEC) == 0;
}
bool noOtherSockets() {
  int ends[2];
  sockaddr_un nowhere{};
  nowhere.sun_family = AF_UNIX;
  const int made = socket(AF_UNIX, SOCK_STREAM, 0);
  return refused(connect(made, reinterpret_cast<const sockaddr*>(&nowhere), sizeof nowhere)) &&
         refused(socket(AF_UNIX, SOCK_DGRAM, 0)) && refused(socket(AF_UNIX, SOCK_RAW, 0)) &&
         refused(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) &&
         socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
}
bool noRings() {
  char parameters[120] = {};
  return refused(syscall(SYS_io_uring_setup, 4, parameters));
}
bool noOthers() {
  char byte = 0;
  const iovec own{&byte, 1}, its{&byte, 1};
  const rlimit few{16, 16};
  return refused(kill(getppid(), 0)) && refused(kill(0, 0)) && refused(kill(-1, 0)) &&
         refused(syscall(SYS_tgkill, getppid(), getppid(), 0)) &&
         refused(process_vm_readv(getppid(), &own, 1, &its, 1, 0)) &&
         refused(process_vm_writev(getppid(), &own, 1, &its, 1, 0)) &&
         refused(prlimit(getppid(), RLIMIT_NOFILE, &few, nullptr)) &&
         refused(syscall(SYS_pidfd_open, getppid(), 0));
}
bool itself() {
  rlimit limit{};
  return kill(getpid(), 0) == 0 && raise(SIGCHLD) == 0 &&
         pthread_kill(pthread_self(), SIGCHLD) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
         prlimit(getpid(), RLIMIT_NOFILE, &limit, nullptr) == 0;
}
bool noTyping() {
  const olpager::base::UniqueFd terminal(posix_openpt(O_RDWR | O_NOCTTY));
  char typed = 'x';
  int bytes = 0;
  return terminal && refused(ioctl(terminal.get(), TIOCSTI, &typed)) &&
         refused(ioctl(terminal.get(), TIOCSCTTY, 0)) &&
         ioctl(terminal.get(), FIONREAD, &bytes) == 0;
}
bool noCore() {
  rlimit limit{1, 1};
  return getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0 && limit.rlim_max == 0;
}

// A process that has a key, and one of the same user that wants it.
uint64_t g_key = 0;

// A kept process: one of `user` (root: as it is), which waits until the other one has looked.
class Kept {
 public:
  Kept(uid_t user, bool kept) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      g_key = 0x5ec2e7;
      if (user != 0 && setresuid(user, user, user) != 0) _exit(1);
      (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // a change of the user ends that
      if (kept) olpager::base::keepFromOthers();
      (void)!write(ends[1], "k", 1);
      for (;;) pause();
    }
    char ready = 0;
    (void)!read(ends[0], &ready, 1);
    close(ends[0]);
    close(ends[1]);
  }
  ~Kept() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  std::string file(const char* name) const {
    return "/proc/" + std::to_string(child_) + "/" + name;
  }
  pid_t pid() const { return child_; }

 private:
  pid_t child_ = -1;
};

bool hasLandlock() {
  return syscall(SYS_landlock_create_ruleset, nullptr, 0, 1) > 0;  // its version
}

// Facts that a process of the same user finds out: bit 0 a file of /proc that shows memory, bit 1
// memory itself, bit 2 descriptors, bit 3 a descriptor for itself.
int foundOut(const Kept& other, uid_t user, bool gives_up) {
  const pid_t child = fork();
  if (child == 0) {
    if (gives_up) olpager::gpunode::giveUpTracing();
    if (user != 0 && setresuid(user, user, user) != 0) _exit(100);
    int found = 0;
    if (olpager::base::UniqueFd(open(other.file("environ").c_str(), O_RDONLY | O_CLOEXEC)))
      found |= 1;
    uint64_t key = 0;
    const iovec own{&key, sizeof key}, its{&g_key, sizeof g_key};
    if (process_vm_readv(other.pid(), &own, 1, &its, 1, 0) > 0) found |= 2;
    char target[64];
    if (readlink(other.file("fd/0").c_str(), target, sizeof target) > 0) found |= 4;
    const olpager::base::UniqueFd process(
        static_cast<int>(syscall(SYS_pidfd_open, other.pid(), 0)));
    if (olpager::base::UniqueFd(static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), 0, 0))))
      found |= 8;
    _exit(found);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

}  // namespace

TEST_CASE("a worker can't look into a process that is kept from others", "[confine]") {
  constexpr uid_t kNobody = 65534;
  // As who runs the test; where that is root, as somebody else too.
  for (const uid_t user : {uid_t{0}, kNobody}) {
    if (user != 0 && geteuid() != 0) continue;
    INFO("as user " << (user != 0 ? user : geteuid()));
    // If nothing keeps it, there is something to find out: else this tests nothing.
    if (user != 0 || geteuid() != 0) CHECK((foundOut(Kept(user, false), user, false) & 1) == 1);
    // Newer kernels show root the environment by other capabilities as well.
    const int hidden = user != 0 || geteuid() != 0 ? ~0 : ~1;
    CHECK((foundOut(Kept(user, true), user, true) & hidden) == 0);
    if (hasLandlock()) CHECK((foundOut(Kept(user, false), user, true) & hidden) == 0);
  }
}

TEST_CASE("a confined worker starts nothing, looks into nobody and goes nowhere", "[confine]") {
  CHECK(inChild(false, noProgram, noProcess, noTracing, noRights, noConnections, noCore) == 0);
  CHECK(inChild(false, noOtherSockets, noRings, noOthers, noTyping) == 0);
}

TEST_CASE("a confined worker still has threads, memory and its own sockets", "[confine]") {
  CHECK(inChild(false, threads, threadsAreConfined, memory, ownSockets, itself) == 0);
  CHECK(inChild(true, connections, noProgram, noProcess, noRings, noOthers, noTyping) == 0);
}
