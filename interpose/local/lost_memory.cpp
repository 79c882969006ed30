#include "interpose/local/lost_memory.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "interpose/local/green_contexts.h"

namespace olpager::local {

std::atomic<bool> g_any_lost{false};

namespace {

struct LostContexts {
  std::mutex mutex;
  std::array<CUcontext, 64> all{};  // more than any program has
  bool more = false;  // and then every context counts as lost, for good: that makes no result wrong
};

LostContexts& lostContexts() {
  static auto* instance = new LostContexts;
  return *instance;
}

}  // namespace

void memoryLostIn(CUcontext context) noexcept {
  const CUcontext owner = memoryOwner(context);
  LostContexts& lost = lostContexts();
  const std::lock_guard lock(lost.mutex);
  if (std::find(lost.all.begin(), lost.all.end(), owner) == lost.all.end()) {
    const auto free = std::find(lost.all.begin(), lost.all.end(), nullptr);
    if (free != lost.all.end())
      *free = owner;
    else
      lost.more = true;
  }
  g_any_lost.store(true, std::memory_order_release);
}

void lostContextGone(CUcontext context) noexcept {
  if (!anyLost()) return;
  LostContexts& lost = lostContexts();
  const std::lock_guard lock(lost.mutex);
  std::replace(lost.all.begin(), lost.all.end(), context, CUcontext{nullptr});
  const bool none =
      std::all_of(lost.all.begin(), lost.all.end(), [](CUcontext one) { return one == nullptr; });
  g_any_lost.store(lost.more || !none, std::memory_order_release);
}

bool isAmongLost(CUcontext context) noexcept {
  if (context == nullptr) return false;
  const CUcontext owner = memoryOwner(context);
  LostContexts& lost = lostContexts();
  const std::lock_guard lock(lost.mutex);
  return lost.more || std::find(lost.all.begin(), lost.all.end(), owner) != lost.all.end();
}

}  // namespace olpager::local
