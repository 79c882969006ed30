// counters(): the one file of this process.
//
// States of `g_state`, moved by whoever calls counters() first and by the fork handler in a child:
//   kNone -> kOpening (one thread, by compare-and-swap; others wait, it is a few system calls) ->
//   kReady. In a forked child: kReady stays, but the memory behind the address becomes private;
//   kOpening becomes kReady with the spare memory, because the thread that was opening does not
//   exist there.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string>

#include "base/log.h"
#include "pager/counters/counters.h"
#include "pager/counters/details.h"
#include "pager/counters/files.h"

namespace olpager::pager {
namespace {

enum State : int { kNone, kOpening, kReady };

constinit CountersFile g_spare{};  // when there can be no file; untouched pages cost nothing
constinit std::atomic<int> g_state{kNone};
constinit std::atomic<CountersFile*> g_counters{nullptr};
constinit std::string* g_folder = nullptr;  // of the file; never destroyed: used at exit
pid_t g_owner = 0;                          // a fork's child must not remove its parent's file

void atExit() {
  CountersFile* file = g_counters.load(std::memory_order_acquire);
  if (g_folder == nullptr || getpid() != g_owner) return;
  Counters* mine = &file->head;
  if (mine->keep_token != 0) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    set(mine->ended_unix_ns,
        static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec));
  } else {
    removeCountersFile(*g_folder, mine->pid, mine->start_ticks);
  }
}

void inChild() {
  CountersFile* mine = g_counters.load(std::memory_order_acquire);
  if (mine == nullptr || mine == &g_spare) {
    if (g_state.load() == kOpening) {
      g_counters.store(&g_spare, std::memory_order_release);
      g_state.store(kReady, std::memory_order_release);
    }
    return;
  }
  // Same address, so that pointers into it stay good; zeros of the child's own.
  if (mmap(mine, sizeof(CountersFile), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    g_counters.store(&g_spare, std::memory_order_release);
  }
}

CountersFile* open() {
  const char* keep = std::getenv("OL_COUNTERS_KEEP");
  const uint64_t token = keep == nullptr ? 0 : std::strtoull(keep, nullptr, 0);
  std::string why;
  for (const auto& folder : countersFolders()) {
    auto made = createCountersFile(folder, token);
    if (made.ok()) {
      g_owner = getpid();
      g_folder = new std::string(folder);
      return made.value();
    }
    why += (why.empty() ? "" : "; ") + made.error().message;
  }
  base::warnOnce("counters", "no counters for olpagestat: %s", why.c_str());
  return &g_spare;
}

}  // namespace

CountersFile& countersFile() noexcept {
  if (CountersFile* ready = g_counters.load(std::memory_order_acquire); ready != nullptr)
    return *ready;
  const int saved = errno;
  int expected = kNone;
  if (g_state.compare_exchange_strong(expected, kOpening, std::memory_order_acq_rel)) {
    CountersFile* opened = &g_spare;
    pthread_atfork(nullptr, nullptr, inChild);
    try {
      opened = open();
    } catch (...) {  // out of memory
    }
    g_counters.store(opened, std::memory_order_release);
    g_state.store(kReady, std::memory_order_release);
    if (opened != &g_spare) std::atexit(atExit);
  } else {
    while (g_counters.load(std::memory_order_acquire) == nullptr) sched_yield();
  }
  errno = saved;
  return *g_counters.load(std::memory_order_acquire);
}

Counters& counters() noexcept { return countersFile().head; }

}  // namespace olpager::pager
