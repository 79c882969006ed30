// Variables in global memory that code has and its kernels may change. Thread-safety: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forwarding/wire/wire.h"

namespace olpager::forward {

/// The variables of a module or a library: each executor of a group has a copy of each. The driver
/// places all that it has, constants as well, when it is asked for one or when a kernel is loaded.
struct CodeState {
  VariableKind kind = VariableKind::kModule;
  uint64_t owner = 0;              // its handle
  bool readable = true;            // else nobody knows which it has
  std::vector<std::string> names;  // as the driver knows them
  bool places = false;             // it has some, these or others
};

/// The __device__ and __managed__ variables of an image (a container, a cubin or PTX text).
/// Literals count as none, nor do the objects without members of thrust, CUB and libcu++.
CodeState stateOf(std::span<const std::byte> image);

}  // namespace olpager::forward
