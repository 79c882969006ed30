#include "interpose/forward/threads.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "forwarding/wire/wire.h"
#include "interpose/forward/captures.h"

namespace olpager::forward {
namespace {

struct Places {
  std::mutex mutex;
  std::vector<uint32_t> free;  // numbers as their last holders had them
  uint32_t next = 1;           // place that nobody has had
  pthread_key_t key{};
  bool keyed = false;
};

// Never destroyed: threads may end after everything else.
Places& places() {
  static auto* const all = new Places;
  return *all;
}

std::atomic<uint32_t> g_calling{0};
thread_local uint32_t t_number = 0;

// Behind the thread's destructors of C++, which may call; where another key's destructor calls
// after this one it runs again.
void leave(void* /*value*/) {
  endCapturesOfThread();
  Places& all = places();
  {
    std::lock_guard lock(all.mutex);
    all.free.push_back(t_number + (1u << kThreadPlaceBits));
  }
  t_number = 0;
  g_calling.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

uint32_t thisThread() {
  if (t_number != 0) return t_number;
  Places& all = places();
  {
    std::lock_guard lock(all.mutex);
    if (!all.keyed) all.keyed = pthread_key_create(&all.key, leave) == 0;
    if (all.free.empty()) {
      t_number = all.next++;
    } else {
      t_number = all.free.back();
      all.free.pop_back();
    }
    // Without a key it counts as one that never ends.
    if (all.keyed) (void)pthread_setspecific(all.key, &all);
  }
  g_calling.fetch_add(1, std::memory_order_relaxed);
  return t_number;
}

uint32_t callingThreads() { return g_calling.load(std::memory_order_relaxed); }

}  // namespace olpager::forward
