// olgpunode: runs the GPU work of programs elsewhere. docs/internals/forwarding.md.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/command_line.h"
#include "base/credentials.h"
#include "base/daemon_log.h"
#include "base/format.h"
#include "base/locate.h"
#include "base/log.h"
#include "base/log_reader.h"
#include "base/process.h"
#include "base/settings.h"
#include "base/text.h"
#include "coherence/transport/log_links.h"
#include "forwarding/local_gpunode.h"
#include "gpunode/supervisor/options.h"
#include "gpunode/supervisor/own_program.h"
#include "gpunode/supervisor/query.h"
#include "gpunode/supervisor/supervisor.h"

namespace {

using namespace olpager;

constexpr int kRefused = 2;

// The descriptor on which olrun waits for an answer; else none.
base::UniqueFd g_answer;

int refuse(const std::string& why) {
  if (g_answer) {
    (void)!write(g_answer.get(), why.data(), why.size());
  } else {
    base::print(stderr, "olgpunode: {}\n", why);
  }
  return kRefused;
}

// A key that was made for this gpunode.
class RemoveAtEnd {
 public:
  explicit RemoveAtEnd(std::string path) : path_(std::move(path)) {}
  ~RemoveAtEnd() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  RemoveAtEnd(const RemoveAtEnd&) = delete;
  RemoveAtEnd& operator=(const RemoveAtEnd&) = delete;

 private:
  const std::string path_;
};

// Takes the descriptors that olrun has opened for it. A gpunode that somebody else starts so has
// none of it.
Status takeProgram(gpunode::OwnProgram& program, const std::string& listen) {
  constexpr std::string_view kUnix = "unix:";
  struct stat about {};
  base::UniqueFd process(forward::kProgramFd), answer(forward::kAnswerFd);
  const bool open = fcntl(process.get(), F_SETFD, FD_CLOEXEC) == 0 &&
                    fcntl(answer.get(), F_SETFD, FD_CLOEXEC) == 0 &&
                    fstat(answer.get(), &about) == 0 && S_ISFIFO(about.st_mode);
  if (!open || !listen.starts_with(kUnix))
    return Error{base::format("{} is for olrun, which starts it so (olrun --gpunode local)",
                              forward::kForProgramOption)};
  program = gpunode::OwnProgram(std::move(process), listen.substr(kUnix.size()));
  g_answer = std::move(answer);
  return {};
}

int run(int argc, char** argv) {
  base::neverWaitForLogReader();
  base::keepFromOthers();  // before it has a key: its workers run what clients say
  // Before there is a second thread: signals are waited for, in one place.
  sigset_t mine;
  sigemptyset(&mine);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&mine, signal);
  pthread_sigmask(SIG_BLOCK, &mine, nullptr);
  signal(SIGPIPE, SIG_IGN);

  base::CommandLine line(
      "olgpunode", "Runs the GPU work of programs on other machines (olrun --gpunode).",
      "[OPTION...]",
      {{"olgpunode", "for programs of this machine, at 127.0.0.1:7071"},
       {"olgpunode --listen 10.0.0.3:7071 --key /etc/olpager/gpunode.key --vram 50%",
        "for all who hold the key; half of each GPU's VRAM for a session at most"},
       {"olgpunode --state --listen 10.0.0.3:7071 --key KEYFILE",
        "who uses the daemon that listens there"}});
  constexpr const char* kState = "The daemon that runs";
  gpunode::SupervisorOptions options;
  base::OptionTable table = gpunode::optionsOf(options);
  line.add(table, base::CommandLine::Again::kHolds);
  line.addFile(gpunode::kSystemFile);
  bool state = false, json = false, for_program = false;
  line.app().add_flag(forward::kForProgramOption, for_program)->group("");
  line.app()
      .add_flag("--state", state, "Print the sessions of the daemon that listens there, and end")
      ->group(kState);
  line.app().add_flag("--json", json, "--state as JSON")->group(kState);
  if (const auto status = line.parse(argc, argv)) return *status;
  // The machine's file is of its own gpunode, not of one that somebody starts for a program.
  if (auto status = line.read(table, for_program ? "" : gpunode::kSystemFile); !status.ok())
    return refuse(status.error().message);
  gpunode::OwnProgram program;
  if (for_program) {
    if (auto taken = takeProgram(program, options.listen); !taken.ok())
      return refuse(taken.error().message);
  }
  const RemoveAtEnd key(for_program ? options.key : "");
  if (options.key.empty()) options.key = base::ownCredentialFile(gpunode::kCredential);
  base::setLogLevel(options.log);

  if (state) {
    base::setLogLevel(base::LogLevel::kWarn);
    const auto text = gpunode::askState(options);
    if (!text.ok()) {
      base::print(stderr, "olgpunode: {}\n", text.error().message);
      return 1;
    }
    base::print("{}", json ? gpunode::stateJson(text.value()) : gpunode::stateText(text.value()));
    return 0;
  }
  const std::string self = base::currentExecutable();
  const std::string worker = base::locateProgram(self, "olgpunode-worker");
  const std::string library = base::locateLibrary(self, "libolpager.so");
  const std::string sim = base::locateLibrary(self, "libolsimcuda.so");
  if (worker.empty() || library.empty())
    return refuse(base::format("{} is not in the build or installation of {}",
                               worker.empty() ? "olgpunode-worker" : "libolpager.so", self));
  if (options.driver == "sim" && sim.empty())
    return refuse(
        base::format("libolsimcuda.so, the simulated GPU, is not in the build or installation of "
                     "{}; install it: "
                     "package olpager-simgpu",
                     self));
  if (!for_program) {
    base::useDaemonLog(options.log_format, "olgpunode");
    transport::setLinkLogLevel(base::LogLevel::kDebug);
  }
  gpunode::Supervisor supervisor(options, worker, library, sim);
  supervisor.serveOnly(std::move(program));
  if (auto started = supervisor.start(); !started.ok()) return refuse(started.error().message);
  base::logInfo("listening at %s", supervisor.address().c_str());
  if (g_answer) {
    (void)!write(g_answer.get(), forward::kLocalReady.data(), forward::kLocalReady.size());
    g_answer.reset();
  }
  return supervisor.run();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "olgpunode: %s\n", failure.what());
    return kRefused;
  }
}
