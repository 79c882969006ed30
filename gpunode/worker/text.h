// Text that the driver and kernels print goes to the client: bytes written to the worker's standard
// output and error, which are pipes, and text printed by stdio's `stdout`, which is a stream of its
// own. So it costs no system call to see that nothing was.
#pragma once

#include <cstdio>
#include <functional>
#include <mutex>
#include <string_view>

#include "base/fd.h"

namespace olpager::gpunode {

class Text {
 public:
  /// `descriptor`: standard output or error.
  explicit Text(int descriptor) : descriptor_(descriptor) {}
  /// From now on what is written there goes to `give` (called from any thread, one at a time).
  void start(std::function<void(std::string_view)> give);
  /// Gives what was printed to `stdout` so far, before it returns. Bytes written to the descriptor
  /// come soon, by themselves.
  void drain();
  /// Gives also what was written to the descriptor.
  void drainAll();
  /// A descriptor for what is to go there too, but for what does not fit now (O_NONBLOCK). The
  /// descriptor stays open. -1: there is none.
  int another() const;

 private:
  void take();
  void give(std::string_view bytes);

  const int descriptor_;
  std::FILE* stream_ = nullptr;  // what `stdout` is now
  std::mutex mutex_;
  base::UniqueFd pipe_;
  std::function<void(std::string_view)> give_;
};

/// A descriptor for what is the gpunode's to see: where standard error led before a Text took it.
/// Text in the pipe of standard error when the process aborts goes there too. Once, before
/// `Text::start`; -1: standard error can't be kept.
int keepLog();

/// Text in the pipe of standard error goes to the gpunode's log, and to nobody else: the process
/// ends. Async-signal-safe.
void keepLastWords();

}  // namespace olpager::gpunode
