// Functions of the program's that the driver calls when something has happened, and that nobody
// waits for: destructors of user objects, who listens to the logs. The functions run here one after
// the other, on a thread of their own as in the driver, and never on one that receives.
//
// States of the thread: none -> runs (at first need), for the process's life. Thread-safety: any
// thread. The lock is a leaf, and is not held while a function runs.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace olpager::forward {

struct Notifications {
  std::mutex mutex;
  std::condition_variable due;
  std::deque<std::function<void()>> functions;
  bool runs = false;  // the thread is there

  void run();
};

/// Once before the first function is expected; throws where there can be no thread.
void startNotifications();
void notify(std::function<void()> function);
/// True if the calling thread is the one that runs them.
bool inNotification();

}  // namespace olpager::forward
