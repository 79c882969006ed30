#include "gpunode/supervisor/options.h"

#include <algorithm>

#include "base/format.h"
#include "gpunode/worker/setup.h"

namespace olpager::gpunode {
namespace {

namespace setter = base::setter;

// Numbers of GPUs with commas between, each once.
base::Setter devices(std::vector<uint32_t>& into) {
  return [&into](std::string_view text) -> Status {
    std::vector<uint32_t> found;
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      uint32_t index = 0;
      if (!setter::number(index, 0, kMostDevices - 1)(text.substr(at, end - at)).ok())
        return base::notAllowed(
            text, base::format("numbers of GPUs with commas between them, such as 0,2; up to {}",
                               kMostDevices - 1));
      if (std::find(found.begin(), found.end(), index) != found.end())
        return Error{base::format("GPU {} is named twice", index)};
      found.push_back(index);
      at = end + 1;
    }
    into = std::move(found);
    return {};
  };
}

}  // namespace

base::OptionTable optionsOf(SupervisorOptions& o) {
  constexpr const char *kGpus = "GPUs", *kMemory = "Memory", *kModules = "Modules",
                       *kSessions = "Sessions";
  constexpr uint32_t kMostSessions = 1024;
  std::vector<base::Option> rows = {
      {"listen", status::kNetwork, "HOST:PORT",
       "Where clients are accepted, host:port or unix:/path", "127.0.0.1:7071",
       setter::address(o.listen, base::AddressUse::kListen, base::kGpunodePort)},
      {"driver", kGpus, "FILE|sim",
       "The driver's libcuda.so.1 by its path, or sim for the simulated GPU",
       "as the loader finds it",
       setter::path(o.driver, "the absolute path of a libcuda.so.1, or sim", "sim")},
      {"device", kGpus, "NUMBER,...",
       "The GPUs that sessions see, such as 0,2, counted as nvidia-smi does", "all",
       devices(o.devices)},
      {"vram", kMemory, "SIZE",
       "The most VRAM that a session may use of each device, in bytes or per cent",
       "what is free; a fair share where there are several", setter::budget(o.vram)},
      {"memory", kMemory, "SIZE",
       "The most RAM that a session's pages may use, and as much again its pinned memory",
       "what all have together; a fair share where there are several", setter::budget(o.memory)},
      {"total_memory", kMemory, "SIZE",
       "RAM that all sessions' pages and pinned memory are to have together",
       "80 % of what is available when it starts", setter::budget(o.total_memory)},
      {"cache", kModules, "FOLDER", "The folder for modules that clients have sent, or none",
       "$CACHE_DIRECTORY, else olpager in $XDG_CACHE_HOME, ~/.cache or /var/cache",
       setter::path(o.cache, "the absolute path of a folder, or none", "none")},
      {"cache_size", kModules, "SIZE", "The most that the modules of one key may take there",
       "4GiB", setter::size(o.cache_bytes)},
      {"confine", kSessions, "on|off",
       "Whether workers may start no programs and open no connections: on or off", "on",
       setter::onOff(o.confine)},
      {"straight", status::kNetwork, "on|off",
       "Whether copies to and from a program's other gpunodes go straight there: on or off", "on",
       setter::onOff(o.straight)},
      {"sessions", kSessions, "NUMBER", "The most at a time", "64",
       setter::number(o.sessions, 1, kMostSessions)},
      {"key_sessions", kSessions, "NUMBER", "The most at a time of one key", "no limit of its own",
       setter::number(o.key_sessions, 1, kMostSessions)},
      {"grace", kSessions, "SECONDS",
       "Seconds for which a program that has lost its connection tries to connect again", "10",
       setter::time(o.grace_ms, 2000, 3'600'000)},
  };
  status::addRows(rows, o, kCredential, base::kMetricsPort + 1);
  rows.push_back({"worker_log", status::kWatching, "LEVEL",
                  "The same as --log for the workers of sessions", "warn; from debug on as --log",
                  setter::parsed(o.worker_log, base::parseLogLevel, base::kLogLevels)});
  return base::OptionTable(std::move(rows));
}

}  // namespace olpager::gpunode
