// The options that cuModuleLoadDataEx, cuLibraryLoadData and cuLinkCreate take: log buffers are
// filled, the rest, which tunes a code generator that is not there, is accepted and ignored.
// Thread-safety: one object per call. Ownership: the caller's arrays and buffers, which must
// outlive the object.
#pragma once

#include <cuda.h>

#include <string>

namespace olpager::simgpu {

class JitOptions {
 public:
  JitOptions() = default;

  /// CUDA_ERROR_INVALID_VALUE for an option that does not exist or a missing array.
  CUresult read(unsigned count, CUjit_option* options, void** values);

  /// Adds one line to the error or info log buffer, as far as it has room.
  void error(const std::string& line);
  void info(const std::string& line);

  /// Writes back what the options report: the number of bytes in each log, the time.
  void finish(float milliseconds);

 private:
  struct Log {
    char* buffer = nullptr;
    size_t room = 0;
    size_t used = 0;
    void** size_value = nullptr;
    void append(const std::string& line);
  };

  Log error_;
  Log info_;
  void** wall_time_ = nullptr;
};

}  // namespace olpager::simgpu
