#include "interpose/local/lost_memory.h"

#include <array>

namespace olpager::local {

std::atomic<bool> g_any_lost{false};

namespace {

// More than any program has. Beyond them every context counts as lost: that ends programs, never makes a result wrong.
std::array<std::atomic<CUcontext>, 64> g_lost;
std::atomic<bool> g_all_lost{false};

}  // namespace

void memoryLostIn(CUcontext context) noexcept {
  if (isAmongLost(context)) return;
  bool noted = false;
  for (auto& place : g_lost) {
    CUcontext expected = nullptr;
    noted = place.compare_exchange_strong(expected, context) || expected == context;
    if (noted) break;
  }
  if (!noted) g_all_lost.store(true);
  g_any_lost.store(true, std::memory_order_release);
}

void lostContextGone(CUcontext context) noexcept {
  for (auto& place : g_lost) {
    CUcontext expected = context;
    place.compare_exchange_strong(expected, nullptr);
  }
}

bool isAmongLost(CUcontext context) noexcept {
  if (context == nullptr) return false;
  if (g_all_lost.load()) return true;
  for (const auto& place : g_lost)
    if (place.load() == context) return true;
  return false;
}

}  // namespace olpager::local
