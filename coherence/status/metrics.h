// A daemon's figures as text for Prometheus (exposition format 0.0.4), over HTTP on loopback.
// Names: docs/reference/metrics.md. Thread-safety: pure functions; the endpoint has a
// thread of its own.
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

/// Serves until it is destroyed, which waits for nobody who asks.
class MetricsEndpoint {
 public:
  virtual ~MetricsEndpoint() = default;
  /// host:port, with the port that was chosen.
  virtual const std::string& address() const = 0;
};
/// Serves /metrics at host:port or [v6]:port (port 0: any). `text` is called on the endpoint's
/// thread. Refuses an address beyond loopback: the figures go out in the clear, to anybody who
/// asks. Each request has a second, from connection to last byte; where many come at a time the
/// oldest that is not over makes room.
Result<std::unique_ptr<MetricsEndpoint>> serveMetrics(const std::string& address,
                                                      std::function<std::string()> text);

}  // namespace olpager::status
