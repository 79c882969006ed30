// A daemon's figures as text for Prometheus (exposition format 0.0.4), over HTTP on loopback. Names: docs/memserver.md.
// Thread-safety: the endpoint has a thread of its own, which calls `text`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "memserver/server/service.h"

namespace olpager::memserver {

/// A figure by the name under which it is served, without "olmemserver_".
struct Metric {
  const char* name;
  const char* type;  // "gauge", "counter"
  const char* help;
  uint64_t value = 0;
  const char* labels = "";  // `{transport="tcp"}`; those of one name follow each other
  std::string fullName() const { return std::string(name) + labels; }
};
std::vector<Metric> metricsOf(const ServiceFigures& service, const SlabStore::Figures& store);
std::string metricsText(const std::vector<Metric>& metrics, uint64_t configured);

class MetricsEndpoint {
 public:
  virtual ~MetricsEndpoint() = default;
  virtual const std::string& address() const = 0;
};
/// Refuses an address beyond loopback: the figures go out in the clear, to anybody who asks.
Result<std::unique_ptr<MetricsEndpoint>> serveMetrics(const std::string& address, std::function<std::string()> text);

}  // namespace olpager::memserver
