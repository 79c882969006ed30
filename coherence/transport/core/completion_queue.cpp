#include "coherence/transport/core/completion_queue.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace olpager::transport {
namespace {

using Clock = std::chrono::steady_clock;

// After so long without a wait they are taken back, where only messages come.
constexpr int kCheckMessagesMs = 5;

void ring(int fd) {
  const uint64_t one = 1;
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void silence(int fd) {
  uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace

EventQueue::EventQueue(uint32_t spin_us)
    : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      max_spin_us_(spin_us),
      spin_us_(spin_us) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

EventQueue::~EventQueue() = default;

std::shared_ptr<EventQueue> EventQueue::of(const QueuePtr& handle) {
  auto* const queue = dynamic_cast<EventQueue*>(handle.get());
  return queue != nullptr ? queue->shared_from_this() : nullptr;
}

size_t EventQueue::poll(std::span<Completion> into) {
  size_t taken = 0;
  if (size_.load(std::memory_order_acquire) != 0) {
    std::lock_guard lock(mutex_);
    while (taken < into.size() && !completions_.empty()) {
      into[taken++] = std::move(completions_.front());
      completions_.pop_front();
    }
    size_.store(completions_.size(), std::memory_order_release);
  }
  if (taken == 0 && event_wanted_.load()) {
    // Only an empty queue is silent: a push between the look above and here has rung again, or is
    // seen below.
    silence(event_.get());
    if (size_.load() != 0) ring(event_.get());
  }
  return taken;
}

int EventQueue::eventFd() {
  if (!event_wanted_.exchange(true) && size_.load() != 0) ring(event_.get());
  return event_.get();
}

void EventQueue::push(Completion completion) {
  {
    std::lock_guard lock(mutex_);
    if (abandoned_) return;
    completions_.push_back(std::move(completion));
    size_.store(completions_.size());
  }
  signal();
}

void EventQueue::push(std::vector<Completion>& completions) {
  if (completions.empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (abandoned_)
      return;  // they stay the caller's, which may hold locks now that they need when they go
    for (auto& completion : completions) completions_.push_back(std::move(completion));
    size_.store(completions_.size());
  }
  completions.clear();
  signal();
}

void EventQueue::abandon() {
  std::deque<Completion> dropped;
  std::lock_guard lock(mutex_);
  abandoned_ = true;
  dropped.swap(completions_);
  size_.store(0);
}

void EventQueue::signal() {
  if (sleepers_.load() != 0) ring(wake_.get());
  if (event_wanted_.load()) ring(event_.get());
}

void EventQueue::add(const std::shared_ptr<Pollable>& source) {
  std::lock_guard lock(sources_mutex_);
  sources_.push_back(source);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = source.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, source->pollFd(), &event);
  // A waiting thread has been counted for the others only: from the next wait on it takes part.
  if (sources_.size() == kMaxPolled + 1) giveBack();  // nobody drives any of so many
  if (kept_ && !onlyMessages()) giveBack();
}

void EventQueue::remove(Pollable* source) {
  std::lock_guard lock(sources_mutex_);
  const auto found =
      std::find_if(sources_.begin(), sources_.end(), [&](auto& s) { return s.get() == source; });
  if (found == sources_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source->pollFd(), nullptr);
  source->leaveToWaiter(false);
  sources_.erase(found);
}

void EventQueue::enterWait(Clock::time_point now) {
  constexpr auto kAtOnce = std::chrono::microseconds(100);
  constexpr auto kAtOnceMessages = std::chrono::microseconds(1000);
  std::lock_guard lock(sources_mutex_);
  ++waits_;
  streak_ = now - left_ < (onlyMessages() ? kAtOnceMessages : kAtOnce) ? streak_ + 1 : 0;
  if (++waiters_ != 1 || kept_ || sources_.size() > kMaxPolled) return;
  for (auto& source : sources_) source->leaveToWaiter(true);
}

// Under sources_mutex_.
bool EventQueue::onlyMessages() const {
  return std::all_of(sources_.begin(), sources_.end(),
                     [](auto& source) { return source->onlyMessages(); });
}

void EventQueue::leaveWait(const Sources& driven) {
  std::lock_guard lock(sources_mutex_);
  left_ = Clock::now();
  --waiters_;
  keepSources();
  // Kept connections are driven by the next wait or by takeBack(): nobody hears a bell meanwhile,
  // and the peer need not ring. Else another waiter may be asleep on the bell, and an I/O thread
  // that is given a bell which has rung for nothing wakes for nothing.
  if (waiters_ == 0 && kept_) return;
  for (auto& source : driven) {
    if (source) source->rearm();
  }
  if (waiters_ != 0 || sources_.size() > kMaxPolled) return;
  for (auto& source : sources_) source->leaveToWaiter(false);
}

// Under sources_mutex_. A thread that comes back at once keeps the connections.
void EventQueue::keepSources() {
  const uint32_t enough = onlyMessages() ? 4 : 16;
  if (waiters_ != 0 || sources_.empty() || sources_.size() > kMaxPolled) return;
  const bool busy = std::any_of(sources_.begin(), sources_.end(),
                                [](auto& source) { return source->transferring(); });
  if (kept_ || streak_ < enough || busy) return;
  kept_ = true;
  if (std::exchange(checking_, true)) return;
  sources_.front()->reactor().every(onlyMessages() ? kCheckMessagesMs : 1,
                                    [weak = weak_from_this()] {
                                      const auto self = weak.lock();
                                      return self && self->takeBack();
                                    });
}

bool EventQueue::takeBack() {
  std::lock_guard lock(sources_mutex_);
  const bool quiet = checked_waits_ == waits_;
  checked_waits_ = waits_;
  if (kept_ && !quiet) return true;
  if (kept_ && waiters_ == 0) giveBack();
  kept_ = false;  // a thread that waits for long gives them back when the wait is over
  checking_ = false;
  return false;
}

// Under sources_mutex_.
void EventQueue::giveBack() {
  kept_ = false;
  for (auto& source : sources_) {
    source->leaveToWaiter(false);
    source->rearm();
  }
}

EventQueue::Sources EventQueue::sources() {
  Sources all;
  std::lock_guard lock(sources_mutex_);
  if (sources_.size() <= kMaxPolled) std::copy(sources_.begin(), sources_.end(), all.begin());
  return all;
}

size_t EventQueue::spin(std::span<Completion> into, const Sources& sources, Clock::time_point now,
                        Clock::time_point latest) {
  uint32_t limit = spin_us_.load(std::memory_order_relaxed);
  static thread_local uint32_t waits = 0;
  if (limit == 0) {
    if (max_spin_us_ == 0 || ++waits % 64 != 0) return 0;
    limit = max_spin_us_;  // now and then, to notice when it pays again
  }
  if (!sources[0]) return 0;
  constexpr int kLooks = 4;  // for each at the clock, which takes as long
  const auto whole = now + std::chrono::microseconds(limit);
  const auto end = std::min(latest, whole);
  do {
    for (int i = 0; i < kLooks; ++i) {
      for (auto& source : sources) {
        if (source && source->pending()) source->drive();
      }
      if (size_.load(std::memory_order_acquire) != 0) {
        if (const size_t got = poll(into); got != 0) {
          spin_us_.store(max_spin_us_, std::memory_order_relaxed);
          return got;
        }
      }
      __builtin_ia32_pause();
    }
  } while (Clock::now() < end);
  if (end == whole) spin_us_.store(limit / 4, std::memory_order_relaxed);
  return 0;
}

size_t EventQueue::wait(std::span<Completion> into, std::chrono::microseconds timeout) {
  if (size_t got = poll(into); got != 0 || into.empty()) return got;
  auto now = Clock::now();
  const auto end = now + timeout;
  enterWait(now);
  size_t got = 0;
  Sources all;
  for (bool first = true;; first = false) {
    all = sources();
    if (first && (got = spin(into, all, now, end)) != 0) break;
    sleepers_.fetch_add(1);
    bool ready = size_.load() != 0;
    for (auto& source : all) ready = (source && source->prepareSleep()) || ready;
    epoll_event events[8];
    int count = 0;
    if (!ready) {
      const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end - now).count();
      timespec limit{};
      if (left > 0) limit = {left / 1000000, left % 1000000 * 1000};
      // By number: glibc has its name from 2.35 on only. Before Linux 5.11 milliseconds have to do.
      count = static_cast<int>(
          syscall(SYS_epoll_pwait2, epoll_.get(), events, 8, &limit, nullptr, size_t{0}));
      if (count < 0 && errno == ENOSYS)
        count = epoll_wait(epoll_.get(), events, 8,
                           static_cast<int>(std::min<int64_t>((left + 999) / 1000, INT32_MAX)));
    }
    sleepers_.fetch_sub(1);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.ptr == nullptr) silence(wake_.get());
    }
    for (auto& source : all) {
      if (source) source->drive();
    }
    got = poll(into);
    if (got != 0) break;
    now = Clock::now();
    if (now >= end) break;
  }
  leaveWait(all);
  // One ring wakes one sleeper: pass it on when there is more than this one took.
  if (size_.load() != 0 && sleepers_.load() != 0) ring(wake_.get());
  return got;
}

}  // namespace olpager::transport
