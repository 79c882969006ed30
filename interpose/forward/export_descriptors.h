// Descriptors that stand for exported memory on the program's side: a socket with the token in it,
// which goes where descriptors go (to children, by SCM_RIGHTS) and is closed by its holder. The
// other end stays here; when no process has the descriptor any more, the session hears of it and
// its worker lets go of the memory. Thread-safety: any thread. Lock: one of its own, a leaf. A
// thread of its own waits for the ends, from the first export on.
#pragma once

#include <mutex>
#include <vector>
#include "forwarding/wire/export_token.h"

#include "base/fd.h"

namespace olpager::forward {

class Session;

struct ExportedDescriptors {
  // One that the program, or who got it from the program, may still have.
  struct Exported {
    base::UniqueFd own_end;
    Session* session = nullptr;
    uint32_t number = 0;
  };
  std::mutex mutex;
  std::vector<Exported> all;
  base::UniqueFd changed;  // wakes the thread, which is there when this is
};

/// A new descriptor with the token; -1: there is none to be had (errno).
int exportDescriptor(Session* session, const ExportToken& token);
/// The token in a descriptor, which keeps it. False: it has none.
bool tokenIn(int descriptor, ExportToken* token);

}  // namespace olpager::forward
