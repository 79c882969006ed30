#include "coherence/cpu/touches.h"

#include <algorithm>

namespace olpager::cpu {

using directory::ExtentId;
using directory::kNone;

const Touches::Thread* Touches::find(pid_t thread) const {
  for (const Thread& known : threads_) {
    if (known.id == thread) return &known;
  }
  return nullptr;
}

/// A new one takes the place of the one that has faulted least recently.
Touches::Thread& Touches::of(pid_t thread) {
  const auto known = std::find_if(threads_.begin(), threads_.end(),
                                  [&](const Thread& other) { return other.id == thread; });
  if (known != threads_.end()) return *known;
  if (threads_.size() < kThreads) {
    threads_.push_back({.id = thread});
    return threads_.back();
  }
  Thread& oldest =
      *std::min_element(threads_.begin(), threads_.end(),
                        [](const Thread& a, const Thread& b) { return a.used < b.used; });
  oldest = {.id = thread};
  return oldest;
}

Touches::Run Touches::fault(pid_t thread, ExtentId extent, ExtentId end) {
  Thread& t = of(thread);
  t.used = ++clock_;
  const auto at = std::find(t.recent.begin(), t.recent.begin() + t.count, extent);
  if (at != t.recent.begin() + t.count) {
    std::rotate(at, at + 1, t.recent.begin() + t.count);
  } else {
    if (t.count == kRemembered) {
      std::rotate(t.recent.begin(), t.recent.begin() + 1, t.recent.end());
      --t.count;
    }
    t.recent[t.count++] = extent;
  }

  if (extent == t.last) return {};
  const bool next = t.last != kNone && extent > t.last && extent <= std::max(t.last + 1, t.asked);
  t.last = extent;
  if (!next) {
    t.window = 0;
    t.asked = extent + 1;
    t.mark = kNone;
    return {};
  }
  // Within the run, on its way to the mark.
  if (t.mark != kNone && extent < t.mark) return {};
  const ExtentId first = std::max(extent + 1, t.asked);
  if (first >= end) return {};
  t.window = t.window == 0 ? 2 : std::min(2 * t.window, kMostAhead);
  const uint32_t count = std::min<uint32_t>(t.window, end - first);
  t.asked = first + count;
  t.mark = first;
  return {first, count};
}

size_t Touches::since(pid_t thread, ExtentId extent, Pages& pages) const {
  const Thread* const t = find(thread);
  if (t == nullptr) return 0;
  const auto end = t->recent.begin() + t->count;
  const auto at = std::find(t->recent.begin(), end, extent);
  if (at == end) return 0;
  return static_cast<size_t>(std::copy(at + 1, end, pages.begin()) - pages.begin());
}

void Touches::forget(ExtentId first, uint32_t count) {
  const auto gone = [&](ExtentId extent) { return extent - first < count; };
  for (Thread& t : threads_) {
    const auto end = t.recent.begin() + t.count;
    t.count = static_cast<size_t>(std::remove_if(t.recent.begin(), end, gone) - t.recent.begin());
    if (t.last != kNone && gone(t.last)) {
      t.last = t.mark = kNone;
      t.window = 0;
    }
  }
}

}  // namespace olpager::cpu
