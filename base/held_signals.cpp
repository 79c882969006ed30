#include "base/held_signals.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/held_in_calls.h"

namespace olpager::base {

namespace {

// The kernel's set, in place of the C library's sixteen times as large one: a preloaded library
// takes of what all have for static thread-local storage.
constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }
// Signals that a thread raises by itself, and those by which the C library ends and tells threads.
constexpr uint64_t kNever = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) |
                            bit(SIGSYS) | bit(SIGABRT) | bit(32) | bit(33);

std::atomic<bool> g_matter{false};

struct Thread {
  uint64_t before;
  uint32_t holds;
  uint32_t calls;   // of holds, those of HeldInCall
  uint64_t system;  // calls of the system's
};
__attribute__((tls_model("initial-exec"))) thread_local Thread here{};

uint64_t mask(int how, uint64_t set) {
  uint64_t before = 0;
  const int kept = errno;
  ++here.system;
  syscall(SYS_rt_sigprocmask, how, &set, &before, sizeof set);
  errno = kept;
  return before;
}

}  // namespace

void signalsMatter() noexcept { g_matter.store(true, std::memory_order_relaxed); }

bool holdSignals() noexcept {
  if (!g_matter.load(std::memory_order_relaxed)) return false;
  if (here.holds == 0) here.before = mask(SIG_BLOCK, ~kNever);
  ++here.holds;
  return true;
}

void releaseSignals() noexcept {
  if (--here.holds == 0) mask(SIG_SETMASK, here.before);
}

bool signalsMayCome() noexcept {
  return g_matter.load(std::memory_order_relaxed) && here.holds == here.calls;
}

uint64_t signalCalls() noexcept { return here.system; }

HeldInCall::HeldInCall() noexcept : holds_(holdSignals()) {
  if (holds_) ++here.calls;
}
HeldInCall::~HeldInCall() {
  if (!holds_) return;
  --here.calls;
  releaseSignals();
}

LetSignals::LetSignals() noexcept : calls_(here.holds == here.calls ? here.calls : 0) {
  if (calls_ == 0) return;
  here.holds = here.calls = 0;
  mask(SIG_SETMASK, here.before);
}
LetSignals::~LetSignals() {
  if (calls_ == 0) return;
  here.before = mask(SIG_BLOCK, ~kNever);
  here.holds = here.calls = calls_;
}

BlockedSignals::BlockedSignals() noexcept : before_(mask(SIG_BLOCK, ~kNever)) {}
BlockedSignals::~BlockedSignals() { mask(SIG_SETMASK, before_); }
void runsNoHandler() noexcept { here.holds = 1; }

bool Condition::sleep(Lock& lock, const timespec* most) {
  const uint32_t seen = rings_.load();
  waiting_.fetch_add(1);
  lock.unlock();
  bool in_time = true;
  {
    const LetSignals let;
    const int kept = errno;
    const long slept = syscall(SYS_futex, &rings_, FUTEX_WAIT_PRIVATE, seen, most, nullptr, 0);
    in_time = slept == 0 || errno != ETIMEDOUT;
    errno = kept;
  }
  waiting_.fetch_sub(1);
  lock.lock();
  return in_time;
}

void Condition::ring(int32_t most) noexcept {
  rings_.fetch_add(1);
  if (waiting_.load() == 0) return;
  const int kept = errno;
  syscall(SYS_futex, &rings_, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
  errno = kept;
}

}  // namespace olpager::base
