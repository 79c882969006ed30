#include "interpose/local/lost_memory.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <type_traits>

#include "interpose/local/green_contexts.h"
#include "interpose/local/locks.h"

namespace olpager::local {

std::atomic<bool> g_any_lost{false};

namespace {

struct LostContexts {
  base::RankedMutex mutex{kLostContextsMutex};
  struct Lost {
    CUcontext context = nullptr;
    CUresult error = CUDA_SUCCESS;
  };
  std::array<Lost, 64> all{};  // more than any program has
  // And then every context counts as ended, for good: that makes no result wrong.
  CUresult more = CUDA_SUCCESS;

  Lost* find(CUcontext context) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Lost& one) { return one.context == context; });
    return found != all.end() ? &*found : nullptr;
  }
};

// Without an allocation, and never destroyed: a context ends where there is no memory, too.
constinit LostContexts g_lost;
static_assert(std::is_trivially_destructible_v<LostContexts>);

LostContexts& lostContexts() { return g_lost; }

}  // namespace

void contextEnds(CUcontext context, CUresult error) noexcept {
  const CUcontext owner = memoryOwner(context);
  LostContexts& lost = lostContexts();
  const std::lock_guard lock(lost.mutex);
  if (lost.find(owner) == nullptr) {
    if (LostContexts::Lost* const free = lost.find(nullptr); free != nullptr)
      *free = {owner, error};
    else if (lost.more == CUDA_SUCCESS)
      lost.more = error;
  }
  g_any_lost.store(true, std::memory_order_release);
}

void lostContextGone(CUcontext context) noexcept {
  if (!anyLost() || context == nullptr) return;
  LostContexts& lost = lostContexts();
  const std::lock_guard lock(lost.mutex);
  if (LostContexts::Lost* const found = lost.find(context); found != nullptr) *found = {};
  const bool none =
      std::all_of(lost.all.begin(), lost.all.end(),
                  [](const LostContexts::Lost& one) { return one.context == nullptr; });
  g_any_lost.store(lost.more != CUDA_SUCCESS || !none, std::memory_order_release);
}

CUresult errorOfLost(CUcontext context) noexcept {
  if (context == nullptr) return CUDA_SUCCESS;
  const CUcontext owner = memoryOwner(context);
  LostContexts& lost = lostContexts();
  const std::lock_guard lock(lost.mutex);
  const LostContexts::Lost* const found = lost.find(owner);
  return found != nullptr ? found->error : lost.more;
}

CUresult lostAnywhere() noexcept {
  if (!anyLost()) return CUDA_SUCCESS;
  LostContexts& lost = lostContexts();
  const std::lock_guard lock(lost.mutex);
  for (const LostContexts::Lost& one : lost.all)
    if (one.context != nullptr) return one.error;
  return lost.more;
}

}  // namespace olpager::local
