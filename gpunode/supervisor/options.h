// Options of olgpunode: built-in defaults, a TOML file, options of the command line, in rising
// order.
//
// Thread-safety: plain data, set before there is a second thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "coherence/status/daemon_options.h"

namespace olpager::gpunode {

struct SupervisorOptions : status::DaemonOptions {
  std::string listen = "127.0.0.1:7071";
  std::string driver;             // as the setting: "" finds the driver, "sim", or a path
  std::vector<uint32_t> devices;  // that sessions see, in this order; empty: all
  base::Budget vram, memory;      // of each session, as the settings vram and host
  base::Budget total_memory;      // of all sessions together, as the setting host
  std::string cache;  // folder of modules that clients have sent; "": the usual place, "none": none
  uint64_t cache_bytes = 4ull << 30;  // of each key's
  bool straight = true;               // links of workers to those of a program's other gpunodes
  bool confine = true;                // workers (gpunode/worker/confine.h)
  uint32_t sessions = 64;
  uint32_t key_sessions = 0;                 // of one key; 0: as many as of all
  uint32_t grace_ms = 10'000;                // for which a client tries to connect again
  std::optional<base::LogLevel> worker_log;  // none: from debug on as `log`, else what is grave
};

/// All that sets `options`.
base::OptionTable optionsOf(SupervisorOptions& options);

inline constexpr const char* kSystemFile = "/etc/olpager/olgpunode.toml";
/// The keys of a daemon that is given none, in systemd's folder of credentials.
inline constexpr const char* kCredential = "olgpunode.key";

}  // namespace olpager::gpunode
