#include "gpunode/worker/text.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

namespace olpager::gpunode {

void Text::start(std::function<void(std::string_view)> give) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pipe_.reset(ends[0]);
  give_ = std::move(give);
  (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
  (void)fcntl(ends[0], F_SETPIPE_SZ, 1 << 20);
  (void)dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  // A kernel that prints more than the pipe holds would wait for ever otherwise.
  std::thread([this] {
    pollfd one{pipe_.get(), POLLIN, 0};
    while (poll(&one, 1, -1) >= 0) take();
  }).detach();
}

void Text::drain() {
  if (!pipe_) return;
  std::fflush(stdout);  // may wait until the thread above has made room
  take();
}

// Without a look at stdio: whoever prints holds its lock while the pipe is full.
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
