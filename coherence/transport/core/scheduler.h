// Schedules the bytes of a link. Two places decide: the one that asks (IssueScheduler: reads and
// writes of this side, slice by slice, within windows) and the one that sends (EgressQueue: what is
// ready to go onto the lanes). Both prefer control and demand; a slice that has begun is finished,
// so that a demand finds at most the slices already under way before it.
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

/// How much of a background class may be under way so that little of it waits somewhere on the
/// path: its slices' time from being asked for to being answered, against the shortest lately seen,
/// tells how much waits. Little: what goes through in 0.5 to 1 ms (in less, what the system is late
/// by now and then would pass for waiting), but no more than one to two slices, no less than a
/// quarter.
class BackgroundWindow {
 public:
  BackgroundWindow(uint64_t least, uint64_t most, uint64_t slice)
      : least_(std::min(least, most)), most_(most), slice_(slice), window_(least_) {}

  uint64_t bytes() const { return window_; }

  /// A slice of `bytes` was answered `took_us` after it was asked for.
  void answered(uint64_t bytes, uint32_t took_us, int64_t now_us) {
    took_us = std::max(1u, took_us);
    if (now_us - since_us_ > kForgetUs) {
      before_us_ = shortest_us_;
      shortest_us_ = took_us;
      since_us_ = now_us;
      window_ = least_;  // what always waits would else pass for the path's own time
    }
    shortest_us_ = std::min(shortest_us_, took_us);
    const uint32_t base = std::min(shortest_us_, before_us_);
    const uint64_t waiting = window_ - window_ * base / took_us;
    const uint64_t little = std::clamp<uint64_t>(window_ * kLittleUs / took_us, slice_ / 4, slice_);
    // By about one slice in the time of a whole window.
    const uint64_t step = std::max<uint64_t>(1, slice_ * bytes / window_);
    if (waiting < little) {
      window_ = std::min(most_, window_ + step);
    } else if (waiting > 2 * little) {
      window_ = std::max(least_, window_ - std::min(window_, step));
    }
  }

 private:
  static constexpr int64_t kForgetUs = 5'000'000;
  static constexpr uint64_t kLittleUs = 500;
  const uint64_t least_, most_, slice_;
  uint64_t window_;
  uint32_t shortest_us_ = UINT32_MAX, before_us_ = UINT32_MAX;
  int64_t since_us_ = 0;
};

class IssueScheduler {
 public:
  struct Windows {
    uint64_t demand = 0;
    uint64_t prefetch = 0;    // at most
    uint64_t write_back = 0;  // at most
    uint64_t least = 0;       // of either
    uint64_t slice = 0;       // what of them may be in a demand's way
    uint32_t slices = 0;      // the peer's bound on all of them together
  };
  explicit IssueScheduler(Windows windows)
      : windows_(windows),
        prefetch_(windows.least, windows.prefetch, windows.slice),
        write_back_(windows.least, windows.write_back, windows.slice) {}

  void enqueue(uint32_t slot, Class klass) { queues_[index(klass)].push_back(slot); }

  /// The operation whose next slice may be asked for now. The operation stays first in its class
  /// until exhausted().
  std::optional<uint32_t> pick() const {
    if (slices_ >= windows_.slices) return std::nullopt;
    for (const Class klass :
         {Class::kControl, Class::kDemand, Class::kPrefetch, Class::kWriteBack}) {
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

  /// How long a background slice took.
  void measured(Class klass, uint64_t bytes, uint32_t took_us, int64_t now_us) {
    if (klass == Class::kPrefetch) prefetch_.answered(bytes, took_us, now_us);
    if (klass == Class::kWriteBack) write_back_.answered(bytes, took_us, now_us);
  }
  uint64_t window(Class klass) const {
    return klass == Class::kPrefetch ? prefetch_.bytes() : write_back_.bytes();
  }

  /// `slot`, of which `outstanding` bytes are under way, goes on in another class; `queued`: it has
  /// slices left.
  void move(uint32_t slot, Class from, Class to, uint64_t outstanding, bool queued) {
    outstanding_[index(from)] -= outstanding;
    outstanding_[index(to)] += outstanding;
    if (!queued) return;
    auto& queue = queues_[index(from)];
    queue.erase(std::find(queue.begin(), queue.end(), slot));
    enqueue(slot, to);
  }

  /// Slices of `slot` that were not asked for are no longer needed.
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
        return !demandWaits() && now < prefetch_.bytes();
      case Class::kWriteBack:
        return now == 0 ||
               (!demandWaits() && now < write_back_.bytes());  // one slice at a time is its floor
    }
    return false;
  }

  const Windows windows_;
  BackgroundWindow prefetch_, write_back_;
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
