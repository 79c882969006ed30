// What linear copies (copies.cpp) and boxes (copy_boxes.cpp) have in common: where a copy is
// ordered, and its steps. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "forwarding/wire/copies.h"
#include "forwarding/wire/wire.h"

namespace olpager::forward {

class Session;

/// Where a copy is ordered.
struct Where {
  CUstream stream = nullptr;
  bool per_thread = false;
  bool async = false;
  Session* session = nullptr;  // found out when the device's side is known

  Where in(Session* found) const { return {stream, per_thread, async, found}; }
};

CopyHead headOf(const Where& where);

/// A copy in a stream that captures: with memory that the worker has as well.
bool isCaptured(const Where& where);
/// Where the worker has what a captured copy reads or writes here. It is exchanged at each launch
/// of the graph.
CUresult captureSide(const Where& where, uint64_t near, uint64_t bytes, uint64_t* there);

/// The client's side is memory that the worker has too: the GPU comes to it in stream order.
CUresult copyShared(Operation operation, const CopyHead& head, const Where& where);
CUresult awaitStream(const Where& where);
CUresult awaitFunctions(const Where& where);
/// Behind a copy between what is device memory here, of which a side is managed memory of the
/// view: to the program it is memory of the host, which it may touch when the call has returned.
CUresult awaitManaged(const Where& where, CUdeviceptr to, CUdeviceptr from);

/// What the program gives as memory of the host may be the device's: a driver takes any address for
/// either. So is a mapping of the program's own there, and what was freed.
bool isAtWorker(const void* near);

CUresult copyBox(CUDA_MEMCPY3D box, CopyShape shape, const Where& given);

}  // namespace olpager::forward
