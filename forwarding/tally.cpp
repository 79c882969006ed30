#include "forwarding/tally.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "forwarding/wire/wire.h"

namespace olpager::forward {
namespace {

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
    case Operation::kSynchronizeDefault:
      return "a wait for a stream";
    default:
      return "operation " + std::to_string(function - kFirstOperation);
  }
}

void Tally::note(uint16_t function, std::chrono::nanoseconds took) {
  const size_t at =
      function < api::kSymbolCount ? function : api::kSymbolCount + (function - kFirstOperation);
  if (at >= all_.size()) return;
  all_[at].count.fetch_add(1, std::memory_order_relaxed);
  all_[at].nanoseconds.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
}

void Tally::tell(const char* what, const char* in_all) const {
  constexpr size_t kTold = 12;
  struct Row {
    size_t function;
    uint64_t count, nanoseconds;
  };
  std::vector<Row> rows;
  uint64_t count = 0, nanoseconds = 0;
  for (size_t i = 0; i < all_.size(); ++i) {
    const uint64_t n = all_[i].count.load(), ns = all_[i].nanoseconds.load();
    if (n != 0)
      rows.push_back({i < api::kSymbolCount ? i : i - api::kSymbolCount + kFirstOperation, n, ns});
    count += n;
    nanoseconds += ns;
  }
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.nanoseconds > b.nanoseconds; });
  base::logDebug("%llu %s, %.3f s %s", static_cast<unsigned long long>(count), what,
                 static_cast<double>(nanoseconds) / 1e9, in_all);
  for (size_t i = 0; i < std::min(kTold, rows.size()); ++i) {
    base::logDebug("  %-36s %8llu  %.3f s", functionName(rows[i].function).c_str(),
                   static_cast<unsigned long long>(rows[i].count),
                   static_cast<double>(rows[i].nanoseconds) / 1e9);
  }
}

}  // namespace olpager::forward
