// Launches in flight: who may still touch what.
//
// Every operation takes one global number. A region keeps the highest number that reached it
// (Region::stamp). A region is quiet when every stream has completed everything up to that number,
// and none is about to submit it. Three parties:
//
//   launching thread   enters its hazard slot (seq_cst), reads Region::blocked, counts itself in
//                      StreamState::pending, takes its number, raises Region::stamp, makes the
//                      driver call, raises StreamState::last, leaves `pending` and the slot
//                      (release).
//   engine             raises Region::blocked (seq_cst), takes a snapshot of the hazard slots and
//                      waits until each active one has moved on (a grace period): from then on
//                      every launch that saw the region unblocked has been submitted and is counted
//                      in StreamState::last.
//   marks              events recorded behind a stream's last launch; when one completes,
//                      StreamState::completed rises. A mark counts for every number up to `last`
//                      only if no launch of the stream is pending: several threads may launch on
//                      one stream, and a lower number may be submitted after a higher one. A stream
//                      that is found idle has completed every number that there is: it does not
//                      stand for what was old when its next launch came.
//
// A stream's event is recorded by the engine's thread; for a per-thread default stream by that
// thread itself, as no other can name it. Nothing is recorded while nothing is evicted, and nothing
// on a stream in capture: the driver is asked first, and while a stream may come to be in one
// nothing is recorded in its context (StreamTable::holdMarks). An event that got into a capture
// would end it when it is looked at. A context is never synchronised while something captures, in
// whichever mode: the driver refuses, and ends the captures. Nobody knows what no mark tells of
// then, until the captures are over.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "pager/driver_api.h"
#include "pager/locks.h"
#include "pager/types.h"

namespace olpager::pager {

/// Raises a number that several threads raise.
inline void raise(std::atomic<uint64_t>& value, uint64_t to) {
  uint64_t now = value.load(std::memory_order_relaxed);
  while (now < to && !value.compare_exchange_weak(now, to, std::memory_order_release,
                                                  std::memory_order_relaxed)) {
  }
}

/// One for each thread that launches, a cache line of its own. 0: idle; else a number that is
/// different at each entry.
struct alignas(64) HazardSlot {
  std::atomic<uint64_t> word{0};
  std::atomic<bool> used{false};
  // The owning thread's alone. A launch on several devices holds several accesses at once.
  uint64_t entries = 0;  // makes each entry's word a new one
  uint32_t depth = 0;

  void enter() {
    if (depth++ == 0) word.store(++entries, std::memory_order_seq_cst);
  }
  void leave() {
    if (--depth == 0) word.store(0, std::memory_order_release);
  }
};

/// The hazard slots of a process, in linked blocks. Type-stable: never freed.
class Hazards {
 public:
  static constexpr unsigned kBlockSlots = 512;
  /// This thread's slot, taken at its first call and given back when the thread ends.
  /// std::bad_alloc at a first call.
  HazardSlot* mine();
  /// Slots that are active now, to be waited for.
  struct Snapshot {
    std::vector<std::pair<const HazardSlot*, uint64_t>> active;
  };
  void snapshot(Snapshot& out) const;
  /// Drops those that have moved on; true when none is left.
  static bool passed(Snapshot& snapshot);

 private:
  struct Block {
    HazardSlot slots[kBlockSlots];
    std::atomic<unsigned> high{0};  // slots from here on were never used
    std::atomic<Block*> next{nullptr};
  };
  static HazardSlot* claim(Block& block);

  Block first_;
};
Hazards& hazards();

/// A stream of the program. Type-stable: an entry is reused by another stream after it died, never
/// freed.
struct StreamState {
  StreamKey key;
  /// Highest number submitted. Raised after the driver call, inside the hazard.
  std::atomic<uint64_t> last{0};
  /// Launches between taking their number and their submission.
  std::atomic<uint32_t> pending{0};
  std::atomic<uint64_t> completed{0};
  std::atomic<uint64_t> generation{0};  // odd: in use
  std::atomic<CUdevice> device{-1};     // of its context; known before its first launch is made
  std::atomic<uint64_t> managed{0};     // highest number that reached managed memory
  std::atomic<uint64_t> marked{0};      // highest number with a mark
  struct Mark {
    CUevent event;
    uint64_t number;
  };
  // Under StreamTable::mutex:
  std::deque<Mark> marks;  // oldest first
  // Per-thread stream with unmarked launches, or one destroyed while it captured: only a context
  // synchronisation tells.
  bool needs_drain = false;
  bool closing = false;      // the program destroys it: nobody begins a driver call for it any more
  bool gone = false;         // so does its context: what a call in progress brings is of no use,
  bool events_stay = false;  // but for an event, where that does not go with it
  bool ended =
      false;  // its thread has (a per-thread default stream): serves again when its work is over
  unsigned calls = 0;  // threads in a driver call for it, the mutex released
};

/// A launch, by its stream and its number. Copyable; it outlives the stream.
class StreamPoint {
 public:
  StreamPoint(const StreamState& stream, uint64_t number)
      : stream_(&stream), generation_(stream.generation.load()), number_(number) {}
  /// True if the launch has completed, as far as the marks tell. Any thread.
  bool isOver() const {
    // A stream that the program destroys goes on with its work. The state becomes another stream's,
    // two generations later, only when all of that work is over.
    if (stream_->generation.load(std::memory_order_acquire) > generation_ + 1 ||
        stream_->completed.load() >= number_)
      return true;
    // In this order: what is not pending any more is in `last`.
    return stream_->pending.load(std::memory_order_acquire) == 0 &&
           stream_->completed.load() >= stream_->last.load(std::memory_order_acquire);
  }
  bool isOn(const StreamState& stream) const {
    return stream_ == &stream && generation_ == stream.generation.load();
  }

 private:
  const StreamState* stream_;
  uint64_t generation_;
  uint64_t number_;
};

/// While it lives, calls of the driver by this thread are not refused because another's stream
/// captures, and spoil no capture. A capture may begin at any time: it is there also while nothing
/// captures.
class RelaxedThread {
 public:
  explicit RelaxedThread(const DriverApi& driver) : driver_(driver) {
    exchanged_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedThread() {
    if (exchanged_) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedThread(const RelaxedThread&) = delete;
  RelaxedThread& operator=(const RelaxedThread&) = delete;

 private:
  const DriverApi& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

/// Driver calls are made with the mutex released: one may wait for its context's lock while another
/// context's launches go on. A thread that takes a stream or a context away waits until no thread
/// is in a call for it.
// Many members: marks of all streams are asked after under one lock.
class StreamTable {
 public:
  /// `newest`: the number of the newest launch of all. Both are the caller's, for as long as the
  /// table lives.
  StreamTable(const DriverApi& driver, const std::atomic<uint64_t>& newest);
  ~StreamTable();
  /// The state of `key`, made at first use. Wait-free for the streams that this thread used last
  /// (kCachedStreams; of many more some are looked up again).
  StreamState* find(const StreamKey& key);
  static constexpr unsigned kCachedStreams = 256;
  static constexpr CUdevice kAllDevices = -2;
  /// Records a mark behind every stream's last launch that has none, and collects completed marks.
  /// An engine does it for the streams of its own device and of devices without an engine: a call
  /// may wait for a context's lock.
  void poll(CUdevice device = kAllDevices);
  /// The device's engine polls its streams from now on, or no more.
  void polls(CUdevice device, bool on);
  /// The launching thread's own mark, for per-thread default streams.
  void markOwn(StreamState* stream);
  /// A mark behind what the stream has been given, now: what it is given next may wait for the
  /// mark. Nothing where a capture or a hold forbids it.
  void markNow(StreamState* stream);
  /// The same for every stream.
  void markAll();
  /// The same, where what reached managed memory there last has no mark yet: the program may know
  /// that it is over and touch that memory, and what the stream is given next may wait for it.
  void markManaged(StreamState* stream) {
    const uint64_t number = stream->managed.load(std::memory_order_relaxed);
    if (number > stream->marked.load() && number > stream->completed.load()) markNow(stream);
  }
  /// The event is the stream's mark behind this launch, which has been submitted. nullptr: there is
  /// none, and only a synchronisation of the context tells.
  void marked(StreamState& stream, CUevent event, uint64_t number);
  /// An event of a context's, which nobody needs.
  void giveEvent(CUcontext context, CUevent event);
  /// True when every launch that reached something stamped `number` has completed, as far as the
  /// marks tell. One that has its number and is not submitted has not: stamps rise with the number,
  /// and whoever asks may have begun to wait before that.
  bool quiet(uint64_t number);
  /// 0: of what was launched on the device nothing is under way, as far as the marks tell. Else
  /// another number whenever more of it is over.
  uint64_t underWay(CUdevice device);
  /// The last launch of each stream that may not be over, of streams that are gone too. Launches
  /// that threads were about to submit are submitted.
  std::vector<StreamPoint> lastLaunches();
  /// Every launch up to this number has completed.
  uint64_t completedFloor(uint64_t upper);
  void streamDestroyed(const StreamKey& key);
  /// The thread with this StreamKey::thread has ended; of every table. At the end of threads, by
  /// itself.
  static void threadEnded(uint64_t thread);
  /// Before a context goes, whose work is over: forgets its streams. `events_stay`: the driver
  /// keeps the events recorded there (of a green context, whose are the primary one's), so they are
  /// destroyed.
  void contextGone(CUcontext context, bool events_stay = false);
  /// Before the driver is told to capture on a stream of `context`; holds marks, as below. Launches
  /// of the context that have no mark get one: on some streams (the legacy one beside a blocking
  /// stream's capture) nothing may be recorded before its end.
  void captureBegins(CUcontext context);
  /// After that, where the driver has begun to capture and where it has not. Ends the hold.
  void captureBegan(bool begun) {
    releaseMarks();
    if (!begun) captureEnded();
  }
  void captureEnded() { captures_.fetch_sub(1); }
  bool capturing() const { return captures_.load() > 0; }
  /// A stream of `context` (nullptr: of any) may be in a capture after what the caller does next.
  /// When it returns, no mark is being recorded there, and none is until releaseMarks(), but by
  /// threads on default streams of their own.
  void holdMarks(CUcontext context);
  void releaseMarks() {
    std::lock_guard lock(mutex_);
    if (--holds_ == 0) call_ended_.notify_all();
  }
  /// Waits for all work of a context, where nothing captures; else
  /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the driver is not asked. Every launch up to
  /// `number` has been submitted. The work is over if this returns CUDA_SUCCESS, or a result of
  /// which endsContext() is true.
  CUresult synchronize(CUcontext context, uint64_t number);
  /// Waits for what the streams of a context have been given, each by itself. The context is
  /// current, the thread relaxed. A stream that captures, or is another thread's own, is not waited
  /// for.
  void synchronizeEach(CUcontext context);
  /// Contexts of which the driver has said that nothing runs there any more, and that are not gone.
  std::vector<CUcontext> endedContexts() {
    std::lock_guard lock(mutex_);
    return ended_contexts_;
  }
  /// A context synchronisation has returned that began when every launch up to `number` had been
  /// submitted.
  void contextDrained(CUcontext context, uint64_t number);
  /// How often find() had to look through the table under its lock.
  uint64_t searches() {
    std::lock_guard lock(mutex_);
    return searches_;
  }
  /// States of streams that there are, in use or not.
  size_t states() {
    std::lock_guard lock(mutex_);
    return streams_.size();
  }
  /// Contexts with per-thread streams whose launches nobody marked.
  std::vector<CUcontext> contextsToDrain();

 private:
  using TableLock = std::unique_lock<base::HoldingMutex>;
  /// How long whoever begins to capture gives a thread that was about to synchronise a context to
  /// get into the driver, which looks at captures there and then. That it comes out again must not
  /// be waited for: a kernel may wait for what is captured.
  static constexpr std::chrono::milliseconds kIntoDriver{20};
  CUevent freeEvent(CUcontext context);
  bool record(StreamState& stream, TableLock& lock);
  void look(StreamState& stream, TableLock& lock);
  void lookIdle(StreamState& stream);
  void lookNow(StreamState& stream, TableLock& lock);
  void lookNowAtAll(CUcontext context, TableLock& lock);
  void hold(CUcontext context, TableLock& lock);
  void collect(StreamState& stream, TableLock& lock);
  void leaveCall(StreamState& stream);
  void noteEnded(CUcontext context, CUresult result);
  CUdevice pollerOf(const StreamState& stream, CUdevice asking) const;

  const DriverApi& driver_;
  const std::atomic<uint64_t>& newest_;
  uint64_t id_ = 0;  // unique in the process
  base::HoldingMutex mutex_{kStreamTableMutex};
  base::Condition call_ended_;
  std::vector<CUdevice> polled_devices_;
  std::vector<std::unique_ptr<StreamState>> streams_;
  struct FreeEvent {
    CUcontext context;
    CUevent event;
  };
  std::vector<FreeEvent> free_events_;
  std::vector<CUcontext> ended_contexts_;
  uint64_t searches_ = 0;
  unsigned holds_ = 0;          // callers between holdMarks() and releaseMarks()
  unsigned synchronising_ = 0;  // threads in cuCtxSynchronize, or about to be
  // Rises under the mutex: who finds it 0 there, and says under the mutex what it is about to call,
  // is waited for.
  std::atomic<int> captures_{0};
};

}  // namespace olpager::pager
