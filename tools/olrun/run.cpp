#include "tools/olrun/run.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/format.h"
#include "base/process.h"
#include "pager/counters/files.h"
#include "tools/olpagestat/report.h"
#include "tools/olpagestat/why.h"

namespace olpager::tools {
namespace {

volatile pid_t g_child = 0;

// To the child, as if it had been sent to it: a signal to olrun means the program. A terminal sends
// to the program itself.
void handOn(int signal, siginfo_t* about, void* /*context*/) {
  const bool from_terminal = (signal == SIGINT || signal == SIGQUIT) && about->si_code > 0;
  if (g_child > 0 && !from_terminal) kill(g_child, signal);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> all;
  all.reserve(strings.size() + 1);
  for (const auto& string : strings) all.push_back(const_cast<char*>(string.c_str()));
  all.push_back(nullptr);
  return all;
}

uint64_t randomToken() {
  uint64_t token = 0;
  while (token == 0) {
    if (getrandom(&token, sizeof token, 0) < 0 && errno != EINTR)
      token = static_cast<uint64_t>(getpid());
  }
  return token;
}

pager::CountersReading keptCounters(uint64_t token) {
  auto reading = pager::readCounters(pager::countersFolders());
  std::erase_if(reading.processes,
                [&](const auto& process) { return process.counters->keep_token != token; });
  return reading;
}

// The counters of processes that are to have ended by now, or of what is left behind.
void awaitEnds(uint64_t token) {
  constexpr auto kMost = std::chrono::seconds(3);
  constexpr auto kPause = std::chrono::milliseconds(10);
  const auto end = std::chrono::steady_clock::now() + kMost;
  const auto runs = [](const auto& process) {
    return process.state == pager::CountersSnapshot::State::kRunning;
  };
  for (;;) {
    const auto reading = keptCounters(token);
    if (std::none_of(reading.processes.begin(), reading.processes.end(), runs) ||
        std::chrono::steady_clock::now() >= end)
      return;
    std::this_thread::sleep_for(kPause);
  }
}

void printStats(const AtEnd& at_end) {
  const auto reading = keptCounters(at_end.token);
  if (reading.processes.empty())
    base::print(stderr, "{}", "olrun: the program used no GPU\n");
  else if (at_end.stats)
    base::print(stderr, "{}", countersTable(reading));
  if (at_end.why) base::print(stderr, "{}", whyText(reading));
  for (const auto& process : reading.processes) {
    if (process.state != pager::CountersSnapshot::State::kEnded)
      continue;  // a daemon it left behind
    pager::removeCountersFile(process.folder, process.counters->pid, process.counters->start_ticks);
  }
}

}  // namespace

int replaceBy(const std::string& path, const std::vector<std::string>& arguments,
              Environment environment, bool says_unused) {
  if (says_unused) environment.set(base::kProgramVariable, base::format("{}", getpid()));
  const auto argv = pointers(arguments);
  const auto envp = pointers(environment.entries());
  execve(path.c_str(), argv.data(), envp.data());
  if (errno == ENOEXEC) {
    // A script without a #! line: a shell runs it, as execvp and every shell do.
    auto shell_arguments = argv;
    shell_arguments[0] = const_cast<char*>(path.c_str());
    static char shell[] = "/bin/sh";
    shell_arguments.insert(shell_arguments.begin(), shell);
    execve(shell, shell_arguments.data(), envp.data());
  }
  base::print(stderr, "olrun: {}: can't be run: {}\n", path, std::strerror(errno));
  return 126;
}

constexpr int kHandedOn[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT};

uint64_t keepCounters(Environment& environment) {
  const uint64_t token = randomToken();
  environment.set("OL_COUNTERS_KEEP", base::format("{}", token));
  return token;
}

int runWithStats(const std::string& path, const std::vector<std::string>& arguments,
                 Environment environment, bool says_unused, const AtEnd& at_end) {
  // Blocked until the child's pid is known, so that no signal is lost between fork and then.
  sigset_t handed_on;
  sigemptyset(&handed_on);
  for (int signal : kHandedOn) sigaddset(&handed_on, signal);
  sigset_t before;
  sigprocmask(SIG_BLOCK, &handed_on, &before);
  const pid_t child = fork();
  if (child < 0) {
    base::print(stderr, "olrun: fork: {}\n", std::strerror(errno));
    return 126;
  }
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    _exit(replaceBy(path, arguments, std::move(environment), says_unused));
  }
  g_child = child;
  struct sigaction action {};
  action.sa_sigaction = handOn;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (int signal : kHandedOn) sigaction(signal, &action, nullptr);
  sigprocmask(SIG_SETMASK, &before, nullptr);

  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  g_child = 0;
  if (at_end.elsewhere) awaitEnds(at_end.token);
  printStats(at_end);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace olpager::tools
