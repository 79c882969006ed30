// Signal handlers of the program, and the locks that the server of a page fault needs. A handler
// may touch managed memory, or stop its thread until another one has touched some. So no handler
// runs on a thread that holds something which a fault needs:
//
//   HoldingMutex   signals are held back while it is held, and come once it is released
//   Condition      waits with a HoldingMutex released, and signals with it. A Condition has no lock
//                  of its own that a handler could interrupt
//   holdSignals()  for what is no lock, with releaseSignals() in pairs, or HeldSignals
//   ownThread()    a thread of ours runs no handler at all
//
// None of this makes a system call before signalsMatter(): before there is managed memory. After
// that a thread makes two for its outermost hold. Signals about the thread's own deeds (SIGSEGV and
// its like) are never held back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <mutex>  // std::unique_lock
#include <thread>
#include <utility>

#include "base/ranked_mutex.h"

namespace olpager::base {

/// From now on holdSignals() does something. There is no way back.
void signalsMatter() noexcept;
/// True: this thread's signals are held back until it calls releaseSignals(). Holds nest.
bool holdSignals() noexcept;
void releaseSignals() noexcept;

/// Held back while it lives.
class HeldSignals {
 public:
  HeldSignals() noexcept : holds_(holdSignals()) {}
  ~HeldSignals() {
    if (holds_) releaseSignals();
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  const bool holds_;
};

/// RankedMutex in all else.
class HoldingMutex {
 public:
  explicit HoldingMutex(const LockRank& rank = kUnranked) noexcept : mutex_(rank) {}

  void lock() {
    const bool holds = holdSignals();
    mutex_.lock();
    holds_ = holds;
  }
  bool try_lock() {
    const bool holds = holdSignals();
    if (mutex_.try_lock()) {
      holds_ = holds;
      return true;
    }
    if (holds) releaseSignals();
    return false;
  }
  void unlock() {
    const bool holds = holds_;
    mutex_.unlock();
    if (holds) releaseSignals();
  }

 private:
  RankedMutex mutex_;
  bool holds_ = false;  // of who has the mutex
};

/// std::condition_variable for a HoldingMutex. The thread that rings need not have the mutex.
class Condition {
 public:
  using Lock = std::unique_lock<HoldingMutex>;
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  void wait(Lock& lock) { sleep(lock, nullptr); }
  template <typename Until>
  void wait(Lock& lock, Until until) {
    while (!until()) wait(lock);
  }
  /// The wait may also end early, as after a ring.
  template <typename Rep, typename Period>
  std::cv_status wait_for(Lock& lock, std::chrono::duration<Rep, Period> most) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(most).count();
    if (left <= 0) return std::cv_status::timeout;
    const timespec time{static_cast<time_t>(left / 1'000'000'000), left % 1'000'000'000};
    return sleep(lock, &time) ? std::cv_status::no_timeout : std::cv_status::timeout;
  }
  template <typename Rep, typename Period, typename Until>
  bool wait_for(Lock& lock, std::chrono::duration<Rep, Period> most, Until until) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!until()) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= left.zero()) return false;
      wait_for(lock, left);
    }
    return true;
  }
  void notify_one() noexcept { ring(1); }
  void notify_all() noexcept { ring(INT32_MAX); }

 private:
  bool sleep(Lock& lock, const timespec* most);
  void ring(int32_t most) noexcept;

  // Both seq_cst: a ring that finds nobody waiting comes before the next waiter's look.
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> waiting_{0};
};

/// While it lives the calling thread, and each that it starts, runs no handler.
class BlockedSignals {
 public:
  BlockedSignals() noexcept;
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  uint64_t before_;
};
/// The calling thread blocks signals for as long as it lives: holds cost it nothing.
void runsNoHandler() noexcept;

/// A thread that runs no handler of the program's. std::system_error as std::thread.
template <typename Body>
std::thread ownThread(Body&& body) {
  const BlockedSignals blocked;
  return std::thread([body = std::forward<Body>(body)]() mutable {
    runsNoHandler();
    body();
  });
}

}  // namespace olpager::base
