// Text printed on standard output reaches its reader before drain() returns, and also where nobody
// drains.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "base/log.h"
#include "gpunode/worker/text.h"
#include "tests/catch.h"

TEST_CASE("printed text is given on", "[gpunode]") {
  const int before = dup(STDOUT_FILENO);
  std::fflush(stdout);
  // The reader's thread stays: it may outlive the test.
  auto* const text = new olpager::gpunode::Text(STDOUT_FILENO);
  static std::mutex mutex;
  static std::string got;
  text->start([](std::string_view bytes) {
    std::lock_guard lock(mutex);
    got += bytes;
  });
  std::printf("kernel %d\n", 7);
  text->drain();
  std::string first;
  {
    std::lock_guard lock(mutex);
    first = got;
  }
  // More than a stream or a pipe holds.
  const std::string line(1023, 'x');
  for (int i = 0; i < 4096; ++i) std::printf("%s\n", line.c_str());
  text->drain();
  // Past stdio.
  REQUIRE(write(STDOUT_FILENO, "directly", 8) == 8);
  text->drainAll();
  std::string all;
  {
    std::lock_guard lock(mutex);
    all = got;
  }
  dup2(before, STDOUT_FILENO);
  close(before);
  CHECK(first == "kernel 7\n");
  CHECK(all.size() == first.size() + 4096 * 1024 + 8);
  CHECK(all.ends_with("directly"));
}

TEST_CASE("an abort's last words are in the log, beside what the driver said before", "[gpunode]") {
  int log[2];
  REQUIRE(pipe(log) == 0);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(log[1], STDERR_FILENO);
    const int kept = olpager::gpunode::keepLog();
    olpager::base::setLogDescriptor(kept);
    auto* const errors = new olpager::gpunode::Text(STDERR_FILENO);
    errors->start(
        [kept](std::string_view bytes) { (void)!write(kept, bytes.data(), bytes.size()); });
    std::fprintf(stderr, "assertion\n");
    errors->drainAll();
    olpager::base::logError("a line");
    std::fprintf(stderr, "last words\n");
    std::abort();
  }
  close(log[1]);
  std::string text;
  char bytes[512];
  for (ssize_t got = 0; (got = read(log[0], bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(got));
  close(log[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(text.find("assertion\n") < text.find("olpager: error: a line\n"));
  CHECK(text.find("last words\n") != std::string::npos);
  CHECK(text.find("olpager: error: a line\n") != std::string::npos);
}
