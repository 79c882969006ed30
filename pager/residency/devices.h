// The devices of a pool: the engine of each, what the devices share, and what is known of them
// before their engines start.
//
// Locks: everything runs under PoolState::mutex, but for abandonEngines(), which a forked child
// calls.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "pager/residency/chunks.h"

namespace olpager::pager {

class Engine;

class Devices {
 public:
  /// nullptr: the device has none.
  Engine* engineOf(CUdevice device) const;
  /// The one that lives in the context; nullptr: none does.
  Engine* engineIn(CUcontext context) const;
  Engine* first() const { return engines.empty() ? nullptr : engines.front().get(); }
  /// An engine has started.
  void add(std::shared_ptr<Engine> engine);
  /// An engine goes. The caller that takes it stops it; one that stops the pool may still hold it.
  std::shared_ptr<Engine> take(const Engine* engine);
  /// In a forked child, which can't have the mutex.
  void abandonEngines() const noexcept;

  std::vector<std::shared_ptr<Engine>> engines;
  HostBudget host;  // of all devices together

  // --- before an engine is there -----------------------------------------------------------------
  std::vector<CUdevice> starting;                    // a thread is making their engines
  std::unordered_set<CUdevice> refused;              // they can't do what the options ask for
  std::map<CUdevice, uint64_t> vram_budgets;         // bytes, once they were asked for
  std::set<CUdevice> vram_set;                       // budgets that were set meanwhile
  std::vector<std::pair<CUdevice, CUdevice>> peers;  // (who has access, to whose memory)

 private:
  /// The engines, for a forked child. Those beyond the last place it does not need to know: a child
  /// ends no engine.
  std::array<std::atomic<Engine*>, 64> for_child_{};
  void showToChild(Engine* before, Engine* now);
};

}  // namespace olpager::pager
