// Tracks captures of the program's streams, and the threads to which each capture forbids calls:
// the worker makes all calls by threads of its own. There a capture is global or relaxed; each call
// says whether its thread may do as it likes. Thread-safety: any thread. Locks: one of each
// session's own, with that of threads.h below it.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "interpose/forward/program.h"

namespace olpager::forward {

class Session;
struct SessionParts;

/// Streams of a session's that capture. Program::capturing counts those of all sessions.
class Captures {
 public:
  struct Capture {
    CUstream stream;
    bool own;  // the default stream of its thread
    uint32_t thread;
    uint64_t context;  // the stream's
    CUstreamCaptureMode mode;
  };
  Captures() = default;
  ~Captures();
  Captures(const Captures&) = delete;
  Captures& operator=(const Captures&) = delete;

  void add(const Capture& capture);
  /// True if the calling thread may end the stream's capture.
  bool mayEnd(CUstream stream, bool per_thread) const;
  void end(CUstream stream, bool per_thread);
  /// captureForbids(), for a thread of this mode.
  bool forbids(uint32_t thread, CUstreamCaptureMode mode) const;
  /// Ends all of which this is so.
  template <typename Is>
  void endIf(Is is) {
    if (program().capturing.load() == 0) return;
    std::lock_guard lock(mutex_);
    program().capturing.fetch_sub(std::erase_if(all_, is));
  }

 private:
  std::vector<Capture>::const_iterator find(CUstream stream, bool per_thread) const;

  mutable std::mutex mutex_;
  std::vector<Capture> all_;
};
/// Those of streams of one context, which end with it.
class CapturesOfContext {
 public:
  CapturesOfContext(const SessionParts& session, uint64_t context)
      : session_(session), context_(context) {}
  ~CapturesOfContext();
  CapturesOfContext(const CapturesOfContext&) = delete;
  CapturesOfContext& operator=(const CapturesOfContext&) = delete;

 private:
  const SessionParts& session_;
  const uint64_t context_;
};

/// Graphs of a session's that allocate memory, and graphs made of them.
struct AllocatingGraphs {
  std::mutex mutex;  // a leaf
  std::set<CUgraph> graphs;
  std::set<CUgraphExec> execs;
  std::atomic<bool> any{false};  // that there ever was
};

/// Some stream of the process captures: enqueued work may become part of a graph, and then happens
/// at each of its launches.
inline bool capturing() { return program().capturing.load(std::memory_order_relaxed) > 0; }
/// True if a capture forbids this thread calls that can't be part of a graph: one of its own that
/// is not relaxed, or any that is global, unless the thread has exchanged its mode.
bool captureForbids();
/// This one does; asks the worker. Also one that has joined the capture of another by an event.
bool captures(CUstream stream, bool per_thread);

/// A thread ends, and the captures of its default streams with it, which nobody ends.
void endCapturesOfThread();

/// A node of the graph allocates memory, or its capture does: launches of what is made of it may be
/// refused, and are waited for.
void noteAllocates(const Session& session, CUgraph graph);
/// The graph that the stream's capture adds to; null: it does not capture. Asks the worker.
CUgraph capturedGraph(CUstream stream, bool per_thread);

/// Asks for the changes that earlier operations of the stream may have made to exchanged memory
/// that kernels reach (exchange.h), and to these blocks, which only they use. Does not wait: the
/// changes come by themselves (arrivals.h).
void changesBehind(Session* session, CUstream stream, bool per_thread,
                   std::span<const uint64_t> own = {});

}  // namespace olpager::forward
