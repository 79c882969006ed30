// A daemon's figures as text for Prometheus (exposition format 0.0.4), over HTTP on loopback. Names: docs/memserver.md.
// Thread-safety: the endpoint has a thread of its own, which calls `text`.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "memserver/server/service.h"

namespace olpager::memserver {

std::string metricsText(const ServiceFigures& service, const SlabStore::Figures& store, uint64_t configured);

class MetricsEndpoint {
 public:
  virtual ~MetricsEndpoint() = default;
  virtual const std::string& address() const = 0;
};
/// Refuses an address beyond loopback: the figures go out in the clear, to anybody who asks.
Result<std::unique_ptr<MetricsEndpoint>> serveMetrics(const std::string& address, std::function<std::string()> text);

}  // namespace olpager::memserver
