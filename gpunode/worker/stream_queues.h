// Queues of streams whose next call waits for memory: the leader goes on with other streams.
//
// A launch, copy or fill that nobody waits for is made in the name of an operation that can be
// suspended (forwarding/operations.h). Where it lacks pages it is put at the front of a queue, as
// the record that came, and made again when the pager says that it is resumable. One thread for all
// queues, the runner, makes these calls, and the calls of queues that only put something in a
// stream: so a session has as many threads with a hundred streams that wait as with none.
//
// What may wait in other ways stays on the thread that makes it: calls that somebody waits for,
// long copies, whatever waits for code (olpager_on_wait). That thread leaves the lead, or the
// runner's place, and owns a queue from then on. It makes what is in the queue when its own call is
// over. A queue whose next call is such a one gets a thread as well.
//
// What the leader takes meanwhile and what has to be behind it is put in queues; all else is made
// at once. A queue is gone when it is empty.
//
//   a queue is       of                             what comes later is behind it when it
//   a stream's       calls in that stream that      is in that stream (below)
//                    nobody waits for
//   apart            one call that somebody waits   -
//                    for
//   before all       calls that nobody waits for,   whatever it is, unless it ends others'
//                    and that are in no stream      waits
//   aside            calls that end events, and     is in no stream, and names no event
//                    that nobody waits for
//
// There is one aside, and one before all, beside those of waiting calls.
//
// What somebody waits for comes behind what is before it, and nothing comes behind it: the thread
// that waits does not go on, and others may have to (a call that waits for a kernel which a later
// launch ends). For the answer to a launch, or what else is only put in a stream, the client waits
// so that an error is the call's own. One that is queued, or waits for memory, is answered at once
// with success, as natively it would return, but for frees and launches of graphs, where the client
// has a reason to wait. What is wrong with it is told as of other calls that nobody waits for.
//
// A place is a queue and a number of calls in it. It is over when so many have been made; with
// `begun`, when the last of them is being made. Each call in a queue has the places that it is
// behind, beside those before it in its queue:
//
//   a call in a stream       the legacy default stream is behind all of its context's streams that
//                            block, and they are behind it
//   records an event         whatever names that event and is not made: an earlier record, waits
//   waits for an event, or   the event's record, and graphs that may record it; its stream gets a
//   names it otherwise       queue where it had none
//   launches a graph         where graphs of the session name events: whatever names one. Which
//                            events a graph names nobody here knows
//   begins or ends a         everything: no call that came before is made in the midst of it. What
//   capture                  somebody waits for has begun then, and need not be over
//   asks whether work is     is made at once where it is behind nothing, else answered with
//   done                     CUDA_ERROR_NOT_READY: no queue has it
//   opens a gate             the gate, where that is in a queue still; nothing comes between
//   (a copy that the client has been told is done: whatever comes later is behind it)
//   makes something new, or  only what is before all: a free, after which its address may be
//   asks what no work        given out again (Fact::kOvertakes)
//   changes
//   ends others' waits, or   nothing
//   is alone (CopyHead)
//   is behind all            everything, also what somebody waits for
//   (kBehindAll)
//   else, in no stream       everything
//
// What is known of a function's order is the specification's (calledWith()); what has no function
// of its own is named in stream_queues.cpp.
//
// Bounded: where more than kMostBytes or kMostCalls are in queues the leader waits, as for a stream
// that is full. What is kept of events, gates and copies is of calls in queues: gone() lets go of
// the rest.
//
// Thread-safety: any thread; take() is the leader's, but for what opens a gate. Locks: mutex_ and
// facts_mutex_, each alone; nothing is called under them. A queue's items are taken by its thread
// alone (`threaded`), else by the runner. A thread of a queue ends with the queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "forwarding/wire/wire.h"
#include "gpunode/worker/invocation.h"
#include "gpunode/worker/operations.h"

namespace olpager::gpunode {

class Worker;

class StreamQueues {
 public:
  using Record = std::vector<std::byte>;
  struct Queue;
  /// An operation that may be suspended, and what its call is then.
  struct Suspension {
    explicit Suspension(StreamQueues& of);
    StreamQueues& queues;
    bool resumable = false;  // under mutex_
    PagerOperation operation;
  };

  explicit StreamQueues(Worker& worker) : worker_(worker) {}
  /// Starts the runner. Without it calls wait on threads of their own. std::system_error.
  void start();

  /// False: nothing is in a queue, and no call needs take().
  bool any() const { return live_.load(std::memory_order_relaxed) != 0; }
  /// True: the call is in a queue now, or answered. False: it is behind nothing.
  bool take(const forward::CallHead& head, Record& record);

  /// The call that this thread makes waits for memory: what comes behind it is queued from now on.
  /// `answer`: who waits for it is to be answered now. What comes behind it may come then.
  std::shared_ptr<Queue> waits(const forward::CallHead& head, const Record& record, bool* answer);
  /// That call is over: makes what is queued behind it.
  void makeRest(const std::shared_ptr<Queue>& queue);

  /// In whose name the call may be made; nullptr: the thread that makes it waits for memory.
  /// `spare`: one that has not been of use is, and comes back there.
  std::unique_ptr<Suspension> suspensionFor(const forward::CallHead& head, const Record& record,
                                            std::unique_ptr<Suspension>& spare);
  static PagerOperation* operationOf(const std::unique_ptr<Suspension>& suspension) {
    return suspension != nullptr ? &suspension->operation : nullptr;
  }
  /// The leader's call was suspended. `waited`: where it had waited for something else before, on
  /// this thread.
  void suspended(const forward::CallHead& head, Record record,
                 std::unique_ptr<Suspension> suspension, const std::shared_ptr<Queue>& waited);
  /// The runner's call waits for something else: another thread is the runner from now on. False:
  /// the calling thread is not the runner.
  static bool runnerWaits();

  /// Of each call before it is made: whether graphs of the session name events from now on.
  void look(const forward::CallHead& head, forward::Reader arguments);

  /// The client has made a stream, and nothing captures in it yet: later the driver may not be
  /// asked what sort of stream it is, since that invalidates a capture. `number`: the client's, of
  /// which each stream has one of its own. Does nothing for one that is known, or of a default one.
  void streamIsThere(uint64_t number, CUstream stream);
  /// Does nothing for a number that is no stream's.
  void streamIsGone(uint64_t number);

 private:
  /// A stream as a call means it.
  struct Stream {
    CUcontext context = nullptr;
    CUstream stream = nullptr;  // nullptr: the legacy default one
    bool blocks = true;
    bool operator==(const Stream&) const = default;
  };
  /// What a call's order depends on.
  struct Order {
    enum class Kind : uint8_t {
      kAtOnce,
      kOvertakes,
      kInStream,
      kApart,
      kBeforeAll,
      kAside,
      kGoodbye,
    };
    Kind kind = Kind::kAtOnce;
    Stream stream;
    bool answers = false;          // somebody waits for it
    bool early = false;            // and natively would not
    std::vector<uint64_t> events;  // the client's numbers
    bool records = false;          // what the event stands for
    bool asks = false;             // whether work is done
    bool ends = false;             // what it names
    bool graph = false;            // launches one that may name any event
    bool told_done = false;        // the client takes it to be done
    bool behind_all = false;       // kBehindAll
    bool captures = false;         // a capture begins or ends
    uint32_t gate = 0;             // is put
    uint32_t opens = 0;            // a gate
  };
  /// As many of the queue's calls are before it.
  struct Place {
    std::shared_ptr<Queue> queue;
    uint64_t calls = 0;
    bool begun = false;
    bool over() const;
  };
  /// Calls in queues that name an event.
  struct Event {
    Place record;  // the last one
    std::vector<Place> all;
  };
  struct Item;

  static Order::Kind kindOf(const Order& order);
  Order orderOf(const forward::CallHead& head, const Record& record);
  bool streamOf(const forward::CallHead& head, uint64_t number, bool per_thread, Stream* stream);
  std::vector<Place> behindOf(const Order& order, const Queue* own) const;       // under mutex_
  std::shared_ptr<Queue> queueOf(Order::Kind kind, const Stream& stream) const;  // likewise
  void put(const std::shared_ptr<Queue>& queue, Item item, const Order& order);  // likewise
  void note(const Order& order, const Place& place);                             // likewise
  void awaitRoom(std::unique_lock<std::mutex>& lock);
  static bool allOver(const std::vector<Place>& places);  // under mutex_
  bool maySuspend(const forward::CallHead& head, const Record& record) const;
  void answerNow(const forward::CallHead& head, Record& record, bool first);
  bool giveThread(const std::shared_ptr<Queue>& queue);  // under mutex_
  void startRunner();                                    // likewise
  void run(uint64_t self);
  void runFront(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Queue>& queue,
                std::unique_ptr<Suspension>& spare);
  void made(std::unique_lock<std::mutex>& lock, Queue& queue, const Item& item);
  std::shared_ptr<Queue> nextToRun();                             // under mutex_
  static void add(std::vector<Place>& places, const Place& one);  // likewise
  void work(const std::shared_ptr<Queue>& queue);
  void gone(const Queue& queue);  // under mutex_

  static constexpr size_t kMostBytes = 256 << 20;
  static constexpr size_t kMostCalls = 1 << 14;

  Worker& worker_;
  std::atomic<size_t> live_{0};  // queues
  std::atomic<bool> graphs_name_events_{false};
  std::atomic<bool> runs_{false};               // there is a runner
  std::mutex facts_mutex_;                      // a leaf
  std::unordered_map<uint64_t, Stream> facts_;  // by the client's number

  std::mutex mutex_;
  std::condition_variable made_;
  std::condition_variable run_;  // the runner may have something to make
  uint64_t runner_ = 0;          // its number; 0: there is none
  uint64_t next_runner_ = 1;
  size_t turn_ = 0;  // of queues_, where the runner looks next
  std::vector<std::shared_ptr<Queue>> queues_;
  std::map<uint64_t, Event> events_;
  std::vector<Place> told_done_;
  std::vector<Place> graphs_;         // launches of such as may name any event
  std::map<uint32_t, Record> gates_;  // in queues, not put: what opens them, where that has come
  size_t calls_ = 0, bytes_ = 0;      // in queues
};

}  // namespace olpager::gpunode
