#include "coherence/transport/core/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "base/boot_clock.h"
#include "base/held_signals.h"

namespace olpager::transport {

int64_t nowMs() { return base::bootMs(); }

Reactor::Reactor()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      last_tick_ms_(nowMs()) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  thread_ = base::ownThread([this] { run(); });
}

Reactor::~Reactor() {
  post([this] {
    std::lock_guard lock(mutex_);
    stop_ = true;
  });
  thread_.join();
}

void Reactor::add(int fd, uint32_t events, std::shared_ptr<Source> source) {
  auto entry = std::make_unique<Entry>();
  entry->source = std::move(source);
  epoll_event event{};
  event.events = events;
  event.data.ptr = entry.get();
  std::lock_guard lock(mutex_);
  entries_[fd] = std::move(entry);
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Reactor::modify(int fd, uint32_t events) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(fd);
  if (found == entries_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.ptr = found->second.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::leave(int fd, bool leave, uint32_t events) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(fd);
  if (found == entries_.end() || found->second->left == leave) return;
  found->second->left = leave;
  epoll_event event{};
  event.events = events;
  event.data.ptr = found->second.get();
  epoll_ctl(epoll_.get(), leave ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, fd, &event);
}

void Reactor::remove(int fd) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(fd);
  if (found == entries_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  found->second->dead = true;
  removed_.push_back(std::move(found->second));
  entries_.erase(found);
}

void Reactor::addTicker(std::weak_ptr<Ticker> ticker) {
  std::lock_guard lock(mutex_);
  tickers_.push_back(std::move(ticker));
}

void Reactor::post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() != 1) return;  // rung already
  }
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Reactor::every(int ms, std::function<bool()> check) {
  post([this, ms, check = std::move(check)] { checks_.push_back({ms, nowMs() + ms, check}); });
}

// Until something has to be looked at without an event.
int Reactor::patience() const {
  if (checks_.empty()) return kTickMs;
  int64_t first = INT64_MAX;
  for (const Check& each : checks_) first = std::min(first, each.due_ms);
  return static_cast<int>(std::clamp<int64_t>(first - nowMs(), 0, kTickMs));
}

void Reactor::tick() {
  const int64_t now = nowMs();
  std::erase_if(checks_, [&](Check& each) {
    if (now < each.due_ms) return false;
    each.due_ms = now + each.ms;
    return !each.check();
  });
  if (now - last_tick_ms_ < kTickMs) return;
  const bool late = now - last_tick_ms_ > int64_t{20} * kTickMs;
  last_tick_ms_ = now;
  std::vector<std::shared_ptr<Ticker>> tickers;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(tickers_, [&](auto& weak) {
      auto ticker = weak.lock();
      if (!ticker) return true;
      tickers.push_back(std::move(ticker));
      return false;
    });
  }
  for (auto& ticker : tickers) ticker->onTick(late);
}

void Reactor::run() {
  epoll_event events[64];
  for (;;) {
    const int count = epoll_wait(epoll_.get(), events, 64, patience());
    for (int i = 0; i < count; ++i) {
      auto* entry = static_cast<Entry*>(events[i].data.ptr);
      if (entry == nullptr) {
        uint64_t rung = 0;
        while (::read(wake_.get(), &rung, sizeof rung) < 0 && errno == EINTR) {
        }
        continue;
      }
      if (!entry->dead.load()) entry->source->onEvents(events[i].events);
    }
    std::vector<std::function<void()>> tasks;
    std::vector<std::unique_ptr<Entry>> removed;
    {
      std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
      removed.swap(removed_);
    }
    for (auto& task : tasks) task();
    tick();
    removed.clear();
    std::lock_guard lock(mutex_);
    if (stop_) return;
  }
}

}  // namespace olpager::transport
