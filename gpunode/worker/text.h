// What the driver and kernels print: the worker's standard output and error are pipes, whose bytes go to the client.
#pragma once

#include <cstdio>
#include <functional>
#include <mutex>
#include <string_view>

#include "base/fd.h"

namespace olpager::gpunode {

class Text {
 public:
  /// `descriptor` and `stream`: standard output or error.
  Text(int descriptor, std::FILE* stream) : descriptor_(descriptor), stream_(stream) {}
  /// From now on what is written there goes to `give` (called from any thread, one at a time).
  void start(std::function<void(std::string_view)> give);
  /// Gives what was printed so far, before it returns.
  void drain();

 private:
  void take();

  const int descriptor_;
  std::FILE* const stream_;
  std::mutex mutex_;
  base::UniqueFd pipe_;
  std::function<void(std::string_view)> give_;
};

/// A descriptor for what is the gpunode's to see: where standard error led before a Text took it. What is in the pipe of standard error
/// when the process aborts goes there too. Once, before `Text::start`; -1: standard error can't be kept.
int keepLog();

}  // namespace olpager::gpunode
