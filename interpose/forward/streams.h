// What functions of the library ask of the program's streams. Thread-safety: any thread.
#pragma once

#include "interpose/api/forward_functions.h"

namespace olpager::forward {

/// Waits for all that is in the stream, as the program's own call would. `per_thread`: what NULL stands for.
inline CUresult finishStream(CUstream stream, bool per_thread) {
  return per_thread ? ol_forward_generated_cuStreamSynchronize_ptsz(stream)
                    : ol_forward_generated_cuStreamSynchronize(stream);
}

}  // namespace olpager::forward
