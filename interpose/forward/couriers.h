// Threads for work of the library's own that calls and waits, such as to end a wait of one session
// for another. As many as are busy at once; an idle one ends after some seconds. In such a thread
// calls need no current context. Thread-safety: any thread; nothing here waits. Errors:
// std::system_error when no thread can be had.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace olpager::forward {

struct Couriers {
  std::mutex mutex;
  std::condition_variable due;
  std::deque<std::function<void()>> jobs;
  size_t idle = 0;  // threads that wait for a job
};

void runByCourier(std::function<void()> job);
/// True if the calling thread is one.
bool isCourier();

}  // namespace olpager::forward
