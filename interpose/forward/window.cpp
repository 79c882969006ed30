#include "interpose/forward/window.h"

#include <algorithm>
#include <iterator>

namespace olpager::forward {
namespace {

constexpr uint64_t kAlign = 2ull << 20;  // of places; a guard is as long

}  // namespace

uint64_t Window::take(uint64_t wanted) {
  const uint64_t bytes = (wanted + kAlign - 1) / kAlign * kAlign + kAlign;
  std::lock_guard lock(mutex_);
  for (const uint64_t start : {next_, kWindow}) {
    uint64_t at = start;
    auto after = taken_.upper_bound(at);
    if (after != taken_.begin()) at = std::max(at, std::prev(after)->second);
    while (after != taken_.end() && after->first - at < bytes) at = (after++)->second;
    if (at + bytes > kWindow + kWindowBytes) continue;
    taken_[at] = at + bytes;
    next_ = at + bytes;
    return at;
  }
  return 0;
}

void Window::give(uint64_t address) {
  std::lock_guard lock(mutex_);
  taken_.erase(address);
}

}  // namespace olpager::forward
