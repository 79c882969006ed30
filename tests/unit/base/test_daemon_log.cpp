#include "base/daemon_log.h"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/log.h"
#include "tests/catch.h"

using namespace olpager::base;

namespace {

// The lines that `body` logs in a process of its own: the form of lines is a process's for good.
std::string logged(const std::function<void()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setLogLevel(LogLevel::kInfo);
    setLogDescriptor(to.get());
    body();
    _exit(0);
  }
  to.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(from.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  return text;
}

// The line behind its time, which is checked.
std::string behindTime(const std::string& line, const std::string& before = "") {
  const std::string form = before + "dddd-dd-ddTdd:dd:dd.dddZ";
  REQUIRE(line.size() > form.size());
  for (size_t i = before.size(); i < form.size(); ++i) {
    const bool digit = line[i] >= '0' && line[i] <= '9';
    CHECK((form[i] == 'd' ? digit : line[i] == form[i]));
  }
  return line.substr(form.size());
}

}  // namespace

TEST_CASE("a daemon's line has the time, the daemon's name, the session and the key",
          "[base][log]") {
  CHECK(behindTime(logged([] {
          useDaemonLog(LogFormat::kText, "oldaemon");
          logInfo("it is\nthere");
        })) == " oldaemon: info: it is there\n");
  CHECK(behindTime(logged([] {
          useDaemonLog(LogFormat::kText, "oldaemon");
          const LogAbout about("3", "anna");
          logWarn("begins");
        })) == " oldaemon: warn: session 3, key anna: begins\n");
  CHECK(behindTime(logged([] {
          useDaemonLog(LogFormat::kText, "oldaemon");
          const LogAbout about("3", "");
          logWarn("begins");
        })) == " oldaemon: warn: session 3: begins\n");
}

TEST_CASE("a line is about its own thread's session, the innermost one", "[base][log]") {
  CHECK(behindTime(logged([] {
          useDaemonLog(LogFormat::kText, "oldaemon");
          const LogAbout outer("1", "anna");
          { const LogAbout inner("2", "bert"); }
          std::thread([] { const LogAbout elsewhere("3", "carl"); }).join();
          logInfo("here");
        })) == " oldaemon: info: session 1, key anna: here\n");
}

TEST_CASE("JSON has whatever text there is between its quotes", "[base][log]") {
  const std::string line = logged([] {
    useDaemonLog(LogFormat::kJson, "oldaemon");
    const LogAbout about("7", "anna");
    logError("%s", "a \"path\" \\ \x01 \xc3\xa4 \xff \xed\xa0\x80 \xf0\x9f\x98\x80 \xe2\x82");
  });
  CHECK(behindTime(line, R"({"time":")") ==
        R"(","level":"error","program":"oldaemon","session":"7","key":"anna","message":"a )"
        R"(\"path\" \\ \u0001 )"
        "\xc3\xa4 ? ??? \xf0\x9f\x98\x80 ??\"}\n");
}

TEST_CASE("a process of a daemon is told by its environment how it logs", "[base][log]") {
  const std::string entry = daemonLogEntry(LogFormat::kText, "oldaemon-worker", "00ff", "anna");
  const std::string name = std::string(kDaemonLogVariable) + "=";
  REQUIRE(entry.starts_with(name));
  const std::string value = entry.substr(name.size());
  CHECK(behindTime(logged([&] {
          useDaemonLogOf(value.c_str());
          logInfo("here");
        })) == " oldaemon-worker: info: session 00ff, key anna: here\n");
  for (const char* wrong : {"", "text", "nonsense,oldaemon,1,anna", "json,"})
    CHECK(logged([&] {
            useDaemonLogOf(wrong);
            logInfo("here");
          }) == "olpager: info: here\n");
  CHECK(logged([] {
          useDaemonLogOf(nullptr);
          logInfo("here");
        }) == "olpager: info: here\n");
}

TEST_CASE("what goes to somebody else's place is a program's line", "[base][log]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  CHECK(logged([&] {
          useDaemonLog(LogFormat::kJson, "oldaemon");
          setGraveLog(to.get(), "at the other end: ");
          logWarn("it is full");
        }) == "");
  char grave[256];
  const ssize_t got = read(from.get(), grave, sizeof grave);
  REQUIRE(got > 0);
  CHECK(std::string(grave, static_cast<size_t>(got)) ==
        "olpager: warn: at the other end: it is full\n");
}
