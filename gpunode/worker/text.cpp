#include "gpunode/worker/text.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

#include "base/format.h"

// Sanitizers' runtimes have this: it sets where their reports go.
extern "C" __attribute__((weak)) void __sanitizer_set_report_fd(void* descriptor);

namespace olpager::gpunode {
namespace {

constexpr size_t kBuffer = 64 << 10;

int g_log = -1;     // what was standard error
int g_errors = -1;  // the pipe that it is now

}  // namespace

void keepLastWords() {
  char bytes[4096];
  for (ssize_t got = 0; (got = read(g_errors, bytes, sizeof bytes)) > 0;)
    (void)!write(g_log, bytes, size_t(got));
}

int keepLog() {
  g_log = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (g_log < 0) return -1;
  if (__sanitizer_set_report_fd != nullptr)
    __sanitizer_set_report_fd(reinterpret_cast<void*>(static_cast<intptr_t>(g_log)));
  struct sigaction action {};
  // The last words of the C library or the C++ runtime are still in the pipe.
  action.sa_handler = [](int) { keepLastWords(); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  (void)sigaction(SIGABRT, &action, nullptr);
  return g_log;
}

void Text::start(std::function<void(std::string_view)> give) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pipe_.reset(ends[0]);
  give_ = std::move(give);
  (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
  (void)fcntl(ends[0], F_SETPIPE_SZ, 1 << 20);
  (void)dup2(ends[1], descriptor_);
  if (descriptor_ == STDERR_FILENO) g_errors = ends[0];
  close(ends[1]);
  if (descriptor_ == STDOUT_FILENO) {
    std::fflush(stdout);
    cookie_io_functions_t functions{};
    functions.write = [](void* self, const char* bytes, size_t count) {
      static_cast<Text*>(self)->give({bytes, count});
      return static_cast<ssize_t>(count);
    };
    stream_ = fopencookie(this, "w", functions);
    if (stream_ != nullptr) {
      (void)setvbuf(stream_, nullptr, _IOFBF, kBuffer);
      stdout = stream_;  // glibc's may be replaced
    }
  }
  // A kernel that prints more than the pipe holds would wait for ever otherwise.
  std::thread([this] {
    pollfd one{pipe_.get(), POLLIN, 0};
    while (poll(&one, 1, -1) >= 0) take();
  }).detach();
}

void Text::drain() {
  if (stream_ != nullptr && __fpending(stream_) != 0) std::fflush(stream_);
}

void Text::drainAll() {
  drain();
  if (pipe_) take();
}

int Text::another() const {
  if (!pipe_) return -1;
  // Opened anew, as duplicates share their flags.
  return open(base::format("/proc/self/fd/{}", descriptor_).c_str(),
              O_WRONLY | O_NONBLOCK | O_CLOEXEC);
}

void Text::give(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  give_(bytes);
}

void Text::take() {
  std::lock_guard lock(mutex_);
  char bytes[16384];
  for (;;) {
    const ssize_t got = read(pipe_.get(), bytes, sizeof bytes);
    if (got <= 0) return;
    give_({bytes, static_cast<size_t>(got)});
  }
}

}  // namespace olpager::gpunode
