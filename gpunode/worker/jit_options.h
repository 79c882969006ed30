// The options of the compiler or the linker that a client sends (forwarding/wire/jit_wire.h), as
// the driver takes them. Logs are made here and their texts go back. Thread-safety: one thread at a
// time. The driver of a linker keeps pointers into it: it stays where it is.
#pragma once

#include <cuda.h>

#include <vector>

#include "gpunode/worker/invocation.h"

namespace olpager::gpunode {

class JitOptions {
 public:
  JitOptions() = default;
  JitOptions(const JitOptions&) = delete;
  JitOptions& operator=(const JitOptions&) = delete;

  /// False, and the arguments are nonsense, where a client's are not of this kind.
  bool read(Invocation& in);
  void put(forward::Writer& results) const;

  unsigned count() const { return static_cast<unsigned>(names_.size()); }
  CUjit_option* names() { return names_.empty() ? nullptr : names_.data(); }
  void** values() { return values_.empty() ? nullptr : values_.data(); }

 private:
  std::vector<CUjit_option> names_;
  std::vector<void*> values_;
  std::vector<std::vector<char>> logs_;  // of each option; empty where it is none
};

}  // namespace olpager::gpunode
