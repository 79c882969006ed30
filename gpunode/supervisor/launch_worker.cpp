#include "gpunode/supervisor/launch_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "base/format.h"
#include "coherence/transport/routes.h"

namespace olpager::gpunode {

std::vector<std::string> inheritedEnvironment() {
  const auto ours = [](std::string_view entry) {
    for (const std::string_view name :
         {"OL_GPUNODE=", "OL_TRANSPORT=", "OL_RAILS=", "OL_DRIVER=", "OL_VRAM=", "OL_HOST=",
          "OL_LOG=", "LD_PRELOAD=", "OL_COUNTERS_KEEP=", "OLPAGER_DAEMON_LOG="}) {
      if (entry.starts_with(name)) return true;
    }
    return false;
  };
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!ours(*entry)) environment.emplace_back(*entry);
  }
  return environment;
}

Result<StartedWorker> launchWorker(const std::string& program, std::vector<std::string> environment,
                                   const WorkerSetup& setup) {
  const auto failed = [] {
    return Error{base::format("a worker can't be started: {}", std::strerror(errno))};
  };
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return failed();
  base::UniqueFd own(ends[0]), workers(ends[1]);
  auto connections = transport::makeHandoverSockets();
  if (!connections.ok())
    return Error{base::format("a worker can't be started: {}", connections.error().message)};
  std::vector<char*> envp;
  envp.reserve(environment.size() + 1);
  for (auto& entry : environment) envp.push_back(entry.data());
  envp.push_back(nullptr);
  std::string name = "olgpunode-worker";
  char* const argv[] = {name.data(), nullptr};

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return failed();
  if (child == 0) {
    // Only what is safe between fork and exec.
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    (void)setsid();  // a terminal is the gpunode's
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    // First out of each other's way.
    const int setup_end = fcntl(workers.get(), F_DUPFD_CLOEXEC, kConnectionsFd + 1);
    const int connections_end =
        fcntl(connections.value().to.get(), F_DUPFD_CLOEXEC, kConnectionsFd + 1);
    if (dup2(setup_end, kSetupFd) < 0 || dup2(connections_end, kConnectionsFd) < 0) _exit(1);
    execve(program.c_str(), argv, envp.data());
    _exit(127);
  }
  StartedWorker started{child, std::move(own), std::move(connections.value().from)};
  WorkerSetup told = setup;
  told.supervisor = parent;
  const ssize_t sent = send(started.socket.get(), &told, sizeof told, MSG_NOSIGNAL);
  explicit_bzero(&told, sizeof told);
  if (sent != static_cast<ssize_t>(sizeof told)) {
    const auto error = failed();
    kill(child, SIGKILL);  // reaped with all others
    return error;
  }
  return started;
}

}  // namespace olpager::gpunode
