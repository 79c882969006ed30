// Locks in order and out of it, in processes of their own.
#include "base/ranked_mutex.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <mutex>
#include <string>
#include <thread>

#include "tests/catch.h"

namespace olpager::base {
namespace {

using Mutex = BasicRankedMutex<true>;
constexpr LockRank kOuter{10, "Outer::mutex"}, kInner{20, "Inner::mutex"};

/// Runs `body` in a child. Returns the words with which that was aborted; "": it was not.
template <typename Body>
std::string lastWords(Body body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char part[256];
  for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;)
    said.append(part, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) return said;
  CHECK(status == 0);
  return "";
}

}  // namespace

TEST_CASE("locks are taken by rank") {
  Mutex outer(kOuter), inner(kInner), second(kInner), free(kUnranked);
  const auto inOrder = [&] {
    for (int i = 0; i < 3; ++i) {
      std::unique_lock first(outer);
      std::unique_lock then(inner);
      first.unlock();  // not in the order in which they were taken
      std::scoped_lock any(free);
      then.unlock();
      const std::lock_guard again(outer);
      then.lock();
    }
  };
  CHECK(lastWords(inOrder) == "");
  const std::string wrong = lastWords([&] {
    const std::lock_guard first(inner);
    const std::lock_guard then(outer);
  });
  CHECK(wrong.find("Outer::mutex (rank 10)") != std::string::npos);
  CHECK(wrong.find("holds Inner::mutex (rank 20)") != std::string::npos);
  CHECK(lastWords([&] {
          const std::lock_guard first(inner);
          const std::lock_guard then(second);
        }) != "");
}

TEST_CASE("a lock that is tried is in any order, and held") {
  Mutex outer(kOuter), inner(kInner), second(kInner);
  CHECK(lastWords([&] {
          const std::lock_guard first(inner);
          const std::unique_lock then(outer, std::try_to_lock);
          if (!then.owns_lock()) std::abort();
        }) == "");
  CHECK(lastWords([&] {
          const std::unique_lock first(inner, std::try_to_lock);
          const std::lock_guard then(second);
        }) != "");
  // A lock that could not be had is not held.
  CHECK(lastWords([&] {
          const std::lock_guard here(inner);
          std::thread([&] {
            const std::unique_lock first(inner, std::try_to_lock);
            const std::lock_guard then(outer);
          }).join();
        }) == "");
}

TEST_CASE("a rank without a check is nothing") {
  BasicRankedMutex<false> outer(kOuter), inner(kInner);
  STATIC_REQUIRE(sizeof outer == sizeof(std::mutex));
  CHECK(lastWords([&] {
          const std::lock_guard first(inner);
          const std::lock_guard then(outer);
        }) == "");
}

}  // namespace olpager::base
