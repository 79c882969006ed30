// What kernels print: the worker's standard output is a pipe, whose bytes go to the client.
#pragma once

#include <functional>
#include <mutex>
#include <string_view>

#include "base/fd.h"

namespace olpager::gpunode {

class Text {
 public:
  /// From now on standard output goes to `give` (called from any thread, one at a time).
  void start(std::function<void(std::string_view)> give);
  /// Gives what was printed so far, before it returns.
  void drain();

 private:
  void take();

  std::mutex mutex_;
  base::UniqueFd pipe_;
  std::function<void(std::string_view)> give_;
};

}  // namespace olpager::gpunode
