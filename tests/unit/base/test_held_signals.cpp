// Signals that are held back: none comes while a lock is held, each comes after it.
#include "base/held_signals.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/held_in_calls.h"
#include "tests/catch.h"

namespace olpager::base {
namespace {

using namespace std::chrono_literals;

std::atomic<int> g_handled{0};
void handle(int) { g_handled.fetch_add(1); }

// Before there is a reason nothing is held back, and there is no way back: so all is one case.
TEST_CASE("signals are held back once they matter, from the outermost lock to its release") {
  struct sigaction action {};
  action.sa_handler = handle;
  REQUIRE(sigaction(SIGUSR1, &action, nullptr) == 0);
  HoldingMutex outer, inner;
  {
    const std::lock_guard lock(outer);
    raise(SIGUSR1);
    CHECK(g_handled == 1);
  }
  {  // nor is the system asked
    const HeldInCall call;
    const std::lock_guard lock(outer);
    const LetSignals let;
    std::unique_lock other(inner);
    Condition condition;
    (void)condition.wait_for(other, 1ms);
    CHECK_FALSE(signalsMayCome());
  }
  CHECK(signalCalls() == 0);
  signalsMatter();
  {
    const std::lock_guard lock(outer);
    raise(SIGUSR1);
    {
      const std::lock_guard other(inner);
      raise(SIGUSR1);
    }
    CHECK(g_handled == 1);
    CHECK(inner.try_lock());
    inner.unlock();
    CHECK(g_handled == 1);
  }
  CHECK(g_handled == 2);  // one signal waits, however often it was sent
  {
    const HeldSignals held;
    raise(SIGUSR1);
    CHECK(g_handled == 2);
  }
  CHECK(g_handled == 3);

  {  // what a thread blocks itself stays blocked
    sigset_t own, now;
    sigemptyset(&own);
    sigaddset(&own, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &own, nullptr);
    { const std::lock_guard lock(outer); }
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    CHECK(sigismember(&now, SIGUSR2) == 1);
    CHECK(sigismember(&now, SIGUSR1) == 0);
    pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  }

  {  // what a thread does wrong is never held back
    sigset_t now;
    const HeldSignals held;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP})
      CHECK(sigismember(&now, signal) == 0);
    CHECK(sigismember(&now, SIGTERM) == 1);
  }

  {  // a signal comes to who waits for a condition, whose mutex others can have then
    std::unique_lock lock(outer);
    Condition condition;
    bool rung = false;
    const pthread_t waiting = pthread_self();
    const int before = g_handled;
    std::thread other([&] {
      while (g_handled == before) {
        pthread_kill(waiting, SIGUSR1);
        std::this_thread::sleep_for(1ms);
      }
      const std::lock_guard their_lock(outer);
      rung = true;
      condition.notify_all();
    });
    condition.wait(lock, [&] { return rung; });
    CHECK(g_handled > before);
    lock.unlock();
    other.join();
  }

  {  // in a call signals come between its waits, and in those for a condition
    int before = g_handled;
    const uint64_t calls = signalCalls();
    {
      const HeldInCall call;
      const HeldInCall nested;
      CHECK(signalsMayCome());
      raise(SIGUSR1);
      { const std::lock_guard lock(outer); }
      CHECK(g_handled == before);
      CHECK(signalCalls() == calls + 1);  // for all of it
      { const LetSignals let; }
      CHECK(g_handled == ++before);
      raise(SIGUSR1);
      CHECK(g_handled == before);
      std::unique_lock lock(inner);
      Condition condition;
      (void)condition.wait_for(lock, 1ms);
      CHECK(g_handled == ++before);

      // Not while something else is locked.
      const std::lock_guard other(outer);
      CHECK_FALSE(signalsMayCome());
      raise(SIGUSR1);
      { const LetSignals let; }
      (void)condition.wait_for(lock, 1ms);
      CHECK(g_handled == before);
    }
    CHECK(g_handled == before + 1);
  }

  {  // a thread of ours runs no handler
    const int before = g_handled;
    std::atomic<bool> sent{false};
    std::thread own = ownThread([&] {
      while (!sent) std::this_thread::yield();
      { const std::lock_guard lock(outer); }
      const HeldInCall call;
      const LetSignals let;
      CHECK_FALSE(signalsMayCome());
    });
    pthread_kill(own.native_handle(), SIGUSR1);
    sent = true;
    own.join();
    CHECK(g_handled == before);
  }
}

TEST_CASE("a condition is waited for as long as said") {
  HoldingMutex mutex;
  Condition condition;
  std::unique_lock lock(mutex);
  CHECK(!condition.wait_for(lock, 2ms, [] { return false; }));
  CHECK(condition.wait_for(lock, 0ms, [] { return true; }));
  CHECK(condition.wait_for(lock, 0ms) == std::cv_status::timeout);
  CHECK(lock.owns_lock());
}

}  // namespace
}  // namespace olpager::base
