// Code shared by linear copies (copies.cpp) and boxes (copy_boxes.cpp): a copy's place in the
// order, and its steps. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "forwarding/wire/copies.h"
#include "forwarding/wire/wire.h"

namespace olpager::forward {

class Session;

/// A copy's place in the order.
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
/// The worker's address of the memory that a captured copy reads or writes here. The memory is
/// exchanged at each launch of the graph.
CUresult captureSide(const Where& where, uint64_t near, uint64_t bytes, uint64_t* there);

/// The client's side is memory that the worker has too: the GPU comes to it in stream order.
CUresult copyShared(Operation operation, const CopyHead& head, const Where& where);
CUresult awaitStream(const Where& where);
CUresult awaitFunctions(const Where& where);
/// Behind a copy between what is device memory here, of which a side is managed memory of the
/// view: to the program it is memory of the host, which it may touch when the call has returned.
CUresult awaitManaged(const Where& where, CUdeviceptr to, CUdeviceptr from);

/// True if a copy's host memory is at the worker: a driver takes any address, so a program may give
/// device memory, a mapping of its own there, or freed memory.
bool isAtWorker(const void* near);

CUresult copyBox(CUDA_MEMCPY3D box, CopyShape shape, const Where& given);

}  // namespace olpager::forward
