// The program's threads that call: the worker's name for each, and their number.
//
// Thread-safety: any thread; no lock is held by the caller's side. Lock: a leaf of its own.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace olpager::forward {

struct ThreadNumbers {
  std::mutex mutex;
  std::vector<uint32_t> free;  // numbers as their last holders had them
  uint32_t next = 1;           // place that nobody has had
  pthread_key_t key{};         // whose destructor tells of a thread's end
  bool keyed = false;
};

/// The calling thread's number, in every session the same; never 0. Given back when the thread
/// ends.
uint32_t thisThread();
/// The calling thread is the library's own: it does not count as one of the program's. Before its
/// first call.
void thisThreadIsOurs();
/// Threads of the program's that have called and have not ended.
uint32_t callingThreads();

}  // namespace olpager::forward
