#include "gpunode/worker/stream_queues.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "forwarding/wire/copies.h"
#include "forwarding/wire/launch_wire.h"
#include "forwarding/wire/straight.h"
#include "gpunode/worker/worker.h"
#include "interpose/api/function_facts.h"

namespace olpager::gpunode {
namespace {

using api::Fact;
using forward::CallHead;
using forward::Operation;

// The call's answer is another's to send.
void nobodyWaits(CallHead head, StreamQueues::Record& record) {
  head.reply = 0;
  std::memcpy(record.data(), &head, sizeof head);
}

}  // namespace

struct StreamQueues::Item {
  Record record;
  std::vector<Place> behind;
  uint32_t gate = 0;                       // is put by it
  std::unique_ptr<Suspension> suspension;  // it was made, and suspended
};

struct StreamQueues::Queue {
  Order::Kind kind = Order::Kind::kInStream;
  Stream stream;           // kInStream
  std::deque<Item> items;  // not made, and not being made
  uint64_t put = 0;        // calls so far, the one that waits for memory first
  uint64_t made = 0;
  bool threaded = false;  // a thread of its own makes its calls, else the runner
};

StreamQueues::Suspension::Suspension(StreamQueues& of)
    : queues(of),
      operation(
          of.worker_.operations(),
          [](void* data) {
            auto* const self = static_cast<Suspension*>(data);
            StreamQueues& all = self->queues;
            const std::lock_guard lock(all.mutex_);
            self->resumable = true;
            all.run_.notify_one();
          },
          this) {}

bool StreamQueues::Place::over() const {
  if (queue == nullptr) return true;
  return (begun ? queue->put - queue->items.size() : queue->made) >= calls;
}

bool StreamQueues::allOver(const std::vector<Place>& places) {
  return std::all_of(places.begin(), places.end(), [](const Place& one) { return one.over(); });
}

bool StreamQueues::streamOf(const CallHead& head, uint64_t number, bool per_thread,
                            Stream* stream) {
  uint64_t value = 0;
  if (head.context != 0) (void)worker_.handles().find(head.context, HandleKind::kContext, &value);
  stream->context = handleFrom<CUcontext>(value);
  if (number == bitsOf(CU_STREAM_PER_THREAD) || (number == 0 && per_thread)) {
    worker_.setCurrent(stream->context);
    return worker_.threadStreams().find(head.thread, head.context, &stream->stream) == CUDA_SUCCESS;
  }
  if (number == 0 || number == bitsOf(CU_STREAM_LEGACY)) return true;
  const std::lock_guard lock(facts_mutex_);
  const auto known = facts_.find(number);
  if (known == facts_.end()) return false;
  *stream = known->second;
  return true;
}

void StreamQueues::streamIsThere(uint64_t number, CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return;
  {
    const std::lock_guard lock(facts_mutex_);
    if (facts_.contains(number)) return;
  }
  const api::DriverTable& driver = worker_.driver();
  unsigned flags = 0;
  if (driver.cuStreamGetFlags != nullptr) (void)driver.cuStreamGetFlags(stream, &flags);
  const Stream facts{.context = worker_.contextOf(stream),
                     .stream = stream,
                     .blocks = (flags & CU_STREAM_NON_BLOCKING) == 0};
  const std::lock_guard lock(facts_mutex_);
  facts_.insert_or_assign(number, facts);
}

void StreamQueues::streamIsGone(uint64_t number) {
  const std::lock_guard lock(facts_mutex_);
  facts_.erase(number);
}

StreamQueues::Order StreamQueues::orderOf(const CallHead& head, const Record& record) {
  using Kind = Order::Kind;
  Order order;
  order.answers = head.reply != 0;
  order.behind_all = (head.flags & forward::kBehindAll) != 0;
  forward::Reader in(record);
  forward::Names names;
  (void)forward::takeHead(in, &names);
  const auto inNone = [&] {
    order.kind = order.answers && !order.early ? Kind::kApart : Kind::kBeforeAll;
  };
  // The call that makes a stream which is not known may be in a queue.
  const auto inStream = [&](uint64_t number, bool per_thread) {
    order.kind = Kind::kInStream;
    if (!streamOf(head, number, per_thread, &order.stream)) inNone();
  };
  switch (static_cast<Operation>(head.function)) {
    case Operation::kLaunch: {
      const auto launch = in.value<forward::LaunchHead>();
      order.early = true;
      inStream(launch.stream, launch.per_thread != 0);
      return order;
    }
    case Operation::kCopyIn:
    case Operation::kCopyOut:
    case Operation::kCopyDevice:
    case Operation::kCopyPeer:
    case Operation::kSynchronizeDefault: {
      const auto copy = in.value<forward::CopyHead>();
      if (copy.alone != 0) return order;
      inStream(copy.stream, copy.per_thread != 0);
      order.told_done = copy.in_order == 0 && head.reply == 0;
      return order;
    }
    case Operation::kStraightOut:
    case Operation::kStraightIn: {
      const auto copy = in.value<forward::StraightHead>();
      if (copy.now == 0) inStream(copy.stream, copy.per_thread != 0);
      return order;
    }
    case Operation::kHostFunction:
    case Operation::kHostChanges:
    case Operation::kGraphBytes:
    case Operation::kGate: {
      const auto stream = in.value<uint64_t>();
      inStream(stream, in.value<uint8_t>() != 0);
      if (static_cast<Operation>(head.function) != Operation::kGate) return order;
      (void)in.value<uint32_t>();  // its notice
      order.gate = in.value<uint32_t>();
      return order;
    }
    case Operation::kOpenGate:
      order.opens = in.value<uint32_t>();
      return order;
    case Operation::kGoodbye:
      order.kind = Kind::kGoodbye;
      return order;
    case Operation::kHostBytes:
    case Operation::kHostFunctionDone:
    case Operation::kStraightStop:
      return order;
    // Calls that make a new object, or ask for what no work changes.
    case Operation::kDescribe:
    case Operation::kParameters:
    case Operation::kClusters:
    case Operation::kLoadModule:
    case Operation::kLoadLibrary:
    case Operation::kNameKernel:
    case Operation::kHostAlloc:
    case Operation::kAllocateAt:
    case Operation::kPointerAttribute:
    case Operation::kContextCreate:
    case Operation::kPrimaryRetain:
    case Operation::kPeerLink:
    case Operation::kLinkCreate:
    case Operation::kLinkAdd:
    case Operation::kLinkComplete:
    case Operation::kLinkDestroy:
    case Operation::kLogsDump:
    case Operation::kLogsListen:
      order.kind = Kind::kOvertakes;
      return order;
    default:
      break;
  }
  if (api::holds(Fact::kOvertakes, head.function)) {
    order.kind = Kind::kOvertakes;
    return order;
  }
  const CalledWith with = calledWith(head.function);
  order.captures = api::holds(Fact::kCaptures, head.function);
  if (with.puts_event_in_graph || order.captures) {
    inNone();
    return order;
  }
  for (const int16_t at : with.events) {
    forward::Reader event(in);
    if (at < 0) continue;
    (void)event.raw(static_cast<uint64_t>(at));
    order.events.push_back(event.value<uint64_t>());
  }
  order.graph = with.launches_graph && graphs_name_events_.load();
  order.records = api::holds(Fact::kRecords, head.function);
  order.asks = api::holds(Fact::kAsks, head.function);
  order.ends = with.gone;
  // A free, or the launch of a graph, is waited for where an error has to be the call's own: of
  // unknown memory, of a graph that allocates and may not be launched again.
  order.early = with.only_puts && !with.gone && !with.launches_graph;
  if (with.stream >= 0) {
    (void)in.raw(static_cast<uint64_t>(with.stream));
    inStream(in.value<uint64_t>(), with.per_thread);
  } else if (with.default_stream) {
    inStream(0, with.per_thread);
  } else if (!order.events.empty() && (head.reply != 0 || order.ends)) {
    order.kind = Kind::kApart;
  } else {
    inNone();
  }
  return order;
}

// The kind of the queue for the call.
StreamQueues::Order::Kind StreamQueues::kindOf(const Order& order) {
  using Kind = Order::Kind;
  const bool awaited = order.answers && !order.early;
  switch (order.kind) {
    case Kind::kOvertakes:
      return awaited ? Kind::kApart : Kind::kBeforeAll;
    case Kind::kInStream:
      return awaited ? Kind::kApart : Kind::kInStream;
    case Kind::kApart:
      return awaited ? Kind::kApart : Kind::kAside;
    default:
      return order.kind;
  }
}

// The queue that such a call is put in; nullptr: one of its own.
std::shared_ptr<StreamQueues::Queue> StreamQueues::queueOf(Order::Kind kind,
                                                           const Stream& stream) const {
  using Kind = Order::Kind;
  if (kind == Kind::kApart) return nullptr;
  for (const auto& queue : queues_)
    if (queue->kind == kind && (kind != Kind::kInStream || queue->stream == stream)) return queue;
  return nullptr;
}

// Places that are not over and that the call stays behind, beside its own queue.
std::vector<StreamQueues::Place> StreamQueues::behindOf(const Order& order,
                                                        const Queue* own) const {
  using Kind = Order::Kind;
  std::vector<Place> behind;
  const auto isBehind = [&](const Queue& queue) {
    if (queue.kind == Kind::kBeforeAll || order.behind_all) return true;
    if (queue.kind == Kind::kApart || order.kind == Kind::kOvertakes) return false;
    if (order.kind != Kind::kInStream) return order.kind != Kind::kApart || order.events.empty();
    if (queue.kind != Kind::kInStream) return false;
    if (queue.stream == order.stream) return true;
    const bool legacy = order.stream.stream == nullptr || queue.stream.stream == nullptr;
    return legacy && order.stream.blocks && queue.stream.blocks &&
           order.stream.context == queue.stream.context;
  };
  for (const auto& queue : queues_) {
    if (queue.get() == own) continue;
    if (isBehind(*queue)) {
      behind.push_back({queue, queue->put});
    } else if (const Place place{queue, queue->put, true};
               order.captures && queue->kind == Kind::kApart && !place.over()) {
      behind.push_back(place);
    }
  }
  const auto addAll = [&](const std::vector<Place>& places) {
    for (const Place& place : places)
      if (place.queue.get() != own && !place.over()) behind.push_back(place);
  };
  if (order.kind != Kind::kOvertakes) addAll(told_done_);
  for (const uint64_t number : order.events) {
    const auto found = events_.find(number);
    if (found == events_.end()) continue;
    addAll({found->second.record});
    if (order.records || order.ends) addAll(found->second.all);
  }
  if (!order.events.empty()) addAll(graphs_);
  if (order.graph)
    for (const auto& [number, event] : events_) addAll(event.all);
  return behind;
}

// Only the last place of each queue counts.
void StreamQueues::add(std::vector<Place>& places, const Place& one) {
  std::erase_if(places, [&](const Place& at) { return at.over() || at.queue == one.queue; });
  places.push_back(one);
}

void StreamQueues::note(const Order& order, const Place& place) {
  for (const uint64_t number : order.events) {
    Event& event = events_[number];
    if (order.records) event.record = place;
    add(event.all, place);
  }
  if (order.told_done) add(told_done_, place);
  if (order.graph) add(graphs_, place);
}

void StreamQueues::put(const std::shared_ptr<Queue>& queue, Item item, const Order& order) {
  ++calls_;
  bytes_ += item.record.size();
  item.gate = order.gate;
  if (order.gate != 0) gates_.try_emplace(order.gate);
  queue->items.push_back(std::move(item));
  ++queue->put;
  note(order, {queue, queue->put});
}

void StreamQueues::awaitRoom(std::unique_lock<std::mutex>& lock) {
  while ((calls_ >= kMostCalls || bytes_ >= kMostBytes) && !worker_.ended())
    made_.wait_for(lock, kSlice);
}

bool StreamQueues::take(const CallHead& head, Record& record) {
  using Kind = Order::Kind;
  const Order order = orderOf(head, record);
  std::unique_lock lock(mutex_);
  if (order.kind == Kind::kGoodbye) {
    while (!queues_.empty() && !worker_.ended()) made_.wait_for(lock, kSlice);
    return false;
  }
  if (order.opens != 0) {
    const auto gate = gates_.find(order.opens);
    if (gate == gates_.end()) return false;
    gate->second = std::move(record);
    return true;
  }
  if (order.kind == Kind::kAtOnce) return false;
  const Kind kind = kindOf(order);
  const std::shared_ptr<Queue> own = queueOf(kind, order.stream);
  std::vector<Place> behind = behindOf(order, own.get());
  if (own == nullptr && behind.empty()) return false;
  if (order.asks) {
    lock.unlock();
    worker_.answer(head, CUDA_ERROR_NOT_READY);
    return true;
  }
  awaitRoom(lock);
  if (order.answers && order.early) {
    lock.unlock();
    worker_.answer(head, CUDA_SUCCESS);
    nobodyWaits(head, record);
    lock.lock();
  }
  // The leader may have waited: the queue may be gone by now.
  if (std::find(queues_.begin(), queues_.end(), own) != queues_.end()) {
    put(own, {std::move(record), std::move(behind), 0, nullptr}, order);
    return true;
  }
  const auto queue = std::make_shared<Queue>();
  queue->kind = kind;
  queue->stream = order.stream;
  // The thread begins once the queue has its call.
  if (!maySuspend(head, record) && !giveThread(queue)) {
    while (!allOver(behind) && !worker_.ended()) made_.wait_for(lock, kSlice);
    return false;
  }
  queues_.push_back(queue);
  live_.store(queues_.size());
  put(queue, {std::move(record), std::move(behind), 0, nullptr}, order);
  run_.notify_one();
  return true;
}

// False: there is none to be had.
bool StreamQueues::giveThread(const std::shared_ptr<Queue>& queue) {
  try {
    std::thread([this, queue] { work(queue); }).detach();
  } catch (const std::system_error& error) {
    base::logWarn("a session's other streams wait for one that waits for memory: %s", error.what());
    return false;
  }
  queue->threaded = true;
  return true;
}

std::shared_ptr<StreamQueues::Queue> StreamQueues::waits(const CallHead& head, const Record& record,
                                                         bool* answer) {
  using Kind = Order::Kind;
  const CUcontext current = Worker::current();
  Order order = orderOf(head, record);
  worker_.setCurrent(current);  // the call goes on in it
  if (order.kind == Kind::kAtOnce || order.kind == Kind::kGoodbye) order.kind = Kind::kApart;
  *answer = order.answers && order.early;
  auto queue = std::make_shared<Queue>();
  queue->kind = kindOf(order);
  queue->stream = order.stream;
  queue->put = 1;
  queue->threaded = true;
  std::lock_guard lock(mutex_);
  try {
    note(order, {queue, 1});
    queues_.push_back(queue);
  } catch (...) {
    queue->made = queue->put;  // nobody comes behind it
    throw;
  }
  live_.store(queues_.size());
  return queue;
}

void StreamQueues::makeRest(const std::shared_ptr<Queue>& queue) {
  {
    std::lock_guard lock(mutex_);
    ++queue->made;
    made_.notify_all();
  }
  work(queue);
}

void StreamQueues::gone(const Queue& queue) {
  std::erase_if(queues_, [&](const auto& one) { return one.get() == &queue; });
  live_.store(queues_.size());
  const auto isOver = [](const Place& place) { return place.over(); };
  std::erase_if(events_, [](const auto& one) { return allOver(one.second.all); });
  std::erase_if(told_done_, isOver);
  std::erase_if(graphs_, isOver);
}

void StreamQueues::look(const CallHead& head, forward::Reader arguments) {
  if (graphs_name_events_.load(std::memory_order_relaxed)) return;
  const CalledWith with = calledWith(head.function);
  bool names = with.puts_event_in_graph;
  if (with.flags >= 0) {
    constexpr unsigned kExternal = CU_EVENT_RECORD_EXTERNAL;
    static_assert(kExternal == unsigned{CU_EVENT_WAIT_EXTERNAL});
    (void)arguments.raw(static_cast<uint64_t>(with.flags));
    names = (arguments.value<unsigned>() & kExternal) != 0;
  }
  if (names) graphs_name_events_.store(true);
}

// The call has been made.
void StreamQueues::made(std::unique_lock<std::mutex>& lock, Queue& queue, const Item& item) {
  --calls_;
  bytes_ -= item.record.size();
  ++queue.made;
  made_.notify_all();
  run_.notify_one();
  const auto gate = gates_.extract(item.gate);
  if (gate.empty() || gate.mapped().empty()) return;
  lock.unlock();
  worker_.makeTimed(gate.mapped());
  lock.lock();
}

void StreamQueues::work(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(mutex_);
  while (!queue->items.empty() && !worker_.ended()) {
    if (!allOver(queue->items.front().behind)) {
      made_.wait_for(lock, kSlice);
      continue;
    }
    const Item item = std::move(queue->items.front());
    queue->items.pop_front();
    made_.notify_all();  // it has begun
    run_.notify_one();
    lock.unlock();
    worker_.makeTimed(item.record);
    lock.lock();
    made(lock, *queue, item);
  }
  gone(*queue);
  made_.notify_all();
  run_.notify_one();
}

// --- the runner ----------------------------------------------------------------------------------

// The call that the calling thread, as the runner, makes is of this queue.
struct StreamQueues::Running {
  StreamQueues& queues;
  Queue& queue;
  static thread_local const Running* t_now;
};
thread_local const StreamQueues::Running* StreamQueues::Running::t_now = nullptr;

void StreamQueues::start() {
  const std::lock_guard lock(mutex_);
  if (worker_.operations() && runner_ == 0) startRunner();
}

void StreamQueues::startRunner() {
  const uint64_t number = next_runner_++;
  std::thread([this, number] { run(number); }).detach();
  runner_ = number;
  runs_.store(true);
}

// A call of the driver by which nothing but memory is waited for, and that is made from the
// beginning when it is made again.
bool StreamQueues::maySuspend(const CallHead& head, const Record& record) const {
  if (!runs_.load(std::memory_order_relaxed)) return false;
  forward::Reader in(record);
  forward::Names names;
  switch (static_cast<Operation>(head.function)) {
    case Operation::kLaunch:
      return true;
    case Operation::kCopyDevice:
    case Operation::kCopyIn: {
      if (head.reply != 0) return false;
      (void)forward::takeHead(in, &names);
      const auto copy = in.value<forward::CopyHead>();
      return copy.in_order != 0 && copy.alone == 0 && copy.region.key == 0 && copy.near == 0 &&
             copy.shape == forward::CopyShape::kLinear && copy.bytes <= forward::kDriverTakesBytes;
    }
    default:
      return head.reply == 0 && api::holds(Fact::kRestartable, head.function);
  }
}

std::unique_ptr<StreamQueues::Suspension> StreamQueues::suspensionFor(
    const CallHead& head, const Record& record, std::unique_ptr<Suspension>& spare) {
  if (!maySuspend(head, record)) return nullptr;
  auto suspension = spare != nullptr ? std::move(spare) : std::make_unique<Suspension>(*this);
  return suspension->operation ? std::move(suspension) : nullptr;
}

void StreamQueues::suspended(const CallHead& head, Record record,
                             std::unique_ptr<Suspension> suspension,
                             const std::shared_ptr<Queue>& waited) {
  const CUcontext current = Worker::current();
  const Order order = orderOf(head, record);
  worker_.setCurrent(current);
  if (order.answers) nobodyWaits(head, record);
  Item item{std::move(record), {}, 0, std::move(suspension)};
  std::unique_lock lock(mutex_);
  if (waited != nullptr) {  // it counts as put there, and was answered then
    ++calls_;
    bytes_ += item.record.size();
    waited->items.push_front(std::move(item));
    waited->threaded = false;
  } else {
    const auto queue = std::make_shared<Queue>();
    queue->kind = kindOf(order);
    queue->stream = order.stream;
    queues_.push_back(queue);
    live_.store(queues_.size());
    put(queue, std::move(item), order);
  }
  run_.notify_one();
  lock.unlock();
  // The client's next call may be with another leader at once: it has to find the queue.
  if (order.answers && waited == nullptr) worker_.answer(head, CUDA_SUCCESS);
}

// The next queue in turn whose first call can be made now.
std::shared_ptr<StreamQueues::Queue> StreamQueues::nextToRun() {
  for (size_t i = 0; i < queues_.size(); ++i) {
    const auto& queue = queues_[(turn_ + i) % queues_.size()];
    if (queue->threaded || queue->items.empty()) continue;
    const Item& front = queue->items.front();
    if (front.suspension != nullptr ? !front.suspension->resumable : !allOver(front.behind))
      continue;
    turn_ = (turn_ + i + 1) % queues_.size();
    return queue;
  }
  return nullptr;
}

void StreamQueues::run(uint64_t self) {
  std::unique_ptr<Suspension> spare;
  std::unique_lock lock(mutex_);
  while (runner_ == self && !worker_.ended()) {
    const std::shared_ptr<Queue> queue = nextToRun();
    if (queue == nullptr) {
      run_.wait_for(lock, kSlice);
    } else if (const Record& record = queue->items.front().record;
               !maySuspend(forward::Reader(record).value<CallHead>(), record) &&
               giveThread(queue)) {
      continue;
    } else {
      runFront(lock, queue, spare);
    }
  }
}

// If the call waits for something else than memory, the queue becomes this thread's, and another
// thread becomes the runner.
void StreamQueues::runFront(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Queue>& queue,
                            std::unique_ptr<Suspension>& spare) {
  Item item = std::move(queue->items.front());
  queue->items.pop_front();
  if (item.suspension != nullptr) item.suspension->resumable = false;
  made_.notify_all();  // it has begun
  const Running running{*this, *queue};
  lock.unlock();
  const auto head = forward::Reader(item.record).value<CallHead>();
  if (item.suspension == nullptr) item.suspension = suspensionFor(head, item.record, spare);
  Running::t_now = &running;
  worker_.makeTimed(item.record, operationOf(item.suspension));
  Running::t_now = nullptr;
  lock.lock();
  if (item.suspension != nullptr && item.suspension->operation.isSuspended()) {
    queue->items.push_front(std::move(item));
    queue->threaded = false;
    run_.notify_one();
    return;
  }
  if (item.suspension != nullptr) spare = std::move(item.suspension);
  made(lock, *queue, item);
  if (queue->threaded) {
    lock.unlock();
    work(queue);
    lock.lock();
  } else if (queue->items.empty()) {
    gone(*queue);
    made_.notify_all();
  }
}

bool StreamQueues::runnerWaits() {
  const Running* const now = Running::t_now;
  if (now == nullptr) return false;
  const std::lock_guard lock(now->queues.mutex_);
  if (now->queue.threaded) return true;
  try {
    now->queues.startRunner();
    now->queue.threaded = true;
  } catch (const std::exception& error) {  // the runner waits
    base::logWarn("a session's other streams wait for one that waits for memory: %s", error.what());
  }
  return true;
}

}  // namespace olpager::gpunode
