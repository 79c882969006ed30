// An olgpunode of a measurement's own. Thread-safety: one thread uses it. Errors: throws
// std::runtime_error.
#pragma once

#include <sys/types.h>

#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

/// An olgpunode on a loopback port of its own, ended with the object.
class Gpunode {
 public:
  /// With the driver and the VRAM of `options`; `more`: further words of its command line.
  explicit Gpunode(const Options& options, const std::vector<std::string>& more = {});
  ~Gpunode();
  Gpunode(const Gpunode&) = delete;
  Gpunode& operator=(const Gpunode&) = delete;
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  pid_t pid_ = 0;
  base::UniqueFd log_;
  std::thread drain_;
};

}  // namespace olpager::tools::bench
