// Beside interpose/local/local_runtime.h: residency for launches.
#pragma once

#include "pager/pool.h"

namespace olpager::local {

/// As enter(), for a kernel or a graph. In a capture nothing is made resident for the call: the
/// driver only stores a kernel's parameters, while it looks at the addresses of a copy.
CUresult enterLaunch(pager::Access& access, const pager::StreamKey& stream);

/// A stream of `context` on which nothing ever runs: accesses that only hold memory mapped for a
/// call of the driver end there. nullptr when the driver gives none.
CUstream holdStream(CUcontext context);

/// The context is about to go: its stream from holdStream(), which serves nobody any more; nullptr:
/// it had none.
CUstream holdStreamGone(CUcontext context);

}  // namespace olpager::local
