#include "base/log.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/log_reader.h"
#include "tests/catch.h"

using namespace olpager::base;

namespace {

// The output of `body` to standard error, which is a pipe meanwhile.
template <typename Body>
std::string captured(Body&& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  UniqueFd saved(dup(STDERR_FILENO));
  dup2(to.get(), STDERR_FILENO);
  to.reset();
  body();
  dup2(saved.get(), STDERR_FILENO);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(from.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  return text;
}

struct Level {
  LogLevel saved = logLevel();
  explicit Level(LogLevel level) { setLogLevel(level); }
  ~Level() { setLogLevel(saved); }
};

}  // namespace

TEST_CASE("lines carry their level and keep errno", "[base][log]") {
  Level level(LogLevel::kInfo);
  int kept = 0;
  const std::string text = captured([&] {
    errno = EBUSY;
    logInfo("%d pages of\n%s", 3, "x");
    logDebug("not this");
    kept = errno;
  });
  CHECK(text == "olpager: info: 3 pages of x\n");
  CHECK(kept == EBUSY);
}

TEST_CASE("what is grave goes elsewhere, and says from where", "[base][log]") {
  Level level(LogLevel::kInfo);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  const std::string text = captured([&] {
    setGraveLog(to.get(), "at the other end: ");
    logInfo("all is well");
    logWarn("%d left", 2);
    logError("none left");
    setGraveLog(-1, "");
    logWarn("here again");
  });
  CHECK(text == "olpager: info: all is well\nolpager: warn: here again\n");
  char grave[256];
  const ssize_t got = read(from.get(), grave, sizeof grave);
  REQUIRE(got > 0);
  CHECK(std::string(grave, static_cast<size_t>(got)) ==
        "olpager: warn: at the other end: 2 left\nolpager: error: at the other end: none left\n");
}

TEST_CASE("off means off, long lines arrive whole, braces are text", "[base][log]") {
  {
    Level level(LogLevel::kOff);
    CHECK(captured([] { logError("no"); }).empty());
  }
  Level level(LogLevel::kTrace);
  const std::string large(3000, 'x');
  CHECK(captured([&] { logTrace("%s", large.c_str()); }) == "olpager: trace: " + large + "\n");
  CHECK(captured([] { logWarn("{} %s {}", "{0}"); }) == "olpager: warn: {} {0} {}\n");
}

TEST_CASE("a warning comes once for each key", "[base][log]") {
  Level level(LogLevel::kWarn);
  CHECK(captured([] {
          for (int i = 0; i < 3; i++) warnOnce("test.a", "a %d", i);
          warnOnce("test.b", "b");
        }) == "olpager: warn: a 0\nolpager: warn: b\n");
}

TEST_CASE("a place that logs again and again writes few lines, and says how many it left out",
          "[base][log]") {
  Level level(LogLevel::kDebug);
  constexpr unsigned kMany = 3000;
  // One place in the code: the compiler makes no copies of what it does not see through.
  void (*volatile again)(unsigned) = [](unsigned times) {
    for (unsigned i = 0; i < times; ++i) logError("again %u", i);
  };
  std::string text = captured([&] { again(kMany); });
  const auto lines = static_cast<unsigned>(std::count(text.begin(), text.end(), '\n'));
  // A slow machine takes longer than a second.
  CHECK(lines >= kGraveRate.freely);
  CHECK(lines < kGraveRate.freely + 30);
  CHECK(text.starts_with("olpager: error: again 0\nolpager: error: again 1\n"));
  CHECK(text.find("again 19 (more lines like this one are left out for a while)\n") !=
        std::string::npos);
  // The next one comes when its time has come.
  unsigned tries = 0;
  for (text.clear(); text.empty(); text = captured([&] { again(1); }), ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  unsigned left_out = 0;
  REQUIRE(sscanf(text.c_str(),
                 "olpager: error: again 0 (%u lines like this one were left out before it)",
                 &left_out) == 1);
  CHECK(left_out > 0);
  CHECK(left_out <= kMany - lines + tries);
  // Another place is another matter, and whoever wants to see everything does.
  text = captured([] { logError("elsewhere"); });
  CHECK(text == "olpager: error: elsewhere\n");
  text = captured([] {
    for (int i = 0; i < 300; ++i) logDebug("%d", i);
  });
  CHECK(std::count(text.begin(), text.end(), '\n') == 300);
}

TEST_CASE("many threads that log at one place do not get past its limit", "[base][log]") {
  Level level(LogLevel::kWarn);
  std::string text;
  const auto begin = std::chrono::steady_clock::now();
  text = captured([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 200; ++i) logWarn("together");
      });
    for (auto& thread : threads) thread.join();
  });
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin)
          .count();
  const auto lines = std::count(text.begin(), text.end(), '\n');
  CHECK(lines >= kGraveRate.freely);
  CHECK(lines <= kGraveRate.freely + kGraveRate.a_second * (seconds + 1));
}

TEST_CASE("lines of many threads stay whole", "[base][log]") {
  Level level(LogLevel::kDebug);
  const std::string text = captured([] {
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; t++) {
      threads.emplace_back([] {
        for (int i = 0; i < 50; i++) logDebug("abcdefghij");
      });
    }
    for (auto& thread : threads) thread.join();
  });
  std::string expected;
  for (int i = 0; i < 200; i++) expected += "olpager: debug: abcdefghij\n";
  CHECK(text == expected);
}

TEST_CASE("a daemon does not wait for who reads its log", "[base][log]") {
  const Level level(LogLevel::kDebug);
  constexpr int kMany = 4000;  // far more than a pipe holds
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    dup2(to.get(), STDERR_FILENO);
    from.reset();
    to.reset();
    neverWaitForLogReader();
    for (int i = 0; i < kMany; ++i) logDebug("%0100d", i);
    raise(SIGSTOP);  // until somebody has read
    logDebug("and one more");
    _exit(0);
  }
  to.reset();
  int status = 0;
  REQUIRE(waitpid(child, &status, WUNTRACED) == child);
  REQUIRE(WIFSTOPPED(status));
  char buffer[4096];
  std::string text;
  for (bool woken = false;;) {
    pollfd more{from.get(), POLLIN, 0};
    if (!woken && poll(&more, 1, 0) == 0) {
      kill(child, SIGCONT);
      woken = true;
    }
    const ssize_t got = read(from.get(), buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  REQUIRE(waitpid(child, &status, 0) == child);
  const auto written = std::count(text.begin(), text.end(), '\n') - 1;
  CHECK(written < kMany);
  CHECK(text.ends_with("olpager: debug: and one more (" + std::to_string(kMany - written) +
                       " lines before it are lost: nobody read them)\n"));
}

TEST_CASE("a forked child can log", "[base][log]") {
  Level level(LogLevel::kWarn);
  int status = 0;
  const std::string text = captured([&] {
    const pid_t child = fork();
    if (child == 0) {
      logWarn("child");
      _exit(0);
    }
    waitpid(child, &status, 0);
  });
  CHECK(text == "olpager: warn: child\n");
  CHECK(status == 0);
}

TEST_CASE("levels have names", "[base][log]") {
  for (auto level : {LogLevel::kOff, LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo,
                     LogLevel::kDebug, LogLevel::kTrace}) {
    CHECK(parseLogLevel(logLevelName(level)) == level);
  }
  CHECK_FALSE(parseLogLevel("loud"));
}
