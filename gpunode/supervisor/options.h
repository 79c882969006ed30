// What olgpunode may be told, on its command line. Errors: one line with the option, the value and
// what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/daemon_log.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "coherence/status/metrics.h"
#include "coherence/transport/options.h"

namespace olpager::gpunode {

struct SupervisorOptions {
  std::string listen = "127.0.0.1:7071";
  std::string driver;             // as the setting: "" finds the driver, "sim", or a path
  std::vector<uint32_t> devices;  // that sessions see, in this order; empty: all
  base::Budget vram, memory;      // of each session, as the settings vram and host
  base::Budget total_memory;      // of all sessions together, as the setting host
  std::string key;
  std::string cache;  // folder of modules that clients have sent; "": the usual place, "none": none
  uint64_t cache_bytes = 4ull << 30;  // of each key's
  transport::Tls tls = transport::Tls::kAll;
  transport::Choice choice = transport::Choice::kAuto;
  std::vector<std::string> rails;  // transport::Options::rails
  bool straight = true;            // links of workers to those of a program's other gpunodes
  bool confine = true;             // workers (gpunode/worker/confine.h)
  uint32_t sessions = 64;
  uint32_t key_sessions = 0;   // of one key; 0: as many as of all
  uint32_t grace_ms = 10'000;  // for which a client tries to connect again
  status::MetricsOptions prometheus;
  base::LogLevel log = base::LogLevel::kInfo;
  base::LogFormat log_format = base::LogFormat::kText;
  std::optional<base::LogLevel> worker_log;  // none: from debug on as `log`, else what is grave
};

struct SupervisorKey {
  const char* key;
  const char* group;  // for --help: among which it stands
  const char* type;   // what its value is
  const char* text;   // what it is
  const char* default_;
  Status (*set)(SupervisorOptions&, std::string_view);
};
const std::vector<SupervisorKey>& supervisorKeys();
/// Keys as the options, with _ for -. A file that is not there is an Error only when it `must` be.
Status applyFile(SupervisorOptions& options, const std::string& path, bool must);
inline constexpr const char* kSystemFile = "/etc/olpager/olgpunode.toml";
/// The keys of a daemon that is given none, in systemd's folder of credentials.
inline constexpr const char* kCredential = "olgpunode.key";
Status applyOption(SupervisorOptions& options, std::string_view key, std::string_view text);

}  // namespace olpager::gpunode
