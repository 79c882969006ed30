#include "pager/counters/counters.h"

namespace olpager::pager {

double waitPercentile(const WaitHistogram& histogram, double quantile) noexcept {
  uint64_t total = 0;
  for (const auto& bucket : histogram.buckets) total += valueOf(bucket);
  if (total == 0) return 0;
  const double wanted = quantile * static_cast<double>(total);
  double below = 0;
  for (unsigned i = 0; i < kWaitBuckets; i++) {
    const auto here = static_cast<double>(valueOf(histogram.buckets[i]));
    if (here != 0 && below + here >= wanted) {
      const double low = i == 0 ? 0 : static_cast<double>(1ull << i);
      const double high = static_cast<double>(1ull << (i + 1));
      const double share = wanted > below ? (wanted - below) / here : 0;
      return low + (high - low) * share;
    }
    below += here;
  }
  return static_cast<double>(1ull << kWaitBuckets);
}

}  // namespace olpager::pager
