#include "interpose/forward/notifications.h"

#include <thread>
#include <utility>

#include "base/held_signals.h"
#include "interpose/forward/program.h"

namespace olpager::forward {
namespace {

thread_local bool t_in_notification = false;

Notifications& notifications() { return *program().parts().notifications; }

}  // namespace

void Notifications::run() {
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

void startNotifications() {
  Notifications& all = notifications();
  const std::lock_guard lock(all.mutex);
  if (all.runs) return;
  base::ownThread([&all] { all.run(); }).detach();
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
