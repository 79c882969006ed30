// Options of olmemserver: built-in defaults, a TOML file, options of the command line, in rising
// order.
//
// Thread-safety: plain data, set before there is a second thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "coherence/status/daemon_options.h"

namespace olpager::memserver {

inline constexpr std::string_view kSystemFile = "/etc/olpager/olmemserver.toml";
/// The keys of a daemon that is given none, in systemd's folder of credentials.
inline constexpr std::string_view kCredential = "olmemserver.key";

struct DaemonOptions : status::DaemonOptions {
  std::vector<std::string> listen = {"127.0.0.1:7070"};
  base::Budget memory;  // not given: `auto`, what is available less the reserve
  base::Budget
      reserve;  // of what is available; not given: 5 % of the machine's memory, at least 1 GiB
  uint64_t slab = 0;  // 0: by the memory
  uint32_t lease_ms = 30'000;
  uint64_t quota = 0;                      // of each session; 0: none
  std::map<std::string, uint64_t> quotas;  // of all sessions of a key
  uint32_t sessions = 1024;
  bool hard_recall = false;
  uint32_t recall_ms = 10'000;
  uint32_t calm_ms = 30'000;
  double pressure_some = 20, pressure_full = 5;  // per cent of the last 10 s
  uint32_t shutdown_ms = 60'000;
  int numa = -2;  // -1: none, -2: that of the network card
  bool huge = true;
  bool lock = true;
  std::string proc = "/proc";
  std::string cgroup;  // "": the own one; "none"
};

/// All that sets `options`.
base::OptionTable optionsOf(DaemonOptions& options);

}  // namespace olpager::memserver
