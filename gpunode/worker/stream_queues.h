// Queues of calls that stay behind a call which waits for memory.
//
// Problem: the leader makes a session's calls in the order in which they came. A call that waits
// for pages would hold up the calls of all other streams.
//
// Solution: later calls that have to stay behind the waiting one go into queues, as the records
// that came. The leader makes every other call at once. A queue ends when it is empty.
//
//   - A launch, copy or fill for which no thread waits is made in the name of an operation that can
//     be suspended (forwarding/operations.h). If it lacks pages, its record goes to the front of a
//     queue, and the call is made again when the pager says that it is resumable. One thread for
//     all queues, the runner, makes these calls, and the queued calls that only put work into a
//     stream. So a session has as many threads with a hundred waiting streams as with none.
//   - A call that may wait in another way stays on the thread that makes it: a call for which a
//     thread of the client's waits, a long copy, a wait for code (olpager_on_wait). That thread
//     leaves the lead, or the runner's place, and owns a queue. When its own call is over, it makes
//     the calls of its queue.
//   - A queue whose next call may wait in such a way gets a thread as well.
//
//   queue        calls in it                         later calls that stay behind it
//   a stream's   in that stream; no thread waits     those in that stream (table below)
//   apart        one, for which a thread waits       none
//   before all   in no stream; no thread waits       all, but those that end others' waits
//   aside        ends of events; no thread waits     those in no stream that name no event
//
// Besides the queues of waiting calls there is one queue aside and one before all.
//
// A call for which a client's thread waits stays behind earlier calls. No later call stays behind
// it: that thread stands still, and other threads may have to go on (the call may wait for a kernel
// that a later launch ends). The client also waits for the answers of calls that only put work into
// a stream, so that an error belongs to its call. Such a call is answered with success at once if
// it is queued or waits for memory, as natively it would return; frees and launches of graphs are
// not, because the client has a reason to wait. A later error is told as of other calls for which
// no thread waits.
//
// A place is a queue and a number of calls in the queue. The place is over when so many calls have
// been made; with `begun`, when the last of them is being made. Each queued call stays behind the
// calls before it in its queue, and behind these places:
//
//   a call that              stays behind
//   is in a stream           the legacy default stream: all blocking streams of its context; a
//                            blocking stream: the legacy default stream
//   records an event         all calls not yet made that name the event: records and waits
//   waits for an event, or   the event's record, and graphs that may record it; the call's stream
//   names it otherwise       gets a queue if it has none
//   launches a graph         all calls that name an event, if graphs of the session name events
//                            (the worker does not know which events a graph names)
//   begins or ends a         all: no earlier call is made during the capture. Calls for which a
//   capture                  thread waits have to have begun, not to be over
//   asks whether work is     nothing: it is made at once if it is behind nothing, and else answered
//   done                     with CUDA_ERROR_NOT_READY
//   opens a gate             the gate, while that is in a queue; no call comes between
//   (any later call)         a copy that the client was told is done
//   makes a new object, or   the queue before all: a free is in there, after which an address may
//   asks for what no work    be given out again (Fact::kOvertakes)
//   changes
//   ends others' waits, or   nothing
//   is alone (CopyHead)
//   is behind all            all, and calls for which a thread waits
//   (kBehindAll)
//   is in no stream, else    all
//
// The specification (calledWith()) has the order of a driver function; stream_queues.cpp names the
// other operations.
//
// Bounds: the leader waits while queues have more than kMostBytes or kMostCalls, as for a full
// stream. Events, gates and copies are remembered while a queued call needs them (gone()).
//
// Thread-safety: any thread; take() is the leader's, but for calls that open a gate. Locks: mutex_
// and facts_mutex_, each alone; nothing is called under them. Items of a queue are taken by its
// thread alone (`threaded`), else by the runner. A thread of a queue ends with the queue.
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

  /// The call that this thread makes waits for memory: calls behind it are queued from now on.
  /// `answer`: who waits for it is to be answered now, and may then send later calls.
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

  /// Called before each call is made: notes whether graphs of the session name events.
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
  /// The facts by which a call is ordered.
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
  struct Running;

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
