// How a daemon's lines look (log.h): with the time, the daemon's name, and the session and the key
// that a line is about. Without a call of useDaemonLog() lines are a program's: "olpager: ...".
//
//   2026-11-29T00:58:12.345Z olmemserver: info: session 3, key anna: text
//   {"time":"2026-11-29T00:58:12.345Z","level":"info","program":"olmemserver","session":"3",
//    "key":"anna","message":"text"}                                                  (one line)
//
// Lines that go to somebody else's place (setGraveLog) are a program's in any case.
// Thread-safety: useDaemonLog() before the second thread; a LogAbout is of its thread. Like a line
// itself they take no lock. Errors: none; '?' stands for bytes that are no UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace olpager::base {

enum class LogFormat : uint8_t { kText, kJson };

/// "text" or "json".
std::optional<LogFormat> parseLogFormat(std::string_view name);
const char* logFormatName(LogFormat format);
inline constexpr std::string_view kLogFormats = "text or json";

/// `program` lives as long as the process.
void useDaemonLog(LogFormat format, const char* program) noexcept;
/// In a process that serves one session: the subject of its lines where no LogAbout says otherwise.
/// Before the second thread; texts that are too long are cut.
void logAboutSession(std::string_view session, std::string_view key) noexcept;

/// As a daemon's process for a session is told all that: in its environment, so that a library
/// which logs in that process does so in the same form.
inline constexpr const char* kDaemonLogVariable = "OLPAGER_DAEMON_LOG";
/// The entry, NAME=value.
std::string daemonLogEntry(LogFormat format, std::string_view program, std::string_view session,
                           std::string_view key);
/// Both calls above, by the variable's value. nullptr, or another word: lines stay a program's.
void useDaemonLogOf(const char* value) noexcept;

/// For as long as it lives, this thread's lines are about that session. Objects may be nested. The
/// texts outlive it.
class LogAbout {
 public:
  LogAbout(std::string_view session, std::string_view key) noexcept;
  ~LogAbout();
  LogAbout(const LogAbout&) = delete;
  LogAbout& operator=(const LogAbout&) = delete;

  std::string_view session() const { return session_; }
  std::string_view key() const { return key_; }

 private:
  const std::string_view session_, key_;
  const LogAbout* const outer_;
};

}  // namespace olpager::base
