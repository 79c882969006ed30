// What olmemserver may be told: built-in defaults, a TOML file, options of the command line, in
// rising order. One list of keys for both: the key `lease_time` is the option --lease-time.
//
// Errors: one line that names the option, or the file and key, the value, and what is allowed.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/daemon_log.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "coherence/status/metrics.h"
#include "coherence/transport/options.h"

namespace olpager::memserver {

inline constexpr std::string_view kSystemFile = "/etc/olpager/olmemserver.toml";
/// The keys of a daemon that is given none, in systemd's folder of credentials.
inline constexpr std::string_view kCredential = "olmemserver.key";

struct DaemonOptions {
  std::vector<std::string> listen = {"127.0.0.1:7070"};
  base::Budget memory;  // not given: `auto`, what is available less the reserve
  base::Budget
      reserve;  // of what is available; not given: 5 % of the machine's memory, at least 1 GiB
  uint64_t slab = 0;  // 0: by the memory
  std::string key;    // a file; "": kCredential, where there is one
  transport::Tls tls = transport::Tls::kAll;
  transport::Choice choice = transport::Choice::kAuto;
  std::vector<std::string> rails;  // transport::Options::rails
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
  status::MetricsOptions prometheus;
  std::string proc = "/proc";
  std::string cgroup;  // "": the own one; "none"
  base::LogLevel log = base::LogLevel::kInfo;
  base::LogFormat log_format = base::LogFormat::kText;
};

struct DaemonKey {
  const char* key;
  const char* group;     // for --help: among which it stands
  const char* type;      // what its value is
  const char* text;      // what it is
  const char* default_;  // as shown
  Status (*set)(DaemonOptions&, std::string_view);
};
/// All keys but the tables (`quotas`).
const std::vector<DaemonKey>& daemonKeys();

/// Sets from a file. `must`: it has to be there.
Status applyFile(DaemonOptions& options, const std::string& path, bool must);
/// Sets one key from text. The Error does not name where it came from.
Status applyKey(DaemonOptions& options, std::string_view key, std::string_view text);
/// NAME=SIZE
Status applyKeyQuota(DaemonOptions& options, std::string_view text);

}  // namespace olpager::memserver
