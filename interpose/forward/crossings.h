// Operations that concern two sessions: streams of one that wait for events of the other, and
// copies between their devices.
//
// A stream that has to wait for something elsewhere has a gate, which it waits at until this
// process opens it (Session::newGate). That a stream has come to some place the worker gives notice
// of (Session::expectNotice). An event elsewhere is waited for by a stream of the library's own
// there; the notice of its end opens the gate.
//
// The operation that a gate waits for is never submitted after it. GPUs have few queues for their
// streams: what stands at a gate in one of them holds up what other streams submit to it later, and
// if the gate waited for that, both would stand for ever (the driver's documentation of
// cuStreamWaitValue32 says as much). Events keep to this by themselves, as they were recorded
// before anybody waits for them. An asynchronous copy is therefore made by the call itself, once
// its stream has come to it (copies_between.h).
//
// If the operation that a gate waits for is lost with its session, or fails, the context of the
// stream behind the gate is broken, and the gate opens. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace olpager::forward {

class Session;

/// A stream as a call names it, in the session that it belongs to.
struct StreamAt {
  Session* session = nullptr;
  CUstream stream = nullptr;
  bool per_thread = false;
};

/// The session of one of the program's streams, and the stream's handle there.
StreamAt streamAt(CUstream stream, bool per_thread);

/// Streams of the library's own in a context that nobody uses: they go with it.
struct IdleStreams {
  std::mutex mutex;  // a leaf
  std::vector<CUstream> all;
};

/// A stream of the library's own in a session, for one user at a time. One whose context goes
/// meanwhile goes with it.
class OwnStream {
 public:
  explicit OwnStream(Session* session);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  /// nullptr: the session is lost.
  CUstream stream() const { return stream_; }

 private:
  std::weak_ptr<IdleStreams> idle_;  // of its context; null: it was made in none
  CUstream stream_ = nullptr;
};

/// The stream's worker gives that notice (Session::expectNotice) when the stream comes to here.
CUresult putNotice(const StreamAt& at, uint32_t notice);

/// The stream waits for what the event, of another session, stands for now.
CUresult waitAcross(const StreamAt& at, Session* other, CUevent event, unsigned flags);

}  // namespace olpager::forward
