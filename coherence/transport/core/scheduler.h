// Which bytes of a link go next. Two places decide: the one that asks (IssueScheduler: reads and writes of this side, slice by
// slice, within windows) and the one that sends (EgressQueue: what is ready to go onto the lanes). Both prefer control and
// demand; what has begun is finished, so that a demand finds at most what is already under way before it.
//
// Thread-safety: none; the owner's lock. No clock, no I/O.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "coherence/transport/transport.h"

namespace olpager::transport {

constexpr size_t index(Class klass) { return static_cast<size_t>(klass); }
constexpr size_t index(MessageClass klass) { return static_cast<size_t>(klass); }

class IssueScheduler {
 public:
  struct Windows {
    uint64_t demand = 0;
    uint64_t prefetch = 0;
    uint64_t write_back = 0;
    uint32_t slices = 0;  // the peer's bound on all of them together
  };
  explicit IssueScheduler(Windows windows) : windows_(windows) {}

  void enqueue(uint32_t slot, Class klass) { queues_[index(klass)].push_back(slot); }

  /// The operation whose next slice may be asked for now. It stays first in its class until exhausted().
  std::optional<uint32_t> pick() const {
    if (slices_ >= windows_.slices) return std::nullopt;
    for (const Class klass : {Class::kControl, Class::kDemand, Class::kPrefetch, Class::kWriteBack}) {
      if (!queues_[index(klass)].empty() && open(klass)) return queues_[index(klass)].front();
    }
    return std::nullopt;
  }
  void exhausted(Class klass) { queues_[index(klass)].pop_front(); }

  void issued(Class klass, uint64_t bytes) {
    outstanding_[index(klass)] += bytes;
    ++slices_;
  }
  void answered(Class klass, uint64_t bytes) {
    outstanding_[index(klass)] -= bytes;
    --slices_;
  }

  /// `slot`, of which `outstanding` bytes are under way, goes on in another class; `queued`: it has slices left.
  void move(uint32_t slot, Class from, Class to, uint64_t outstanding, bool queued) {
    outstanding_[index(from)] -= outstanding;
    outstanding_[index(to)] += outstanding;
    if (!queued) return;
    auto& queue = queues_[index(from)];
    queue.erase(std::find(queue.begin(), queue.end(), slot));
    enqueue(slot, to);
  }

  /// What of `slot` was not asked for is not needed any more.
  void drop(uint32_t slot, Class klass) {
    auto& queue = queues_[index(klass)];
    queue.erase(std::find(queue.begin(), queue.end(), slot));
  }

  uint64_t outstanding(Class klass) const { return outstanding_[index(klass)]; }
  bool demandWaits() const {
    return outstanding_[index(Class::kDemand)] != 0 || !queues_[index(Class::kDemand)].empty();
  }

 private:
  bool open(Class klass) const {
    const uint64_t now = outstanding_[index(klass)];
    switch (klass) {
      case Class::kControl:
      case Class::kDemand:
        return now < windows_.demand;
      case Class::kPrefetch:
        return !demandWaits() && now < windows_.prefetch;
      case Class::kWriteBack:
        return now == 0 || (!demandWaits() && now < windows_.write_back);  // one slice at a time is its floor
    }
    return false;
  }

  const Windows windows_;
  std::array<std::deque<uint32_t>, kClasses> queues_;
  std::array<uint64_t, kClasses> outstanding_{};
  uint64_t slices_ = 0;
};

/// Items wait by class. Write-back gets one turn in kFloor while others wait as well.
template <typename Item>
class EgressQueue {
 public:
  void push(Class klass, Item item) {
    queues_[index(klass)].push_back(std::move(item));
    ++size_;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  Item pop() {
    const auto waiting = [&](Class klass) { return !queues_[index(klass)].empty(); };
    Class klass = Class::kControl;
    if (!waiting(klass)) {
      klass = waiting(Class::kDemand)     ? Class::kDemand
              : waiting(Class::kPrefetch) ? Class::kPrefetch
                                          : Class::kWriteBack;
      if (klass != Class::kWriteBack && waiting(Class::kWriteBack)) {
        const uint32_t floor = klass == Class::kDemand ? kDemandFloor : kPrefetchFloor;
        if (++passed_over_ >= floor) klass = Class::kWriteBack;
      }
      if (klass == Class::kWriteBack) passed_over_ = 0;
    }
    Item item = std::move(queues_[index(klass)].front());
    queues_[index(klass)].pop_front();
    --size_;
    return item;
  }

 private:
  static constexpr uint32_t kDemandFloor = 32;
  static constexpr uint32_t kPrefetchFloor = 4;
  std::array<std::deque<Item>, kClasses> queues_;
  size_t size_ = 0;
  uint32_t passed_over_ = 0;
};

}  // namespace olpager::transport
