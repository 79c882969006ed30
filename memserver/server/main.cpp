// olmemserver: donates memory of this machine to sessions elsewhere. docs/internals/memserver.md.
#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>

#include "base/command_line.h"
#include "base/credentials.h"
#include "base/daemon_log.h"
#include "base/format.h"
#include "base/log.h"
#include "base/log_reader.h"
#include "coherence/transport/log_links.h"
#include "memserver/server/daemon.h"
#include "memserver/server/query.h"

#ifdef OL_JEMALLOC
// Memory that the allocator no longer needs goes back to the system by itself.
extern "C" __attribute__((visibility("default"))) const char* malloc_conf;
const char* malloc_conf = "background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:5000";
#endif

namespace {

using namespace olpager;
using olpager::memserver::DaemonOptions;

int refuse(const std::string& why) {
  base::print(stderr, "olmemserver: {}\n", why);
  return 2;
}

int showState(const DaemonOptions& options, bool json) {
  using namespace olpager::memserver;
  const std::string address = askAddress(options.listen.front());
  const auto state = askState(options, address);
  if (!state.ok()) {
    base::print(stderr, "olmemserver: {}\n", state.error().message);
    return 1;
  }
  base::print("{}", json ? stateJson(state.value()) : stateText(state.value()));
  return 0;
}

int run(int argc, char** argv) {
  // Before there is a second thread: signals are waited for, in one place.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // The daemon starts none, but where it is a container's process 1 it gets the orphans of others:
  // nobody is to wait for them.
  signal(SIGCHLD, SIG_IGN);

  base::CommandLine line(
      "olmemserver",
      "Donates memory of this machine to olpager's sessions elsewhere, and takes it back when the "
      "machine needs it.",
      "[OPTION...]",
      {{"olmemserver --memory 64GiB", "for programs of this machine, at 127.0.0.1:7070"},
       {"olmemserver --listen 10.0.0.2:7070 --key /etc/olpager/memserver.key",
        "all memory but the reserve, for all who hold the key"},
       {"olmemserver --state --listen 10.0.0.2:7070 --key KEYFILE",
        "what the daemon that listens there lends to whom"}});
  constexpr const char* kState = "The daemon that runs";
  DaemonOptions options;
  base::OptionTable table = memserver::optionsOf(options);
  line.add(table, base::CommandLine::Again::kHolds);
  line.addFile(memserver::kSystemFile);
  bool state = false, json = false;
  line.app()
      .add_flag("--state", state, "Print what the daemon that listens there lends to whom, and end")
      ->group(kState);
  line.app().add_flag("--json", json, "--state as JSON")->group(kState);
  if (const auto status = line.parse(argc, argv)) return *status;
  if (const Status status = line.read(table, std::string(memserver::kSystemFile)); !status.ok())
    return refuse(status.error().message);
  if (options.key.empty()) options.key = base::ownCredentialFile(memserver::kCredential);
  if (state) {
    base::setLogLevel(base::LogLevel::kError);
    return showState(options, json);
  }
  base::setLogLevel(options.log);
  base::useDaemonLog(options.log_format, "olmemserver");
  transport::setLinkLogLevel(base::LogLevel::kDebug);
  base::neverWaitForLogReader();
  return memserver::runDaemon(options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "olmemserver: %s\n", failure.what());
    return 2;
  }
}
