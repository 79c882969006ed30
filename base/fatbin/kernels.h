// What code says of its kernels' parameters: of a container, a cubin or PTX text, whatever the
// driver takes of it. Thread-safety: pure functions. Ownership: the result views nothing.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fatbin/bytes.h"

namespace olpager::fatbin {

struct KernelTable {
  /// Bytes of each parameter, by the kernel's name. Where images of one code differ: the most.
  std::unordered_map<std::string, std::vector<uint32_t>> kernels;
  /// All of it could be read: there are no other kernels.
  bool whole = true;
};

/// All images of a container are read: each may have kernels that others have not.
KernelTable kernelsOf(Bytes image);

}  // namespace olpager::fatbin
