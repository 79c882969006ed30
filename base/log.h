// The log: lines "olpager: <level>: text" on standard error (or setLogDescriptor()), by OL_LOG
// (off, error, warn, info, debug, trace; default warn). Made for a library inside somebody else's
// program.
//
// Thread-safety: any thread, also in a forked child: there is no lock, a line is one write(2).
// errno is left as it was. Errors: nothing throws or fails; a line that can't be written is lost.
// Not async-signal-safe (formatting may allocate).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

namespace olpager::base {

enum class LogLevel : uint8_t { kOff, kError, kWarn, kInfo, kDebug, kTrace };

/// "off", "error", "warn", "info", "debug" or "trace", as OL_LOG takes them.
std::optional<LogLevel> parseLogLevel(std::string_view name);
const char* logLevelName(LogLevel level);
inline constexpr std::string_view kLogLevels = "off, error, warn, info, debug or trace";

/// Lines of `level` and above are written. Until the first call OL_LOG decides.
void setLogLevel(LogLevel level) noexcept;
LogLevel logLevel() noexcept;
inline bool logs(LogLevel level) noexcept { return level <= logLevel() && level != LogLevel::kOff; }

/// The destination of lines from now on, instead of standard error. The descriptor stays open.
void setLogDescriptor(int descriptor) noexcept;
/// The destination of lines of level kWarn and kError from now on, whatever setLogDescriptor()
/// says, and the text before theirs: for a reader elsewhere. -1: where all others go, with nothing
/// before it. While it takes nothing (O_NONBLOCK), lines go where all others do. The descriptor
/// stays open, the text lives as long as the process.
void setGraveLog(int descriptor, const char* before) noexcept;

/// One line; a newline inside becomes a space. printf's format. A line that a program or a peer can
/// repeat at will fills no disk: of each place in the code that logs, few lines are written at once
/// and few a second after that (LogRate; debug and trace: all). The last that is written says that
/// more are left out, the next one how many were.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define OLPAGER_LOGS(format_at) __attribute__((noinline, format(printf, format_at, format_at + 1)))
void log(LogLevel level, const char* format, ...) noexcept OLPAGER_LOGS(2);
void logError(const char* format, ...) noexcept OLPAGER_LOGS(1);
void logWarn(const char* format, ...) noexcept OLPAGER_LOGS(1);
void logInfo(const char* format, ...) noexcept OLPAGER_LOGS(1);
void logDebug(const char* format, ...) noexcept OLPAGER_LOGS(1);
void logTrace(const char* format, ...) noexcept OLPAGER_LOGS(1);
#undef OLPAGER_LOGS
// NOLINTEND(bugprone-macro-parentheses)

/// Lines of one place that are written however fast they come, and how many a second after that: of
/// what is grave, and of level info.
struct LogRate {
  unsigned freely, a_second;
};
inline constexpr LogRate kGraveRate{20, 1}, kInfoRate{200, 20};

/// True the first time that `key` is asked for in this process (lock-free; after 1 024 different
/// keys always false).
bool firstTime(std::string_view key) noexcept;

/// A warning once for each `key` (a function's name, the kind of a slower path), however often it
/// is met.
void warnOnce(std::string_view key, const char* format, ...) noexcept
    __attribute__((format(printf, 2, 3)));

}  // namespace olpager::base
