// A daemon's figures as text for Prometheus (exposition format 0.0.4), over HTTP or HTTPS: on
// loopback to anybody, beyond it to clients with the token. Names: docs/reference/metrics.md.
// Thread-safety: pure functions; the endpoint has a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "coherence/status/status.h"

namespace olpager::status {

/// A figure by the name under which it is served, without the daemon's name before it.
struct Metric {
  const char* name;
  const char* type;  // "gauge", "counter"
  const char* help;
  uint64_t value = 0;
  std::string labels = {};  // `{transport="tcp"}`; those of one name follow each other
};
/// As olpagestat is told them.
std::vector<Figure> figuresOf(const std::vector<Metric>& metrics);
/// `daemon`: its name, put before each of theirs.
std::string metricsText(std::string_view daemon, const std::vector<Metric>& metrics);

/// The address of the figures, and their readers.
struct MetricsOptions {
  std::string address;                   // host:port or [v6]:port (port 0: any); "": nowhere
  std::string token;                     // a file (https.h), read again when it changes; "": none
  std::string certificate, private_key;  // files, both or none: HTTPS

  bool wanted() const { return !address.empty(); }
};

/// Serves until it is destroyed, which waits for nobody who asks.
class MetricsEndpoint {
 public:
  virtual ~MetricsEndpoint() = default;
  /// host:port, with the port that was chosen.
  virtual const std::string& address() const = 0;
  /// As one asks for it: http://host:port/metrics.
  virtual std::string url() const = 0;
  /// Others on the way can read the token and the figures: one line for the log; else "".
  virtual std::string warning() const = 0;
};
/// Serves /metrics. `text` is called on the endpoint's thread. Refuses an address beyond loopback
/// without a token. Each request has a second, from connection to last byte; where many come at a
/// time the oldest that is not over makes room.
Result<std::unique_ptr<MetricsEndpoint>> serveMetrics(const MetricsOptions& options,
                                                      std::function<std::string()> text);
/// The same, and says in the log where, and what goes in the clear.
Result<std::unique_ptr<MetricsEndpoint>> serveMetricsAloud(const MetricsOptions& options,
                                                           std::function<std::string()> text);

}  // namespace olpager::status
