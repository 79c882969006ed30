// What a confined process can't do, and what it still can. In a child: there is no way back.
#include <errno.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

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
bool noConnections() { return refused(socket(AF_INET, SOCK_STREAM, 0)) && refused(socket(AF_INET6, SOCK_STREAM, 0)); }
bool connections() {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  return made >= 0 && close(made) == 0;
}
bool ownSockets() {
  int ends[2];
  return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}
bool memory() {
  void* const mapped = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped != MAP_FAILED && mprotect(mapped, 1 << 20, PROT_READ | PROT_EXEC) == 0;
}
bool noCore() {
  rlimit limit{1, 1};
  return getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0 && limit.rlim_max == 0;
}

}  // namespace

TEST_CASE("a confined worker starts nothing, looks into nobody and goes nowhere", "[confine]") {
  CHECK(inChild(false, noProgram, noProcess, noTracing, noRights, noConnections, noCore) == 0);
}

TEST_CASE("a confined worker still has threads, memory and its own sockets", "[confine]") {
  CHECK(inChild(false, threads, threadsAreConfined, memory, ownSockets) == 0);
  CHECK(inChild(true, connections, noProgram, noProcess) == 0);
}
