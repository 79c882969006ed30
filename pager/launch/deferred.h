// Kernels that are launched behind a host function of their stream and get their memory when the
// function has returned. The function may touch managed memory that they reach, and may wait for
// whoever launches them: so neither waits for the other. The driver has such a kernel, and does not
// run it before the function's end. At that end the function's thread acquires all that the kernel
// reaches, also by pointers that the function has written, and returns to the driver
// (Streams::hostFunctionEnded).
//
// The memory that deferred kernels reach is bounded: half of the VRAM of their engine (mayDefer). A
// kernel that exceeds the bound waits for the function, as does what is no kernel. Deferred kernels
// may reach more when the function has returned, and there need not be room for two of them. So
// each has a function before it: the second one in a stream gets one of the pager's own (takeTurn),
// which comes when the first one is over.
//
// A deferred kernel is younger than what was launched behind it meanwhile. So it has a state of
// its own among the streams, with a mark that is recorded right behind it by whoever launches it: a
// later function of the stream may touch what it reaches.
//
// Regions in `reached` are not freed meanwhile (dropRegion). A load of code waits for deferred
// kernels as long as a function is waited for. The kernels' stream may be destroyed. Under
// PoolState::mutex.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "pager/launch/operation.h"
#include "pager/types.h"

namespace olpager::pager {

struct PoolState;  // private
struct Region;     // private
class Streams;

struct DeferredLaunch {
  DeferredLaunch(const Operation& of, uint64_t number)
      : id(number), stream(of.stream), operation(of) {
    operation.stream.thread = uint64_t{1} << 63 | id;  // no thread has that
  }
  const uint64_t id;
  const StreamKey stream;
  CUdevice device = -1;
  uint64_t function = 0;  // HostFunctions' number
  uint64_t bytes = 0;     // reached
  Operation operation;
  std::vector<const Region*> reached;
  bool called = false;  // the driver has it, or has refused it
  CUevent mark = nullptr;
  bool served = false;  // it has its number
  Submission got;
};

/// Before a kernel of the stream is deferred: where another one is, a function of the pager's own
/// is put behind that. Returns whether it was. Under the mutex (released).
bool takeTurn(PoolState& state, Streams& streams, const StreamKey& stream, Lock& lock);
/// The driver call of the deferred kernel was made, or refused.
void deferredCalled(PoolState& state, uint64_t id, CUresult result);
/// The function is over: what waits for it acquires its memory. Calls no driver. Under the mutex
/// (released).
void serveDeferred(PoolState& state, uint64_t function, Lock& lock);
/// The context has ended: nothing of it runs any more. Under the mutex.
void dropDeferred(PoolState& state, CUcontext context);
/// Asks the driver of what is marked, and drops what waits in contexts that a kernel has ended:
/// host functions, which are not called any more, and what is deferred. For who waits for these.
/// Under the mutex (released).
void lookForEnded(PoolState& state, Lock& lock);

}  // namespace olpager::pager
