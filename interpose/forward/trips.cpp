#include "interpose/forward/trips.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "base/log.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/forward/wire.h"

namespace olpager::forward {
namespace {

constexpr size_t kOperations = 64;

struct Trips {
  std::atomic<uint64_t> count{0}, nanoseconds{0};
};
std::array<Trips, api::kSymbolCount + kOperations> g_trips;

std::atomic<uint64_t> g_launches{0}, g_exchanges{0};

constexpr size_t kFirstOperation = static_cast<size_t>(Operation::kDescribe);

}  // namespace

std::string functionName(size_t function) {
  if (function < api::kSymbolCount) return api::symbolName(static_cast<api::Symbol>(function));
  switch (static_cast<Operation>(function)) {
    case Operation::kCopyIn:
      return "a copy to the GPU";
    case Operation::kCopyOut:
      return "a copy from the GPU";
    case Operation::kCopyDevice:
      return "a copy on the GPU";
    case Operation::kParameters:
      return "a question for a kernel's parameters";
    case Operation::kLaunch:
      return "a launch";
    default:
      return "operation " + std::to_string(function - kFirstOperation);
  }
}

void noteTrip(uint16_t function, std::chrono::nanoseconds took) {
  const size_t at = function < api::kSymbolCount ? function : api::kSymbolCount + (function - kFirstOperation);
  if (at >= g_trips.size()) return;
  g_trips[at].count.fetch_add(1, std::memory_order_relaxed);
  g_trips[at].nanoseconds.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
}

void noteLaunch(bool exchanges) {
  g_launches.fetch_add(1, std::memory_order_relaxed);
  if (exchanges) g_exchanges.fetch_add(1, std::memory_order_relaxed);
}

void tellTrips() {
  constexpr size_t kTold = 12;
  struct Row {
    size_t function;
    uint64_t count, nanoseconds;
  };
  std::vector<Row> rows;
  uint64_t count = 0, nanoseconds = 0;
  for (size_t i = 0; i < g_trips.size(); ++i) {
    const uint64_t n = g_trips[i].count.load(), ns = g_trips[i].nanoseconds.load();
    if (n != 0) rows.push_back({i < api::kSymbolCount ? i : i - api::kSymbolCount + kFirstOperation, n, ns});
    count += n;
    nanoseconds += ns;
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.nanoseconds > b.nanoseconds; });
  base::logDebug("%llu round trips, %.3f s waited", static_cast<unsigned long long>(count),
                 static_cast<double>(nanoseconds) / 1e9);
  base::logDebug("%llu launches, %llu with an exchange of pinned memory",
                 static_cast<unsigned long long>(g_launches.load()),
                 static_cast<unsigned long long>(g_exchanges.load()));
  for (size_t i = 0; i < std::min(kTold, rows.size()); ++i) {
    base::logDebug("  %-36s %8llu  %.3f s", functionName(rows[i].function).c_str(),
                   static_cast<unsigned long long>(rows[i].count), static_cast<double>(rows[i].nanoseconds) / 1e9);
  }
}

}  // namespace olpager::forward
