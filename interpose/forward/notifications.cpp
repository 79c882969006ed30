#include "interpose/forward/notifications.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace olpager::forward {
namespace {

thread_local bool t_in_notification = false;

struct Notifications {
  std::mutex mutex;
  std::condition_variable due;
  std::deque<std::function<void()>> functions;
  bool runs = false;

  void run() {
    t_in_notification = true;
    std::unique_lock lock(mutex);
    for (;;) {
      due.wait(lock, [this] { return !functions.empty(); });
      const auto function = std::move(functions.front());
      functions.pop_front();
      lock.unlock();
      function();
      lock.lock();
    }
  }
};
Notifications& notifications() {
  static auto* const instance = new Notifications;  // its thread outlives exit handlers
  return *instance;
}

}  // namespace

void startNotifications() {
  Notifications& all = notifications();
  const std::lock_guard lock(all.mutex);
  if (all.runs) return;
  std::thread([&all] { all.run(); }).detach();
  all.runs = true;
}

void notify(std::function<void()> function) {
  Notifications& all = notifications();
  const std::lock_guard lock(all.mutex);
  all.functions.push_back(std::move(function));
  all.due.notify_one();
}

bool inNotification() { return t_in_notification; }

}  // namespace olpager::forward
