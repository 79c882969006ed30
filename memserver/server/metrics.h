// The memserver's figures by their names. docs/reference/metrics.md lists them. Thread-safety: a
// pure function.
#pragma once

#include <vector>

#include "coherence/status/metrics.h"
#include "memserver/server/service.h"

namespace olpager::memserver {

std::vector<status::Metric> metricsOf(const ServiceFigures& service,
                                      const SlabStore::Figures& store);

}  // namespace olpager::memserver
