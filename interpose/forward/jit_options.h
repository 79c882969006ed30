// The options that a program gives to the compiler or the linker: sent with the call, and the
// answers written to where the program wants them. Thread-safety: one thread at a time. Ownership:
// the arrays are copied; the values' array and the logs stay the program's.
#pragma once

#include <cuda.h>

#include <vector>

#include "interpose/forward/call.h"

namespace olpager::forward {

class JitOptions {
 public:
  /// CUDA_ERROR_INVALID_VALUE: an array is missing, or there is no such option;
  /// CUDA_ERROR_NOT_SUPPORTED, with a line: one that names symbols.
  CUresult read(unsigned count, const CUjit_option* options, void** values);
  void put(Call& call) const;
  /// Writes the program's logs, and in its values' array the values that the driver tells there.
  void take(Reader& reply) const;

 private:
  std::vector<CUjit_option> names_;
  std::vector<void*> given_;
  void** values_ = nullptr;
};

}  // namespace olpager::forward
