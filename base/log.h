// The log: lines "olpager: <level>: text" on standard error (or setLogDescriptor()), by OL_LOG (off, error, warn, info, debug, trace; default
// warn). Made for a library inside somebody else's program.
//
// Thread-safety: any thread, also in a forked child: there is no lock, a line is one write(2). errno is left as it was.
// Errors: nothing throws or fails; what can't be written is lost. Not async-signal-safe (formatting may allocate).
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

/// What is written: `level` and all that is graver. Until the first call it is what OL_LOG says.
void setLogLevel(LogLevel level) noexcept;
LogLevel logLevel() noexcept;
inline bool logs(LogLevel level) noexcept { return level <= logLevel() && level != LogLevel::kOff; }

/// Where lines go from now on, instead of standard error. The descriptor stays open.
void setLogDescriptor(int descriptor) noexcept;
/// Where lines of level kWarn and kError go from now on, whatever setLogDescriptor() says, and what stands before their text: for whoever is not where
/// they come from. -1: where all others go, with nothing before it. Where it takes nothing more now (O_NONBLOCK) lines go
/// where all others do. The descriptor stays open, the text lives as long as the process.
void setGraveLog(int descriptor, const char* before) noexcept;

/// One line; a newline inside becomes a space. printf's format.
void log(LogLevel level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));
void logError(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
void logWarn(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
void logInfo(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
void logDebug(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));
void logTrace(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));

/// True the first time that `key` is asked for in this process (lock-free; after 1 024 different keys always false).
bool firstTime(std::string_view key) noexcept;

/// A warning once for each `key` (a function's name, the kind of a slower path), however often it is met.
void warnOnce(std::string_view key, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace olpager::base
