// Memory windows: parts of memory that a card knows already, lent (lendMemory) to one link's peer
// and nobody else. A window is of type 2B: one queue pair can use it, so that a link has one for
// each class. Opening one is a work request of that queue pair; it is open when that is done.
//
// Windows end before the queue pairs that they are bound to.
//
// Thread-safety: any thread. Lock: Windows::mutex_, a leaf.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "coherence/transport/core/region_entry.h"
#include "coherence/transport/core/scheduler.h"
#include "coherence/transport/verbs/card.h"

namespace olpager::transport::verbs {

class Windows;

/// The windows through which one region is lent.
class Window final : public Registration {
 public:
  Window(std::shared_ptr<Windows> all, ibv_mr* of, const RegionEntry& entry)
      : all_(std::move(all)), of_(of), entry_(entry) {}
  ~Window() override;
  bool end() override;
  /// True once: the first caller opens it.
  bool begin() { return !begun_.exchange(true); }
  uint32_t rkey(Class klass) const { return rkeys_[index(klass)]; }
  /// The work request that opens it in the class's queue pair.
  ibv_send_wr opening(Class klass) const;

 private:
  friend class Windows;
  const std::shared_ptr<Windows> all_;
  ibv_mr* const of_;
  const RegionEntry& entry_;  // whose registration this is
  std::atomic<bool> begun_{false};
  std::array<ibv_mw*, kClasses> made_{};
  std::array<uint32_t, kClasses> rkeys_{};
};

/// Those of one link.
class Windows final : public ProtectionDomain, public std::enable_shared_from_this<Windows> {
 public:
  explicit Windows(std::shared_ptr<CardDomain> card) : card_(std::move(card)) {}
  Result<std::unique_ptr<Registration>> make(const RegionEntry& entry) override;
  std::string whyNoDmaBufs() const override { return card_->whyNoDmaBufs(); }
  /// True if the region is lent by windows. The kernel opens none in memory that has a dma-buf
  /// instead of an address: a part of that is registered for itself.
  static bool lend(const RegionEntry& entry) {
    return entry.whole != nullptr && entry.base != nullptr;
  }
  /// As CardDomain::known(); a new one has to be opened. Null: the card has none left, or can't
  /// have the memory.
  static Window* known(RegionEntry& entry, const std::shared_ptr<Windows>& all) {
    return static_cast<Window*>(entry.registered(all));
  }
  /// All of them, before the link's queue pairs end; none is made any more.
  void end();

 private:
  friend class Window;
  bool endOne(Window& window);  // under mutex_
  const std::shared_ptr<CardDomain> card_;
  std::mutex mutex_;
  std::unordered_set<Window*> open_;
  bool ended_ = false;
};

}  // namespace olpager::transport::verbs
