#include "interpose/forward/threads.h"

#include "forwarding/wire/wire.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/program.h"

namespace olpager::forward {
namespace {

thread_local uint32_t t_number = 0;
thread_local bool t_ours = false;

// Behind the thread's destructors of C++, which may call; where another key's destructor calls
// after this one it runs again.
void leave(void* /*value*/) {
  endCapturesOfThread();
  ThreadNumbers& all = *program().parts().threads;
  {
    std::lock_guard lock(all.mutex);
    all.free.push_back(t_number + (1u << kThreadPlaceBits));
  }
  t_number = 0;
  if (!t_ours) program().calling_threads.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

uint32_t thisThread() {
  if (t_number != 0) return t_number;
  ThreadNumbers& all = *program().parts().threads;
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
  if (!t_ours) program().calling_threads.fetch_add(1, std::memory_order_relaxed);
  return t_number;
}

void thisThreadIsOurs() { t_ours = true; }

uint32_t callingThreads() { return program().calling_threads.load(std::memory_order_relaxed); }

}  // namespace olpager::forward
