// The part of local mode that the generated residency wrappers use.
//
// Thread-safety: all of it may be called from any thread; nothing here takes a lock on the resident
// path. Ownership: the Runtime and what it points to live until the process ends.
#pragma once

#include <cuda.h>

#include <exception>

#include "interpose/api/driver_table.h"
#include "pager/pool.h"

namespace olpager::local {

struct Runtime {
  /// The driver's own functions. Never null: a wrapper is only reached once the driver is loaded.
  const api::DriverTable* driver = nullptr;
  /// Null while there is no pager (before cuInit, in a forked child, switched off): wrappers then
  /// call the driver.
  pager::Pool* pool = nullptr;
};

/// The process's runtime, as the calling thread may use it now. A load, no more.
const Runtime& localRuntime() noexcept;

/// The key of `stream` as the called symbol means it: NULL is CU_STREAM_LEGACY, or
/// CU_STREAM_PER_THREAD when `per_thread_default`; CU_STREAM_LEGACY and CU_STREAM_PER_THREAD
/// themselves stay. Adds the calling thread's current context and, for CU_STREAM_PER_THREAD, its
/// identity.
pager::StreamKey streamKey(CUstream stream, bool per_thread_default) noexcept;

/// streamKey(NULL, per_thread_default): for functions without a stream.
inline pager::StreamKey defaultStreamKey(bool per_thread_default) noexcept {
  return streamKey(nullptr, per_thread_default);
}

/// How a copy reads a source that is no memory of the pager's.
enum class HostRead : uint8_t {
  kNow,        // host memory, before the call returns
  kInOrder,    // host memory, when its stream comes to it
  kElsewhere,  // not known: it may be another device's
};
/// True if the CPU can look at the source now and sees what the copy will: host memory that the
/// driver reads before the call returns. With kNow that is any such memory, with kInOrder pageable
/// memory, which the driver takes into a buffer of its own. Asks the driver what the address is
/// (some 100 ns).
bool readableNow(const void* host, uint64_t bytes, HostRead read) noexcept;

/// True if a copy between there and a device waits, inside the driver's call, for what is before it
/// in its stream: from or to pageable memory, but for a few bytes that the driver takes at once;
/// with `sync` from or to any host memory. Asks the driver what the address is.
bool waitsInDriver(uint64_t address, uint64_t bytes, bool source, bool sync) noexcept;
/// Waits until the stream is done with what it has been given so far. The driver can be called
/// meanwhile. If the driver does not tell, as beside a capture, this does not wait.
void awaitStream(const pager::StreamKey& stream);

/// True if any context has ended over something that the driver does not know of (lost_memory.h). A
/// load.
bool contextsEnded() noexcept;
/// The answer then to an operation in `stream` that uses nothing of the pool's: the error of such a
/// context, else CUDA_SUCCESS.
CUresult endedIn(const pager::StreamKey& stream) noexcept;

/// True if operations put in the stream run now: the stream does not capture.
bool runsNow(const pager::StreamKey& stream);

/// Before the driver's call: makes what `access` names resident; when `stream` is capturing, adds
/// it to the capture's reach instead (the operation runs when the graph does). CUDA_SUCCESS, or
/// what the program is to see.
CUresult enter(pager::Access& access, const pager::StreamKey& stream);

/// After the driver's call, with its result.
void leave(pager::Access& access, const pager::StreamKey& stream, CUresult result);

/// A function of ours was left by an exception, which must not go on into the program: says so in
/// one line and gives the call's result, CUDA_ERROR_OUT_OF_MEMORY where the system refused memory
/// or a thread, else CUDA_ERROR_UNKNOWN.
CUresult failed(const char* function, const std::exception& error) noexcept;

}  // namespace olpager::local
