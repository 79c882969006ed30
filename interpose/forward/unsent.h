// Memory that the CPU and a running kernel both look at: the program's changes in a block of which
// the worker has a copy go with the next launch. A kernel that waits for it before that waits for
// ever, and so does a thread that waits for the kernel. Thread-safety: any thread. Locks: the block
// table's (block_table.h).
#pragma once

#include <chrono>

namespace olpager::forward {

class Session;

/// How long a thread waits without a word.
inline constexpr std::chrono::seconds kForUnsent{5};

/// True if the program has changed a block that kernels reach, and no launch has brought that to
/// the worker.
bool hasUnsent(const Session& session);
/// A line, once, where that is so.
void tellUnsent(const Session& session);

}  // namespace olpager::forward
