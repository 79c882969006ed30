#include "gpunode/worker/lead.h"

#include <thread>
#include <utility>

#include "base/log.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;
using forward::CallHead;
using forward::Operation;
using Read = calls::Channel::Read;

constexpr auto kWithLead = 3ms;  // how long a call may wait with the lead

// The head of a record; zeros where the record is too short.
CallHead headOf(const std::vector<std::byte>& record) {
  return forward::Reader(record).value<CallHead>();
}

// A call that waits for nobody, and ends a stream's wait or brings the data for after the wait.
bool endsWaits(const CallHead& head) {
  switch (static_cast<Operation>(head.function)) {
    case Operation::kHostFunctionDone:
    case Operation::kHostBytes:
    case Operation::kStraightStop:
    case Operation::kOpenGate:
      return true;
    default:
      return false;
  }
}

}  // namespace

/// The call that a thread has taken as the leader, while it is made.
struct Lead::Making {
  Lead& lead;
  const CallHead& head;
  const Record& record;
  const uint64_t self;
  std::shared_ptr<StreamQueues::Queue> queue;  // of what comes behind it: it waits for memory
  static thread_local Making* t_now;
};
thread_local Lead::Making* Lead::Making::t_now = nullptr;

void Lead::waitsForMemory() noexcept {
  if (StreamQueues::runnerWaits()) return;
  Making* const making = Making::t_now;
  if (making == nullptr || making->queue != nullptr) return;  // it is none of the leader's
  try {
    making->lead.leave(*making);
  } catch (const std::exception& error) {  // the leader waits
    base::logWarn("a session's other streams wait for one that waits for memory: %s", error.what());
  }
}

void Lead::leave(Making& making) {
  bool answer = false;
  making.queue = worker_.queues().waits(making.head, making.record, &answer);
  bool led = false;
  {
    std::lock_guard lock(mutex_);
    led = leader_ == making.self;
    if (led) {
      call_.store(0);
      leader_ = 0;
      waits_ = false;
    }
  }
  if (led) free_.notify_one();
  if (answer) worker_.answerEarly(making.head);
}

// `waits`: its number among the calls that may wait; 0: it is none.
void Lead::make(const CallHead& head, Record& record, uint64_t self, uint64_t waits, Spare& spare) {
  StreamQueues& queues = worker_.queues();
  auto suspension = queues.suspensionFor(head, record, spare);
  Making making{*this, head, record, self, nullptr};
  Making::t_now = &making;
  worker_.makeTimed(record, StreamQueues::operationOf(suspension));
  Making::t_now = nullptr;
  const bool suspended = suspension != nullptr && suspension->operation.isSuspended();
  // Before another thread leads: what comes behind it is behind it.
  if (suspended)
    queues.suspended(head, std::move(record), std::move(suspension), making.queue);
  else if (suspension != nullptr)
    spare = std::move(suspension);
  if (waits != 0 && (head.flags & forward::kAged) != 0) {
    const std::lock_guard lock(mutex_);
    operating_.erase(waits);
    operated_.notify_all();
  }
  if (making.queue != nullptr && !suspended) return queues.makeRest(making.queue);
  if (making.queue == nullptr && (head.flags & forward::kMayWait) == 0) call_.store(0);
}

std::string Lead::serve(std::function<bool()> rejoined) {
  {
    std::lock_guard lock(rejoin_mutex_);
    rejoined_ = std::move(rejoined);
  }
  lead();
  std::lock_guard lock(mutex_);
  return why_.empty() ? "the program ended" : why_;
}

void Lead::startThread() {
  std::thread([this] { lead(); }).detach();
}

bool Lead::rejoin() {
  std::lock_guard lock(rejoin_mutex_);
  calls::Channel& channel = worker_.channel();
  if (channel.attached()) return true;
  return !channel.closed() && rejoined_ && rejoined_();
}

void Lead::nonsense(const CallHead& head) {
  {
    std::lock_guard lock(mutex_);
    if (why_.empty())
      why_ = "the client sends nonsense (function " + std::to_string(head.function) + ")";
  }
  end();
}

void Lead::functionBegins() {
  {
    std::lock_guard lock(mutex_);
    ++functions_;
  }
  free_.notify_one();  // looks whether the leader is in a call for long
}

void Lead::functionIsOver() {
  std::lock_guard lock(mutex_);
  --functions_;
}

// Streams wait for a call of the client's.
bool Lead::clientEndsSomething() const { return functions_ != 0 || worker_.gates().closed() != 0; }

void Lead::awaitOperations() {
  std::unique_lock lock(mutex_);
  const uint64_t before = waited_;
  while (!ended_ && !operating_.empty() && *operating_.begin() <= before)
    operated_.wait_for(lock, kSlice);
}

// Waits for the lead: until nobody has it, or its holder waits for too long.
bool Lead::takeLead(std::unique_lock<std::mutex>& lock, uint64_t self) {
  ++followers_;
  uint64_t seen = waited_;
  while (!ended_ && leader_ != 0) {
    const uint64_t waited = waited_;
    const bool waiting = waits_;
    // While calls wait now and then, by the clock: to be woken for each of them would cost more
    // than they do.
    const uint64_t call = call_.load();
    const bool looks = waiting || waited != seen || clientEndsSomething();
    seen = waited;
    asleep_ += looks ? 0 : 1;
    free_.wait_for(lock, looks ? kWithLead : kSlice);
    asleep_ -= looks ? 0 : 1;
    if (leader_ != 0 && waits_ && waiting && waited_ == waited) break;
    // In a call that was not expected to wait, and that may wait for a host function or behind a
    // gate all the same: the driver loads a kernel, drains a context, or has no room for a launch
    // more, while the function is not over or the gate not open. And where the link is lost during
    // such a call the next one is taken, for which the client does not wait as long.
    const bool reads = clientEndsSomething() || !worker_.channel().linkUp();
    if (reads && call != 0 && call_.load() == call && !waits_) {
      lock.unlock();
      readAhead(call);
      lock.lock();
    }
  }
  --followers_;
  if (ended_) return false;
  leader_ = self;
  waits_ = false;
  if (followers_ == 0) startThread();  // somebody looks whether the leader waits
  return true;
}

// Called by the leader: reads the next record, and pays what the leader owes in between.
Read Lead::take(Record& record) {
  Exchange& exchange = worker_.exchange();
  const auto attend = [this](auto& whom) {
    call_.store(++calls_);
    whom.attend();
    call_.store(0);
  };
  const auto watches = worker_.faults().turn();
  const auto turn = exchange.owes() ? Exchange::kTurn : watches;
  // For a client that does not take its answers no more calls are made: a thread for each would
  // wait to write, with its answer in hand.
  const Read got = worker_.channel().awaitRoom(turn) ? next(record, turn)
                   : worker_.channel().attached()    ? Read::kNothing
                                                     : Read::kDown;
  // Not with what ends others' waits in hand: the driver, whom that asks, may be waiting for just
  // it.
  if (exchange.owes() && !(got == Read::kRecord && endsWaits(headOf(record)))) attend(exchange);
  if (got == Read::kNothing) attend(worker_.faults());
  return got;
}

void Lead::lead() {
  Record record;
  Spare spare;
  std::unique_lock lock(mutex_);
  const uint64_t self = next_thread_++;
  while (takeLead(lock, self)) {
    while (!ended_ && leader_ == self) {
      lock.unlock();
      const Read got = take(record);
      if (got == Read::kDown && !ended_ && !rejoin()) {
        calls::Channel& channel = worker_.channel();
        lock.lock();
        if (why_.empty())
          why_ = (channel.closed() ? "the client sends nonsense: " : "the client is gone: ") +
                 channel.reason();
        end();
        break;
      }
      if (got != Read::kRecord) {
        lock.lock();
        continue;
      }
      const CallHead head = headOf(record);
      if (worker_.queues().any() && isQueued(head, record)) {
        lock.lock();
        continue;
      }
      if ((head.flags & forward::kMayWait) == 0) {
        // Nobody reads past what ends others' waits: what a function changed, however long it
        // takes, is there before the function is over.
        if (!endsWaits(head)) call_.store(++calls_);
        make(head, record, self, 0, spare);
        lock.lock();
        continue;
      }
      lock.lock();
      const uint64_t number = ++waited_;
      if ((head.flags & forward::kAged) != 0) operating_.insert(number);
      waits_ = true;
      if ((head.flags & forward::kOthersCall) != 0) {
        leader_ = 0;
        lock.unlock();
        free_.notify_one();
      } else {
        const bool nobody_looks = asleep_ == followers_;
        lock.unlock();
        if (nobody_looks) free_.notify_one();
      }
      make(head, record, self, number, spare);
      lock.lock();
      if (leader_ == self) waits_ = false;
    }
  }
  free_.notify_all();
}

// Called by the leader: the call stays behind one that waits for memory, and is queued.
bool Lead::isQueued(const CallHead& head, Record& record) {
  if (endsWaits(head)) return worker_.queues().take(head, record);
  call_.store(++calls_);
  const bool taken = worker_.queues().take(head, record);
  call_.store(0);
  return taken;
}

// Records that were read ahead come first.
Read Lead::next(Record& record, std::chrono::microseconds timeout) {
  const std::lock_guard reading(reading_mutex_);
  if (ahead_.empty()) return worker_.channel().read(record, timeout);
  record = std::move(ahead_.front());
  ahead_.pop_front();
  ahead_bytes_ -= record.size();
  return Read::kRecord;
}

// While the leader stays in that call: takes what comes, and makes of it what ends host functions,
// what they changed in memory, and what opens gates. All else waits for the leader, in its order:
// nothing that a gate waits for is among it (interpose/forward/crossings.h).
void Lead::readAhead(uint64_t stuck) {
  constexpr size_t kMost = 64 << 20;
  const std::unique_lock reading(reading_mutex_, std::try_to_lock);
  if (!reading.owns_lock()) return;
  Record record;
  while (call_.load() == stuck && !ended_ && ahead_bytes_ < kMost) {
    const Read got = worker_.channel().read(record, kWithLead);
    if (got == Read::kDown && !rejoin()) return;
    if (got != Read::kRecord) continue;
    const CallHead head = headOf(record);
    const bool opens = static_cast<Operation>(head.function) == Operation::kOpenGate;
    if (opens && worker_.queues().take(head, record)) continue;
    if (endsWaits(head) && (!opens || opensNow(record))) {
      worker_.makeAhead(record);
    } else {
      ahead_bytes_ += record.size();
      ahead_.push_back(std::move(record));
    }
  }
}

// A gate whose place in its stream is not made yet is opened in its turn.
bool Lead::opensNow(const Record& record) const {
  forward::Reader reader(record);
  (void)reader.value<CallHead>();
  return worker_.gates().isPut(reader.value<uint32_t>());
}

}  // namespace olpager::gpunode
