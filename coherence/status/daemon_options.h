// Options that olmemserver and olgpunode share: links, figures, log.
//
// Thread-safety: plain data, set before there is a second thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/daemon_log.h"
#include "base/options.h"
#include "coherence/status/metrics.h"
#include "coherence/transport/options.h"

namespace olpager::status {

struct DaemonOptions {
  std::string key;  // a file; "": none is given
  transport::Tls tls = transport::Tls::kAll;
  transport::Choice choice = transport::Choice::kAuto;
  std::vector<std::string> rails;  // transport::Options::rails
  MetricsOptions prometheus;
  base::LogLevel log = base::LogLevel::kInfo;
  base::LogFormat log_format = base::LogFormat::kText;
};

// Groups of --help that rows of a daemon's own are in too.
inline constexpr const char *kNetwork = "Network", *kWatching = "Watching";

/// Appends to `rows` those that set `options`. `credential`: the name of the daemon's keys in
/// systemd's folder; `port`: where its figures usually are.
void addRows(std::vector<base::Option>& rows, DaemonOptions& options, std::string_view credential,
             uint16_t port);

}  // namespace olpager::status
