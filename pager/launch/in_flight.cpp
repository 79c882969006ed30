#include "pager/launch/in_flight.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <optional>

namespace olpager::pager {

namespace {

thread_local HazardSlot* my_slot = nullptr;

struct StreamCache {
  uint64_t table = 0;  // StreamTable::id(): a later table may have an earlier one's address
  StreamKey key;       // the state's own may be rewritten for another stream
  StreamState* stream = nullptr;
  uint64_t generation = 0;
};
// The streams that a thread launches on in turns, in sets by their handles; of a set the oldest
// goes. On the heap: a preloaded library takes of what all have for static thread-local storage.
struct StreamCaches {
  static constexpr unsigned kWays = 8, kSets = StreamTable::kCachedStreams / kWays;
  struct Set {
    StreamCache ways[kWays];
    unsigned oldest = 0;
  };
  Set sets[kSets];
  StreamCache* last = &sets[0].ways[0];  // where the thread's last launch was found
  uint64_t thread = 0;  // as keys of its default stream name it; 0: it has launched on none

  Set& setOf(const StreamKey& key) {
    // Handles are addresses of objects of some hundred bytes, or small numbers.
    const uint64_t bits =
        (reinterpret_cast<uint64_t>(key.stream) ^ reinterpret_cast<uint64_t>(key.context) << 20) *
        0x9e3779b97f4a7c15ull;
    return sets[(bits >> 32) % kSets];
  }
};
thread_local StreamCaches* my_caches = nullptr;

// Tables of this process, for threads that end.
struct Tables {
  base::HoldingMutex mutex{kStreamTablesMutex};
  std::vector<StreamTable*> all;
  // The process that has made the first one. A child that it forks later has none of its threads,
  // and can't have the locks.
  const pid_t process = getpid();
};
Tables& tables() {
  static auto* const instance = new Tables;
  return *instance;
}

pthread_key_t slot_key, caches_key;
pthread_once_t slot_key_once = PTHREAD_ONCE_INIT, caches_key_once = PTHREAD_ONCE_INIT;

void releaseCaches(void* caches) {
  my_caches = nullptr;
  const uint64_t thread = static_cast<StreamCaches*>(caches)->thread;
  delete static_cast<StreamCaches*>(caches);
  if (thread != 0 && getpid() == tables().process) StreamTable::threadEnded(thread);
}

void makeCachesKey() { pthread_key_create(&caches_key, releaseCaches); }

// std::bad_alloc at a thread's first call.
StreamCaches& cachesOfThread() {
  if (my_caches != nullptr) return *my_caches;
  pthread_once(&caches_key_once, makeCachesKey);
  my_caches = new StreamCaches;
  pthread_setspecific(caches_key, my_caches);
  return *my_caches;
}

void releaseSlot(void* slot) {
  my_slot = nullptr;
  static_cast<HazardSlot*>(slot)->word.store(0, std::memory_order_release);
  static_cast<HazardSlot*>(slot)->used.store(false, std::memory_order_release);
}

void makeSlotKey() { pthread_key_create(&slot_key, releaseSlot); }

}  // namespace

Hazards& hazards() {
  static Hazards* instance =
      new Hazards;  // never destroyed: threads may launch while the process exits
  return *instance;
}

HazardSlot* Hazards::claim(Block& block) {
  for (unsigned i = 0; i < kBlockSlots; ++i) {
    HazardSlot& slot = block.slots[i];
    bool expected = false;
    if (slot.used.load(std::memory_order_relaxed) ||
        !slot.used.compare_exchange_strong(expected, true))
      continue;
    unsigned high = block.high.load();
    while (high < i + 1 && !block.high.compare_exchange_weak(high, i + 1)) {
    }
    return &slot;
  }
  return nullptr;
}

HazardSlot* Hazards::mine() {
  if (my_slot != nullptr) return my_slot;
  pthread_once(&slot_key_once, makeSlotKey);
  Block* block = &first_;
  HazardSlot* slot = claim(*block);
  while (slot == nullptr) {
    Block* next = block->next.load();
    if (next == nullptr) {
      auto more = std::make_unique<Block>();
      if (block->next.compare_exchange_strong(next, more.get())) next = more.release();
    }
    block = next;
    slot = claim(*block);
  }
  my_slot = slot;
  pthread_setspecific(slot_key, my_slot);
  return my_slot;
}

void Hazards::snapshot(Snapshot& out) const {
  out.active.clear();
  // No fence: the marks that the caller made are seq_cst, as are the slots (and the ways to them)
  // and what launches read of the marks.
  for (const Block* block = &first_; block != nullptr; block = block->next.load()) {
    const unsigned high = block->high.load();
    for (unsigned i = 0; i < high; ++i) {
      const uint64_t word = block->slots[i].word.load(std::memory_order_seq_cst);
      if (word != 0) out.active.emplace_back(&block->slots[i], word);
    }
  }
}

bool Hazards::passed(Snapshot& snapshot) {
  std::erase_if(snapshot.active, [](const auto& entry) {
    return entry.first->word.load(std::memory_order_acquire) != entry.second;
  });
  return snapshot.active.empty();
}

StreamTable::StreamTable(const DriverApi& driver, const std::atomic<uint64_t>& newest)
    : driver_(driver), newest_(newest) {
  static std::atomic<uint64_t> made{0};
  id_ = made.fetch_add(1) + 1;
  std::lock_guard lock(tables().mutex);
  tables().all.push_back(this);
}

// Events die with their contexts; no driver call at exit.
StreamTable::~StreamTable() {
  if (getpid() != tables().process) return;
  std::lock_guard lock(tables().mutex);
  std::erase(tables().all, this);
}

void StreamTable::threadEnded(uint64_t thread) {
  std::lock_guard lock(tables().mutex);
  for (StreamTable* const table : tables().all) {
    std::lock_guard own(table->mutex_);
    for (auto& stream : table->streams_)
      if (stream->key.thread == thread) stream->ended = true;
  }
}

StreamState* StreamTable::find(const StreamKey& key) {
  StreamCaches& caches = cachesOfThread();
  const auto holds = [&](const StreamCache& entry) {
    return entry.key == key && entry.table == id_ &&
           entry.stream->generation.load(std::memory_order_acquire) == entry.generation;
  };
  if (holds(*caches.last)) return caches.last->stream;
  StreamCaches::Set& set = caches.setOf(key);
  for (StreamCache& entry : set.ways) {
    if (!holds(entry)) continue;
    caches.last = &entry;
    return entry.stream;
  }
  if (key.thread != 0) caches.thread = key.thread;
  std::lock_guard lock(mutex_);
  ++searches_;
  StreamState* found = nullptr;
  StreamState* unused = nullptr;
  for (auto& stream : streams_) {
    bool live = (stream->generation.load(std::memory_order_relaxed) & 1) != 0;
    if (live && stream->key == key) {
      found = stream.get();
      found->ended = false;  // a destructor of the thread's launches still
      break;
    }
    if (live && stream->ended && stream->pending.load() == 0 &&
        stream->completed.load() >= stream->last.load()) {
      stream->generation.fetch_add(1, std::memory_order_release);
      live = false;
    }
    // One that was destroyed while it captured may have neither a mark nor come to its end.
    const bool over = stream->completed.load() >= stream->last.load();
    if (!live && over && stream->marks.empty() && stream->calls == 0) unused = stream.get();
  }
  if (found == nullptr) {
    if (unused == nullptr) {
      streams_.push_back(std::make_unique<StreamState>());
      unused = streams_.back().get();
    }
    found = unused;
    found->key = key;
    found->last.store(0);
    found->completed.store(newest_.load());
    found->pending.store(0);
    found->managed.store(0);
    found->marked.store(0);
    found->needs_drain = false;
    found->ended = false;
    found->device.store(-1);
    found->generation.fetch_add(1, std::memory_order_release);
  }
  caches.last = &set.ways[set.oldest];
  set.oldest = (set.oldest + 1) % StreamCaches::kWays;
  *caches.last = {id_, key, found, found->generation.load()};
  return found;
}

CUevent StreamTable::freeEvent(CUcontext context) {
  for (auto it = free_events_.begin(); it != free_events_.end(); ++it) {
    if (it->context != context) continue;
    const CUevent event = it->event;
    free_events_.erase(it);
    return event;
  }
  return nullptr;
}

void StreamTable::leaveCall(StreamState& stream) {
  if (--stream.calls == 0) call_ended_.notify_all();
}

void StreamTable::noteEnded(CUcontext context, CUresult result) {
  if (!endsContext(result) ||
      std::find(ended_contexts_.begin(), ended_contexts_.end(), context) != ended_contexts_.end())
    return;
  ended_contexts_.push_back(context);
}

// Records a mark behind the last launch. The stream's context is made current for it.
bool StreamTable::record(StreamState& stream, TableLock& lock) {
  const uint64_t number = stream.last.load(std::memory_order_acquire);
  if (stream.pending.load(std::memory_order_acquire) != 0)
    return false;  // in this order: see the header
  const StreamKey key = stream.key;
  CUevent event = freeEvent(key.context);
  const base::HeldSignals held;  // the driver has locks of its own
  ++stream.calls;
  lock.unlock();
  bool recorded = false;
  CUresult result = CUDA_SUCCESS;
  if (const InContext current(driver_, key.context); (result = current.result()) == CUDA_SUCCESS) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    // A legacy stream that is asked while another captures in global mode answers with an error:
    // wait for the capture's end.
    result = driver_.cuStreamIsCapturing(key.stream, &status);
    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) {
      if (event == nullptr) result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
      if (result != CUDA_SUCCESS) event = nullptr;
      if (event != nullptr) result = driver_.cuEventRecord(event, key.stream);
      recorded = event != nullptr && result == CUDA_SUCCESS;
    }
  }
  lock.lock();
  leaveCall(stream);
  if (stream.gone) {
    if (event != nullptr && stream.events_stay)
      free_events_.push_back({key.context, event});  // for contextGone()
    return false;
  }
  // As in collect(): in a context that a kernel has broken nothing runs any more, nor can it be
  // marked.
  if (endsContext(result)) stream.completed.store(std::max(stream.completed.load(), number));
  noteEnded(key.context, result);
  if (recorded) {
    stream.marks.push_back({event, number});
    raise(stream.marked, number);
  } else if (event != nullptr) {
    free_events_.push_back({key.context, event});
  }
  return recorded;
}

// Takes the marks that have come.
void StreamTable::collect(StreamState& stream, TableLock& lock) {
  while (!stream.marks.empty() && stream.calls == 0 && !stream.gone) {
    const StreamState::Mark mark = stream.marks.front();
    const base::HeldSignals held;
    ++stream.calls;
    lock.unlock();
    const CUresult result = driver_.cuEventQuery(mark.event);
    lock.lock();
    leaveCall(stream);
    if (result == CUDA_ERROR_NOT_READY || stream.gone) return;
    stream.marks.pop_front();
    free_events_.push_back({stream.key.context, mark.event});
    // A mark that got into a capture tells nothing. A new mark is recorded behind the same work.
    if (refusedByCapture(result)) {
      stream.needs_drain |=
          (stream.generation.load() & 1) == 0;  // no stream is there any more to record one on
      continue;
    }
    // Any other answer ends the wait too: in a context that a kernel has broken nothing runs any
    // more.
    stream.completed.store(std::max(stream.completed.load(), mark.number));
    noteEnded(stream.key.context, result);
  }
}

// A stream with nothing under way has completed all that has a number by now.
void StreamTable::lookIdle(StreamState& stream) {
  // In this order: a launch is counted in `pending` before it gets its number, and what is not
  // pending any more is in `last`.
  const uint64_t newest = newest_.load();
  if (stream.pending.load(std::memory_order_acquire) != 0) return;
  const uint64_t completed = stream.completed.load();
  if (completed >= stream.last.load(std::memory_order_acquire) && completed < newest)
    stream.completed.store(newest);
}

// Takes the marks that have come, and records one where the last launch has none.
void StreamTable::look(StreamState& stream, TableLock& lock) {
  collect(stream, lock);
  lookIdle(stream);
  if (stream.calls > 0) return;  // another thread is about to know
  if ((stream.generation.load() & 1) == 0 || stream.closing) return;
  const uint64_t last = stream.last.load(std::memory_order_acquire);
  const uint64_t marked =
      stream.marks.empty() ? stream.completed.load() : stream.marks.back().number;
  if (last <= marked) return;
  const uint64_t thread = stream.key.thread;
  if (thread != 0 && (my_caches == nullptr || my_caches->thread != thread)) {
    stream.needs_drain = true;
  } else if (thread != 0 ||
             holds_ == 0) {  // nobody but this thread makes its default stream part of a capture
    record(stream, lock);
  }
}

// As look(), also where another thread is in a call for the stream: it may be asking for an older
// mark.
void StreamTable::lookNow(StreamState& stream, TableLock& lock) {
  call_ended_.wait(lock, [&stream] { return stream.calls == 0; });
  look(stream, lock);
}

// Looks at the streams of `context`; nullptr: at all. If the system gives no memory, less is known
// for a while.
void StreamTable::lookNowAtAll(CUcontext context, TableLock& lock) {
  try {
    for (size_t i = 0; i < streams_.size(); ++i) {  // by index: there may be more meanwhile
      StreamState& stream = *streams_[i];
      if (context == nullptr || stream.key.context == context) lookNow(stream, lock);
    }
  } catch (const std::bad_alloc&) {
    // The next poll goes on.
  }
}

void StreamTable::poll(CUdevice device) {
  // Engines' threads are relaxed all their lives; who asks of all devices is a thread of the
  // program.
  std::optional<RelaxedThread> relaxed;
  if (device == kAllDevices) relaxed.emplace(driver_);
  TableLock lock(mutex_);
  try {
    for (size_t i = 0; i < streams_.size(); ++i) {  // by index: there may be more meanwhile
      StreamState& stream = *streams_[i];
      if (device != kAllDevices && pollerOf(stream, device) != device) continue;
      look(stream, lock);
    }
  } catch (const std::bad_alloc&) {
    // The next poll goes on.
  }
}

// Under the mutex: who is in a call has said so, and who comes later finds holds_.
void StreamTable::hold(CUcontext context, TableLock& lock) {
  ++holds_;
  call_ended_.wait(lock, [&] {
    return std::none_of(streams_.begin(), streams_.end(), [context](const auto& stream) {
      return stream->calls > 0 && (context == nullptr || stream->key.context == context);
    });
  });
}

void StreamTable::holdMarks(CUcontext context) {
  TableLock lock(mutex_);
  hold(context, lock);
}

void StreamTable::captureBegins(CUcontext context) {
  const RelaxedThread relaxed(driver_);
  TableLock lock(mutex_);
  lookNowAtAll(context, lock);  // who is in a call for one records no mark once it finds holds_
  captures_.fetch_add(1);
  hold(context, lock);
  call_ended_.wait_for(lock, kIntoDriver, [this] { return synchronising_ == 0; });
}

CUresult StreamTable::synchronize(CUcontext context, uint64_t number) {
  {
    const TableLock lock(mutex_);
    if (capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    ++synchronising_;
  }
  CUresult result = CUDA_SUCCESS;
  if (const InContext current(driver_, context); (result = current.result()) == CUDA_SUCCESS)
    result = driver_.cuCtxSynchronize();
  {
    const TableLock lock(mutex_);
    if (--synchronising_ == 0) call_ended_.notify_all();
    noteEnded(context, result);
  }
  // Any other answer is about the call: kernels may run on.
  if (result == CUDA_SUCCESS || endsContext(result)) contextDrained(context, number);
  return result;
}

void StreamTable::synchronizeEach(CUcontext context) {
  TableLock lock(mutex_);
  for (size_t i = 0; i < streams_.size(); ++i) {  // by index: there may be more meanwhile
    StreamState& stream = *streams_[i];
    if (stream.key.context != context || stream.gone) continue;
    const bool live =
        (stream.generation.load() & 1) != 0 && !stream.closing && stream.key.thread == 0;
    if (!live && stream.marks.empty()) continue;
    // Launches behind the last mark are known of a live stream alone.
    const uint64_t number =
        live ? stream.last.load(std::memory_order_acquire) : stream.marks.back().number;
    const CUevent event = live ? nullptr : stream.marks.back().event;
    if (stream.completed.load() >= number) continue;
    ++stream.calls;
    lock.unlock();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = live ? driver_.cuStreamIsCapturing(stream.key.stream, &status) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS &&
        status == CU_STREAM_CAPTURE_STATUS_NONE) {  // else it would spoil the capture
      result =
          live ? driver_.cuStreamSynchronize(stream.key.stream) : driver_.cuEventSynchronize(event);
    } else if (result == CUDA_SUCCESS) {
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    lock.lock();
    leaveCall(stream);
    if (result == CUDA_SUCCESS || endsContext(result))
      stream.completed.store(std::max(stream.completed.load(), number));
  }
}

// A device's engine looks after its own streams; those of devices without an engine are anybody's.
CUdevice StreamTable::pollerOf(const StreamState& stream, CUdevice asking) const {
  const CUdevice device = stream.device.load(std::memory_order_relaxed);
  return std::find(polled_devices_.begin(), polled_devices_.end(), device) != polled_devices_.end()
             ? device
             : asking;
}

void StreamTable::polls(CUdevice device, bool on) {
  const TableLock lock(mutex_);
  std::erase(polled_devices_, device);
  if (on) polled_devices_.push_back(device);
}

void StreamTable::markOwn(StreamState* stream) {
  constexpr size_t kMostMarks = 64;
  TableLock lock(mutex_);
  stream->needs_drain = false;
  try {
    if (stream->marks.size() >= kMostMarks) collect(*stream, lock);  // nobody polls while all stays
    if (!stream->closing) record(*stream, lock);
  } catch (const std::bad_alloc&) {
    stream->needs_drain = true;  // the launch was made: its end is found out by a synchronisation
  }
}

void StreamTable::markNow(StreamState* stream) {
  const RelaxedThread relaxed(driver_);
  TableLock lock(mutex_);
  try {
    lookNow(*stream, lock);
  } catch (const std::bad_alloc&) {
    // The next poll goes on.
  }
}

void StreamTable::markAll() {
  const RelaxedThread relaxed(driver_);
  TableLock lock(mutex_);
  // Nothing is recorded while somebody holds marks: that lasts as long as a call of the driver's.
  call_ended_.wait_for(lock, kIntoDriver, [this] { return holds_ == 0; });
  lookNowAtAll(nullptr, lock);
}

void StreamTable::marked(StreamState& stream, CUevent event, uint64_t number) {
  const TableLock lock(mutex_);
  if (event != nullptr)
    stream.marks.push_back({event, number});
  else
    stream.needs_drain = true;
}

void StreamTable::giveEvent(CUcontext context, CUevent event) {
  const TableLock lock(mutex_);
  free_events_.push_back({context, event});
}

bool StreamTable::quiet(uint64_t number) {
  std::lock_guard lock(mutex_);
  for (auto& stream : streams_) {
    const uint64_t completed = stream->completed.load();
    if (completed >= number) continue;
    // In this order: what is not pending any more is in `last`.
    if (stream->pending.load(std::memory_order_acquire) != 0 ||
        completed < stream->last.load(std::memory_order_acquire))
      return false;
  }
  return true;
}

uint64_t StreamTable::underWay(CUdevice device) {
  std::lock_guard lock(mutex_);
  uint64_t found = 0;
  for (auto& stream : streams_) {
    const CUdevice of = stream->device.load(std::memory_order_relaxed);
    if (device != kAllDevices && of >= 0 && of != device) continue;
    const uint64_t completed = stream->completed.load();
    // In this order: what is not pending any more is in `last`.
    if (stream->pending.load(std::memory_order_acquire) != 0 ||
        completed < stream->last.load(std::memory_order_acquire))
      found += completed + 1;
  }
  return found;
}

std::vector<StreamPoint> StreamTable::lastLaunches() {
  std::vector<StreamPoint> found;
  std::lock_guard lock(mutex_);
  for (auto& stream : streams_) {
    const uint64_t last = stream->last.load(std::memory_order_acquire);
    if (stream->completed.load() < last) found.emplace_back(*stream, last);
  }
  return found;
}

uint64_t StreamTable::completedFloor(uint64_t upper) {
  std::lock_guard lock(mutex_);
  uint64_t floor = upper;
  for (auto& stream : streams_) {
    const uint64_t completed = stream->completed.load();
    if (stream->pending.load(std::memory_order_acquire) != 0 ||
        completed < stream->last.load(std::memory_order_acquire))
      floor = std::min(floor, completed);
  }
  return floor;
}

void StreamTable::streamDestroyed(const StreamKey& key) {
  const RelaxedThread relaxed(driver_);
  TableLock lock(mutex_);
  StreamState* gone = nullptr;
  for (auto& stream : streams_)
    if ((stream->generation.load() & 1) != 0 && !stream->closing && stream->key == key)
      gone = stream.get();
  if (gone == nullptr) return;
  gone->closing = true;
  // The work goes on after the handle is gone: its end must still be seen.
  const uint64_t last = gone->last.load(std::memory_order_acquire);
  const uint64_t marked = gone->marks.empty() ? gone->completed.load() : gone->marks.back().number;
  if (last > marked && !record(*gone, lock)) {
    lock.unlock();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = driver_.cuStreamIsCapturing(key.stream, &status);
    if (result == CUDA_SUCCESS)  // to wait for one that captures would spoil the capture
      result = status == CU_STREAM_CAPTURE_STATUS_NONE ? driver_.cuStreamSynchronize(key.stream)
                                                       : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    lock.lock();
    if (result == CUDA_SUCCESS || endsContext(result)) {
      gone->completed.store(std::max(gone->completed.load(), last));
    } else {
      gone->needs_drain = true;  // it captures: what it ran before goes on
    }
  }
  call_ended_.wait(lock, [gone] { return gone->calls == 0; });
  gone->closing = false;
  gone->generation.fetch_add(1, std::memory_order_release);
  // Others that went before: once their work is over their states serve again.
  for (size_t i = 0; i < streams_.size(); ++i) {
    StreamState& before = *streams_[i];
    if ((before.generation.load() & 1) == 0 && !before.marks.empty()) collect(before, lock);
  }
}

void StreamTable::contextGone(CUcontext context, bool events_stay) {
  std::vector<CUevent> left;
  const auto keep = [&](CUevent event) {
    if (!events_stay) return;
    try {
      left.push_back(event);
    } catch (const std::bad_alloc&) {  // then it stays for good
    }
  };
  TableLock lock(mutex_);
  const auto ofContext = [context](const auto& stream) { return stream->key.context == context; };
  const auto dropMarks = [&keep](StreamState& stream) {
    for (const StreamState::Mark& mark : stream.marks) keep(mark.event);
    stream.marks.clear();
  };
  for (auto& stream : streams_) {
    if (!ofContext(stream)) continue;
    stream->closing = stream->gone = true;
    stream->events_stay = events_stay;
    dropMarks(*stream);
    stream->completed.store(stream->last.load());
  }
  call_ended_.wait(lock, [&] {
    return std::none_of(streams_.begin(), streams_.end(),
                        [&](const auto& stream) { return ofContext(stream) && stream->calls > 0; });
  });
  for (auto& stream : streams_) {
    if (!ofContext(stream)) continue;
    dropMarks(*stream);  // of one that a launch beside the context's end has made meanwhile
    stream->closing = stream->gone = false;
    if ((stream->generation.load() & 1) != 0)
      stream->generation.fetch_add(1, std::memory_order_release);
  }
  std::erase(ended_contexts_, context);  // another one may get its handle
  std::erase_if(free_events_, [&](const FreeEvent& event) {
    if (event.context != context) return false;
    keep(event.event);
    return true;
  });
  lock.unlock();
  for (const CUevent event : left) static_cast<void>(driver_.cuEventDestroy_v2(event));
}

void StreamTable::contextDrained(CUcontext context, uint64_t number) {
  std::lock_guard lock(mutex_);
  for (auto& stream : streams_) {
    if (stream->key.context != context) continue;
    const uint64_t upto = std::min(number, stream->last.load());
    stream->completed.store(std::max(stream->completed.load(), upto));
    if (stream->completed.load() >= stream->last.load()) stream->needs_drain = false;
  }
}

std::vector<CUcontext> StreamTable::contextsToDrain() {
  std::lock_guard lock(mutex_);
  std::vector<CUcontext> found;
  for (auto& stream : streams_) {
    if (!stream->needs_drain ||
        stream->completed.load() >= stream->last.load(std::memory_order_acquire))
      continue;
    if (std::find(found.begin(), found.end(), stream->key.context) == found.end())
      found.push_back(stream->key.context);
  }
  return found;
}

}  // namespace olpager::pager
