// A pool is told here of streams, captures and contexts.
#pragma once

#include <cuda.h>

#include "pager/types.h"

namespace olpager::pager {

struct PoolState;  // private

/// How the driver loads code.
enum class CodeLoad : uint8_t {
  kPlain,   // without managed memory: there is nothing to end
  kAlone,   // nothing runs, so that it waits for nobody: no handler is to run on its thread
  kBeside,  // something runs, and a touch of managed memory needs no call of the driver's
};

/// A part of Pool. Thread-safety: any thread.
class Streams {
 public:
  /// Before the driver destroys a stream.
  void streamDestroyed(const StreamKey& stream);
  /// Before the driver is told to capture on a stream of `context`, and after it has answered: in
  /// between the pager records no event there. While anything captures it records none on streams
  /// that do, and synchronises no context.
  void captureBegins(CUcontext context);
  void captureBegan(bool begun);
  void captureEnded();
  /// Between the first and the last of these calls of any capture.
  bool capturing() const;
  /// Before a host function is put in a stream that does not capture. `blocking`: the legacy
  /// default stream waits for that stream. Not 0: hostFunctionEnded() with that number has to
  /// follow, when the function has returned or was refused. `status`: what the driver says of the
  /// stream's work up to there. The driver calls callbacks alone if a kernel has ended the context.
  uint64_t hostFunctionBegins(const StreamKey& stream, bool blocking);
  void hostFunctionEnded(uint64_t number, CUresult status);
  /// Waits until no host function is before what the stream is given next, five seconds at most: a
  /// function may wait for what comes after it. Without managed memory it returns at once.
  void awaitHostFunctions(const StreamKey& stream);
  /// Before the driver loads code in the context (of an executor), or ends pinned memory: some wait
  /// for all that the context's streams have been given, and nothing that comes later runs before
  /// that, no copy of the pager's either. Waits as long for the context's host functions; or as
  /// long as it takes, where the driver does so in any case.
  void awaitHostFunctionsIn(CUcontext context, bool as_long_as_it_takes = false);
  /// Before and after a call for which the driver may load or unload code on the device
  /// (code_loads.h). With managed memory it waits for what runs there as long as that gets nearer
  /// to its end.
  CodeLoad codeLoadBegins(CUdevice device);
  void codeLoadEnded(CUdevice device);
  /// True if something that was launched on the device may not be over, as far as the marks tell.
  bool runs(CUdevice device);
  /// For an executor: waits until all that was launched is over, and the host functions that were
  /// put in streams, whatever the context, also of streams that were destroyed since. By marks, so
  /// a capture may begin meanwhile. Only the context of a stream destroyed while it captured
  /// is synchronised, where nothing captures. Once something captures it waits for no more: of some
  /// streams nobody can know then. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED says so.
  CUresult finishWork();
  /// The program has heard that the stream has done its work: the CPU may touch managed memory that
  /// it reached, whatever is put there next (StreamTable::markManaged).
  void markManaged(const StreamKey& stream);
  /// Before a stream waits for an event.
  void streamWaits(const StreamKey& stream);
  /// Before and after a call that may make a stream of `context` part of another's capture.
  void streamMayJoin(CUcontext context);
  void streamJoined();
  /// Before a context is destroyed or its device reset: drops its allocations and the pager's own
  /// objects in it.
  void contextGone(CUcontext context);
  /// Before a green context goes, by the context that stands for it: drops what there is of its
  /// streams. Allocations made there have been made in the primary context, and stay.
  void greenContextGone(CUcontext context);
  /// Another device may access this one's allocations from now on (cuCtxEnablePeerAccess).
  CUresult peerEnabled(CUdevice accessing, CUdevice owner);

 protected:
  explicit Streams(PoolState& state) : state_(&state) {}
  ~Streams() = default;

 private:
  PoolState* state_;
};

}  // namespace olpager::pager
