#define FMT_HEADER_ONLY  // here and in format.cpp only
#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/sink.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>
#include <string>

#include "base/daemon_log.h"
#include "base/log_reader.h"

namespace olpager::base {
namespace {

constexpr std::pair<LogLevel, const char*> kNames[] = {
    {LogLevel::kOff, "off"},   {LogLevel::kError, "error"}, {LogLevel::kWarn, "warn"},
    {LogLevel::kInfo, "info"}, {LogLevel::kDebug, "debug"}, {LogLevel::kTrace, "trace"},
};

spdlog::level::level_enum toSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kOff:
      return spdlog::level::off;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kTrace:
      return spdlog::level::trace;
  }
  return spdlog::level::off;
}

const char* levelText(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::err:
      return "error";
    case spdlog::level::warn:
      return "warn";
    case spdlog::level::info:
      return "info";
    case spdlog::level::debug:
      return "debug";
    default:
      return "trace";
  }
}

std::atomic<int> g_descriptor{STDERR_FILENO};
std::atomic<int> g_grave_descriptor{-1};  // -1: as all others
std::atomic<const char*> g_before_grave{""};
std::atomic<bool> g_waits{true};       // where what is written to takes nothing now
std::atomic<uint32_t> g_unwritten{0};  // lines, since the last that was written

// write(2), or EAGAIN where it would wait and nobody may.
ssize_t put(int descriptor, const char* from, size_t length) {
  if (!g_waits.load(std::memory_order_relaxed)) {
    pollfd takes{descriptor, POLLOUT, 0};
    if (poll(&takes, 1, 0) == 0) {
      errno = EAGAIN;
      return -1;
    }
  }
  return ::write(descriptor, from, length);
}

// ---- a daemon's lines (daemon_log.h). Settings here are made before there is a second thread.

constexpr uint8_t kPlain = 0, kDaemonText = 1, kDaemonJson = 2;
std::atomic<uint8_t> g_form{kPlain};
std::atomic<const char*> g_program{"olpager"};
char g_program_text[64] = "", g_session[64] = "", g_key[72] = "";
thread_local constinit const LogAbout* t_about = nullptr;

template <size_t N>
void keep(char (&into)[N], std::string_view text) noexcept {
  const size_t length = std::min(text.size(), N - 1);
  std::copy_n(text.data(), length, into);
  into[length] = '\0';
}

// The length of the UTF-8 sequence at the front; 0: there is none.
size_t sequence(std::string_view text) noexcept {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xc2 && first < 0xe0 ? 2
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  if (length == 3 && ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) >= 0xa0)))
    return 0;  // longer than need be; halves of pairs
  if (length == 4 && ((first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) >= 0x90)))
    return 0;
  return length;
}

// As it stands between quotes in JSON.
void quote(spdlog::memory_buf_t& line, std::string_view text) {
  while (!text.empty()) {
    const size_t length = sequence(text);
    const char c = text.front();
    if (length == 0) {
      line.push_back('?');
    } else if (c == '"' || c == '\\') {
      line.push_back('\\');
      line.push_back(c);
    } else if (length == 1 && (c < ' ' || c == 0x7f)) {
      fmt::format_to(std::back_inserter(line), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      line.append(text.data(), text.data() + length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
}

// Control characters would tear a line of text, or do things to a terminal.
void plain(spdlog::memory_buf_t& line, std::string_view text) {
  for (const char c : text) line.push_back(c == '\n' ? ' ' : c);
}

struct Moment {
  char text[40];
};
Moment thisMoment() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  Moment moment{};
  const size_t length = strftime(moment.text, sizeof moment.text, "%Y-%m-%dT%H:%M:%S", &parts);
  snprintf(moment.text + length, sizeof moment.text - length, ".%03ldZ", now.tv_nsec / 1'000'000);
  return moment;
}

// A line without what ends it.
void write(spdlog::memory_buf_t& line, const char* level, const char* before, std::string_view text,
           uint8_t form) {
  if (form == kPlain) {
    fmt::format_to(std::back_inserter(line), "olpager: {}: {}", level, before);
    plain(line, text);
    return;
  }
  const std::string_view session = t_about != nullptr ? t_about->session() : g_session;
  const std::string_view key = t_about != nullptr ? t_about->key() : g_key;
  const char* const program = g_program.load(std::memory_order_acquire);
  if (form == kDaemonText) {
    fmt::format_to(std::back_inserter(line), "{} {}: {}: ", thisMoment().text, program, level);
    if (!session.empty()) {
      line.append(std::string_view("session "));
      plain(line, session);
      line.append(std::string_view(key.empty() ? ": " : ", "));
    }
    if (!key.empty()) {
      line.append(std::string_view("key "));
      plain(line, key);
      line.append(std::string_view(": "));
    }
    plain(line, text);
    return;
  }
  const auto field = [&line](std::string_view name, std::string_view value) {
    fmt::format_to(std::back_inserter(line), "{}\"{}\":\"", line.size() == 0 ? "{" : ",", name);
    quote(line, value);
    line.push_back('"');
  };
  field("time", thisMoment().text);
  field("level", level);
  field("program", program);
  if (!session.empty()) field("session", session);
  if (!key.empty()) field("key", key);
  field("message", text);
}

// spdlog's own sinks lock a mutex, which a fork in another thread would leave locked in the child,
// and go through stdio, whose buffer a fork would write twice. One write(2) needs neither.
class StderrSink : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    const int grave = message.level >= spdlog::level::warn
                          ? g_grave_descriptor.load(std::memory_order_acquire)
                          : -1;
    int descriptor = grave >= 0 ? grave : g_descriptor.load(std::memory_order_relaxed);
    const char* const before = grave >= 0 ? g_before_grave.load(std::memory_order_relaxed) : "";
    const uint8_t as = grave >= 0 ? kPlain : g_form.load(std::memory_order_acquire);
    write(line, levelText(message.level), before, {message.payload.data(), message.payload.size()},
          as);
    const uint32_t unwritten = g_unwritten.exchange(0, std::memory_order_relaxed);
    if (unwritten != 0)
      fmt::format_to(
          std::back_inserter(line),
          fmt::runtime(as == kDaemonJson ? ",\"lost_before\":{}"
                                         : " ({} lines before it are lost: nobody read them)"),
          unwritten);
    if (as == kDaemonJson) line.push_back('}');
    line.push_back('\n');
    const char* at = line.data();
    size_t left = line.size();
    while (left != 0) {
      const ssize_t written = put(descriptor, at, left);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EAGAIN &&
          descriptor == grave) {  // full: a thread that logs waits for nobody
        descriptor = g_descriptor.load(std::memory_order_relaxed);
        continue;
      }
      if (written < 0 && errno == EAGAIN)
        g_unwritten.fetch_add(unwritten + 1, std::memory_order_relaxed);
      if (written <= 0) return;
      at += written;
      left -= static_cast<size_t>(written);
    }
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

// Made at first use and never destroyed: destructors of the host program that run after ours may
// still log. No static guard: a fork while another thread holds one would leave the child waiting
// for it.
spdlog::logger& logger() {
  static std::atomic<spdlog::logger*> instance{nullptr};
  spdlog::logger* found = instance.load(std::memory_order_acquire);
  if (found == nullptr) {
    auto made = std::make_unique<spdlog::logger>("olpager", std::make_shared<StderrSink>());
    made->set_level(spdlog::level::trace);  // logs() decides
    if (instance.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel))
      found = made.release();
  }
  return *found;
}

constexpr uint8_t kUnset = 0xff;
std::atomic<uint8_t> g_level{kUnset};

// How many lines a place in the code has written of late. Lock-free, as a fork in another thread
// may come at any time.
class Limits {
 public:
  struct Verdict {
    bool writes = true;
    bool last = false;      // more are left out from now on
    uint32_t left_out = 0;  // since the last that was written
  };

  Verdict ask(const void* place, const LogRate& rate) noexcept {
    Place* const at = find(reinterpret_cast<uintptr_t>(place));
    if (at == nullptr) return {};
    // Each line takes a share of a second. `booked` is until when the lines so far have used up
    // theirs, `freely` shares ahead at most.
    const uint64_t share = kSecond / rate.a_second, most = rate.freely * share;
    const uint64_t now = nowNs();
    uint64_t booked = at->booked.load(std::memory_order_relaxed), next = 0;
    do {
      next = std::max(booked, now) + share;
      if (next > now + most) {
        at->left_out.fetch_add(1, std::memory_order_relaxed);
        return {false, false, 0};
      }
    } while (!at->booked.compare_exchange_weak(booked, next, std::memory_order_relaxed));
    return {true, next + share > now + most, at->left_out.exchange(0, std::memory_order_relaxed)};
  }

 private:
  static constexpr uint64_t kSecond = 1'000'000'000;
  struct Place {
    std::atomic<uintptr_t> place{0};
    std::atomic<uint64_t> booked{0};
    std::atomic<uint32_t> left_out{0};
  };

  static uint64_t nowNs() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * kSecond + static_cast<uint64_t>(now.tv_nsec);
  }

  // nullptr: there are more places than the table has, and this one is not limited.
  Place* find(uintptr_t place) noexcept {
    const uint64_t hash = XXH3_64bits(&place, sizeof place);
    for (size_t i = 0; i < std::size(places_); ++i) {
      Place& at = places_[(hash + i) % std::size(places_)];
      uintptr_t found = at.place.load(std::memory_order_relaxed);
      if (found == 0 && at.place.compare_exchange_strong(found, place, std::memory_order_relaxed))
        return &at;
      if (found == place) return &at;
    }
    return nullptr;
  }

  Place places_[512];
};

void vlog(LogLevel level, const void* place, const char* format, va_list arguments) noexcept {
  if (!logs(level)) return;
  static constinit Limits limits;
  Limits::Verdict verdict;
  if (level <= LogLevel::kInfo)
    verdict = limits.ask(place, level == LogLevel::kInfo ? kInfoRate : kGraveRate);
  if (!verdict.writes) return;
  const int saved = errno;
  char note[96] = "";
  if (verdict.left_out != 0)
    snprintf(note, sizeof note, " (%u lines like this one were left out before it)",
             verdict.left_out);
  else if (verdict.last)
    snprintf(note, sizeof note, " (more lines like this one are left out for a while)");
  try {
    char small[512];
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(small, sizeof small, format, arguments);
    const size_t noted = strlen(note);
    if (length >= 0 && static_cast<size_t>(length) + noted < sizeof small) {
      std::copy_n(note, noted, small + length);
      logger().log(toSpdlog(level),
                   spdlog::string_view_t(small, static_cast<size_t>(length) + noted));
    } else if (length >= 0) {
      std::string large(static_cast<size_t>(length) + 1, '\0');
      vsnprintf(large.data(), large.size(), format, again);
      large.resize(static_cast<size_t>(length));
      large += note;
      logger().log(toSpdlog(level), spdlog::string_view_t(large));
    }
    va_end(again);
  } catch (...) {  // out of memory: the line is lost
  }
  errno = saved;
}

}  // namespace

std::optional<LogLevel> parseLogLevel(std::string_view name) {
  for (const auto& [level, text] : kNames) {
    if (name == text) return level;
  }
  return std::nullopt;
}

const char* logLevelName(LogLevel level) { return kNames[static_cast<unsigned>(level)].second; }

void setLogLevel(LogLevel level) noexcept {
  g_level.store(static_cast<uint8_t>(level), std::memory_order_relaxed);
}

LogLevel logLevel() noexcept {
  uint8_t level = g_level.load(std::memory_order_relaxed);
  if (level == kUnset) {
    const char* text = std::getenv("OL_LOG");
    level =
        static_cast<uint8_t>(parseLogLevel(text == nullptr ? "" : text).value_or(LogLevel::kWarn));
    uint8_t expected = kUnset;
    if (!g_level.compare_exchange_strong(expected, level, std::memory_order_relaxed))
      level = expected;
  }
  return static_cast<LogLevel>(level);
}

void setLogDescriptor(int descriptor) noexcept {
  g_descriptor.store(descriptor, std::memory_order_relaxed);
}

void neverWaitForLogReader() noexcept {
  g_waits.store(false, std::memory_order_relaxed);
  struct stat about {};
  if (fstat(STDERR_FILENO, &about) != 0 || !S_ISFIFO(about.st_mode)) return;
  // Another thread's writes since the check could fill a pipe. Opened anew: O_NONBLOCK holds for
  // all who have the same open file.
  const int own = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (own >= 0) setLogDescriptor(own);
}

void setGraveLog(int descriptor, const char* before) noexcept {
  g_before_grave.store(before, std::memory_order_relaxed);
  g_grave_descriptor.store(descriptor, std::memory_order_release);
}

std::optional<LogFormat> parseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return std::nullopt;
}

const char* logFormatName(LogFormat format) { return format == LogFormat::kJson ? "json" : "text"; }

void useDaemonLog(LogFormat format, const char* program) noexcept {
  g_program.store(program, std::memory_order_release);
  g_form.store(format == LogFormat::kJson ? kDaemonJson : kDaemonText, std::memory_order_release);
}

void logAboutSession(std::string_view session, std::string_view key) noexcept {
  keep(g_session, session);
  keep(g_key, key);
}

std::string daemonLogEntry(LogFormat format, std::string_view program, std::string_view session,
                           std::string_view key) {
  return fmt::format("{}={},{},{},{}", kDaemonLogVariable, logFormatName(format), program, session,
                     key);
}

void useDaemonLogOf(const char* value) noexcept {
  std::string_view rest = value == nullptr ? "" : value;
  std::string_view parts[4];
  for (std::string_view& part : parts) {
    part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  const auto format = parseLogFormat(parts[0]);
  if (!format || parts[1].empty()) return;
  keep(g_program_text, parts[1]);
  logAboutSession(parts[2], parts[3]);
  useDaemonLog(*format, g_program_text);
}

LogAbout::LogAbout(std::string_view session, std::string_view key) noexcept
    : session_(session), key_(key), outer_(t_about) {
  t_about = this;
}

LogAbout::~LogAbout() { t_about = outer_; }

#define OLPAGER_FORWARD(level)                                 \
  va_list arguments;                                           \
  va_start(arguments, format);                                 \
  vlog(level, __builtin_return_address(0), format, arguments); \
  va_end(arguments)

void log(LogLevel level, const char* format, ...) noexcept { OLPAGER_FORWARD(level); }
void logError(const char* format, ...) noexcept { OLPAGER_FORWARD(LogLevel::kError); }
void logWarn(const char* format, ...) noexcept { OLPAGER_FORWARD(LogLevel::kWarn); }
void logInfo(const char* format, ...) noexcept { OLPAGER_FORWARD(LogLevel::kInfo); }
void logDebug(const char* format, ...) noexcept { OLPAGER_FORWARD(LogLevel::kDebug); }
void logTrace(const char* format, ...) noexcept { OLPAGER_FORWARD(LogLevel::kTrace); }

bool firstTime(std::string_view key) noexcept {
  // An open-addressed set of hashes; 0 marks a free slot. Two keys of one 64-bit hash would share a
  // warning.
  static std::atomic<uint64_t> seen[1024];
  const uint64_t hash = XXH3_64bits(key.data(), key.size()) | 1;
  for (unsigned i = 0; i < 1024; i++) {
    auto& slot = seen[(hash + i) % 1024];
    uint64_t found = slot.load(std::memory_order_relaxed);
    if (found == 0 && slot.compare_exchange_strong(found, hash, std::memory_order_relaxed))
      return true;
    if (found == hash) return false;
  }
  return false;
}

void warnOnce(std::string_view key, const char* format, ...) noexcept {
  if (!logs(LogLevel::kWarn) || !firstTime(key)) return;
  OLPAGER_FORWARD(LogLevel::kWarn);
}

#undef OLPAGER_FORWARD

}  // namespace olpager::base
