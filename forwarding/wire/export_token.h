// The token of memory that a program has exported as a file descriptor
// (cuMemExportToShareableHandle). The memory itself is in a worker, and what the driver exports it
// by never leaves the gpunode: the program's descriptor is a socket with the token in it, to be
// looked at, not taken. A process that has the descriptor has the token, as natively it has the
// memory; the token is a claim, and the worker that made it says what it names.
#pragma once

#include <cstdint>

namespace olpager::forward {

inline constexpr uint64_t kExportMagic = 0x3174'7270'7865'6c6f;  // "olexprt1"

struct ExportToken {
  uint64_t magic = kExportMagic;
  uint64_t socket = 0;  // where the exporting worker answers, with its process's number
  uint32_t process = 0;
  uint32_t number = 0;      // of the export, in that worker
  uint64_t secret[2] = {};  // random: without the token nobody can ask for it
};
static_assert(sizeof(ExportToken) == 40);

}  // namespace olpager::forward
