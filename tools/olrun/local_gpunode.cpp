#include "tools/olrun/local_gpunode.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "base/locate.h"
#include "base/process.h"
#include "base/text.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/local_gpunode.h"
#include "tools/olrun/machine_check.h"

namespace olpager::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKeyName = "local";
constexpr size_t kMostAnswer = 4096;
constexpr time_t kStarting = 120;  // seconds in which a gpunode listens, or never will

Error failed(const char* what) { return Error{base::format("{}: {}", what, std::strerror(errno))}; }

std::vector<std::string> commandLine(const base::Settings& settings, const std::string& socket) {
  // RDMA has no place within a machine.
  const auto transport = settings.transport == base::TransportSetting::kVerbs
                             ? base::TransportSetting::kAuto
                             : settings.transport;
  std::vector<std::string> line{
      "olgpunode",
      forward::kForProgramOption,
      "--listen=unix:" + socket,
      "--key=" + base::localKeyPath(socket),
      base::format("--transport={}", base::wordOf(base::kTransportWords, transport)),
      base::format("--tls={}", base::wordOf(base::kTlsWords, settings.tls)),
      base::format("--log={}", base::logLevelName(settings.log))};
  if (!settings.driver.empty()) line.push_back("--driver=" + settings.driver);
  if (settings.vram.given()) line.push_back("--vram=" + base::exactBudget(settings.vram));
  if (settings.host.given()) {
    line.push_back("--memory=" + base::exactBudget(settings.host));
    // All sessions together have as much as is usual, unless one is to have more. In the unified
    // view the program has a session for each GPU, and that much in all.
    if (settings.view == base::ViewSetting::kUnified || hostTier(settings.host) > hostTier({}))
      line.push_back("--total-memory=" + base::exactBudget(settings.host));
  }
  return line;
}

// Without the program's own: what it chooses among the devices, its session says; what is preloaded
// into it is not for daemons; its unit's cache is not for modules. The gpunode is none of the
// program's processes, which are known by kLocalVariable.
std::vector<std::string> daemonEnvironment(const Environment& program) {
  std::vector<std::string> environment;
  for (const std::string& entry : program.entries()) {
    const std::string name = entry.substr(0, entry.find('='));
    if (name != "LD_PRELOAD" && name != "CUDA_VISIBLE_DEVICES" && name != base::kLocalVariable &&
        name != "OL_GPUNODE" && name != "CACHE_DIRECTORY")
      environment.push_back(entry);
  }
  // Devices are counted as the driver counts them for a program of this machine.
  if (!program.has("CUDA_DEVICE_ORDER"))
    environment.emplace_back("CUDA_DEVICE_ORDER=FASTEST_FIRST");
  return environment;
}

// Those whose gpunode was killed, so that nobody removed them.
void removeDeadKeys(const std::string& folder) {
  std::error_code ignored;
  const std::string suffix = base::localKeyPath("");
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string path = entry.path();
    struct stat about {};
    if (!path.ends_with(".sock" + suffix) || lstat(path.c_str(), &about) != 0) continue;
    const std::string socket = path.substr(0, path.size() - suffix.size());
    if (time(nullptr) - about.st_mtime >= kStarting && access(socket.c_str(), F_OK) != 0)
      unlink(path.c_str());
  }
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  all.reserve(strings.size() + 1);
  for (std::string& string : strings) all.push_back(string.data());
  all.push_back(nullptr);
  return all;
}

// Leaves open the descriptors that it is to find, and nothing else of what this process has, such
// as a pipe for whose end somebody waits. False: errno says why.
bool arrangeDescriptors(int process, int answer, bool logs) {
  constexpr int kFirstFree = forward::kAnswerFd + 1;
  // First out of each other's way.
  const base::UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const bool errors = logs && fcntl(STDERR_FILENO, F_GETFD) >= 0;
  const int from[] = {null.get(), null.get(), errors ? STDERR_FILENO : null.get(), process, answer};
  const int to[] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, forward::kProgramFd,
                    forward::kAnswerFd};
  int between[std::size(from)];
  for (size_t i = 0; i < std::size(from); ++i) {
    between[i] = fcntl(from[i], F_DUPFD_CLOEXEC, kFirstFree);
    if (between[i] < 0) return false;
  }
  for (size_t i = 0; i < std::size(from); ++i) {
    if (dup2(between[i], to[i]) < 0) return false;
  }
  (void)syscall(SYS_close_range, kFirstFree, ~0U, 0);
  return true;
}

// In the child, whose parent waits for it: a child of its own goes on, which is nobody's. In
// another session than the terminal's, whose signals are the program's.
[[noreturn]] void becomeDaemon(const std::string& path, char* const* argv, char* const* envp,
                               int process, int answer, bool logs) {
  (void)setsid();
  const pid_t daemon = fork();
  if (daemon > 0) _exit(0);
  if (daemon == 0 && arrangeDescriptors(process, answer, logs)) {
    answer = forward::kAnswerFd;
    execve(path.c_str(), argv, envp);
  }
  const std::string why = base::format("{}: {}", path, std::strerror(errno));
  (void)!write(answer, why.data(), why.size());
  _exit(127);
}

// All of it, to its end.
std::string readAnswer(int from) {
  std::string text;
  char buffer[512];
  for (ssize_t got; (got = read(from, buffer, sizeof buffer)) != 0 && text.size() < kMostAnswer;) {
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  return text;
}

// The Error: why there is none.
Status start(const std::string& program, std::vector<std::string> arguments,
             std::vector<std::string> environment, bool logs) {
  const base::UniqueFd process = base::watchProcess(getpid());
  if (!process) return failed("pidfd_open (Linux 5.3 has it)");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failed("pipe");
  const base::UniqueFd answer(ends[0]);
  base::UniqueFd answers(ends[1]);
  const auto argv = pointers(arguments);
  const auto envp = pointers(environment);
  const pid_t child = fork();
  if (child < 0) return failed("fork");
  if (child == 0)
    becomeDaemon(program, argv.data(), envp.data(), process.get(), answers.get(), logs);
  answers.reset();
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string said = readAnswer(answer.get());
  if (said == forward::kLocalReady) return {};
  return Error{said.empty() ? "it ended before it was ready; --log info has it say more"
                            : base::printable(said)};
}

}  // namespace

Result<std::string> startLocalGpunode(const base::Settings& settings,
                                      const Environment& environment, const std::string& self) {
  const std::string program = base::locateProgram(self, "olgpunode");
  if (program.empty())
    return Error{
        base::format("olgpunode is not in the build or installation of {}; install it: "
                     "package olpager-gpunode",
                     self)};
  const auto folder = transport::socketFolder();
  if (!folder.ok()) return folder.error();
  transport::removeDeadSockets(folder.value());
  removeDeadKeys(folder.value());
  const std::string socket = transport::newSocketPath(folder.value());
  const std::string key = base::localKeyPath(socket);
  if (auto made = transport::createKeyFile(key, kKeyName); !made.ok()) return made.error();
  // Messages about the program come to it from there, and are said by its side. All else is for
  // those who ask for it; nor is a pipe kept open that the program writes to.
  const bool logs = settings.log >= base::LogLevel::kInfo;
  const Status started =
      start(program, commandLine(settings, socket), daemonEnvironment(environment), logs);
  if (started.ok()) return socket;
  unlink(key.c_str());
  return started.error();
}

}  // namespace olpager::tools
