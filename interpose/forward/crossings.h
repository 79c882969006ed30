// What concerns two sessions: streams of one that wait for events of the other, and copies between their devices.
//
// A stream that has to wait for something elsewhere has a gate, which it waits at until this process opens it (Session::newGate). That a
// stream has come to some place the worker gives notice of (Session::expectNotice). An event elsewhere is waited for by a stream of the
// library's own there; the notice of its end opens the gate. An asynchronous copy is made by a courier at the notice that its stream has
// come to it, and opens the gate behind it when the bytes are there.
//
// What a gate waits for is lost with its session, or fails: the context of the stream behind it is broken, and its gate opens.
// Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>

namespace olpager::forward {

class Session;

/// A stream as a call names it, in the session that it belongs to.
struct StreamAt {
  Session* session = nullptr;
  CUstream stream = nullptr;
  bool per_thread = false;
};

/// Whose the program's stream is.
StreamAt streamAt(CUstream stream, bool per_thread);

/// A stream of the library's own in a session, for one user at a time.
class OwnStream {
 public:
  explicit OwnStream(Session* session);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  /// nullptr: the session is lost.
  CUstream stream() const { return stream_; }

 private:
  Session* const session_;
  CUstream stream_ = nullptr;
  uint64_t made_ = 0;  // how many contexts of the session were gone by then
};
/// A context of the session in this slot is gone, and streams of it.
void forgetOwnStreams(unsigned slot);

/// Runs `job` in a thread of the library's own when the stream comes to here; the stream goes on when it is over. What it returns breaks
/// the stream's context unless it is CUDA_SUCCESS.
CUresult runInStream(const StreamAt& at, std::function<CUresult()> job);

/// The stream waits for what the event, of another session, stands for now.
CUresult waitAcross(const StreamAt& at, Session* other, CUevent event, unsigned flags);

}  // namespace olpager::forward
