// The program that a gpunode is for alone (forwarding/local_gpunode.h): whether anything of it is
// left that may come with a session.
//
// Thread-safety: one thread.
#pragma once

#include <string>

#include "base/fd.h"

namespace olpager::gpunode {

class OwnProgram {
 public:
  /// None: the gpunode is for everybody, and ends when it is told to.
  OwnProgram() = default;
  /// `process`: its pidfd. `socket`: the path that its environment names the gpunode by.
  OwnProgram(base::UniqueFd process, const std::string& socket);

  explicit operator bool() const { return !mark_.empty(); }
  /// Readable once its process has ended; -1 from when that is known.
  int fd() const { return process_.get(); }
  /// There is one, and its process has ended.
  bool ended();
  /// True once the program has ended, and no process of this user carries its environment on. A
  /// process that others may not look into, or that has overwritten its environment, isn't seen:
  /// its session is.
  bool gone();

 private:
  std::string mark_;
  base::UniqueFd process_;
};

}  // namespace olpager::gpunode
