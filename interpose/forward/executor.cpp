#include "interpose/forward/executor.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/held_in_calls.h"
#include "base/held_signals.h"
#include "base/log.h"
#include "base/text.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/connection.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/counted_links.h"
#include "interpose/forward/device_memory.h"
#include "interpose/forward/session.h"
#include "interpose/forward/threads.h"
#include "interpose/forward/trips.h"
#include "interpose/forward/unsent.h"

namespace olpager::forward {
namespace {

using namespace std::chrono_literals;

constexpr auto kSlice = 100ms;  // of a wait: looks at the executor's end in between
constexpr auto kTurn = 1ms;     // the same, where signals are to come in between
constexpr auto kBatch = 50us;   // what nobody waits for is sent after so long
constexpr auto kAwake = 2ms;    // without calls before the attendant sleeps
constexpr auto kLook = 1ms;     // between looks at what comes by itself
constexpr auto kLongest = 1s;   // of the attendant's sleep
constexpr auto kCount = 500ms;  // what the link has carried is counted so often

// Ranges that wrap round would be everybody's.
bool makesSense(const Description& told) {
  constexpr uint64_t kAddresses = 1ull << 57;
  constexpr int32_t kMostDevices = 1024;
  const auto isRange = [](uint64_t base, uint64_t bytes) {
    return base < kAddresses && bytes < kAddresses;
  };
  return told.devices >= 0 && told.devices <= kMostDevices && isRange(told.va_base, told.va_size) &&
         isRange(told.placed, told.placed_bytes) && told.lent <= told.capacity &&
         told.told_lent <= told.told;
}

// Calls that wait for the GPU, however long that takes.
bool waitsForGpu(uint16_t function) {
  switch (static_cast<Operation>(function)) {
    case Operation::kCopyIn:
    case Operation::kCopyOut:
    case Operation::kCopyDevice:
    case Operation::kCopyPeer:
    case Operation::kSynchronizeDefault:
    case Operation::kFinishWork:
      return true;
    default:
      break;
  }
  if (function >= api::kSymbolCount) return false;
  switch (static_cast<api::Symbol>(function)) {
    case api::Symbol::kCuCtxSynchronize:
    case api::Symbol::kCuCtxSynchronize_v2:
    case api::Symbol::kCuEventSynchronize:
    case api::Symbol::kCuStreamSynchronize:
    case api::Symbol::kCuStreamSynchronize_ptsz:
      return true;
    default:
      return false;
  }
}

}  // namespace

Executor::Executor(const base::Settings& settings, const Site& site, unsigned slot, unsigned slots,
                   Session& session)
    : name_(site.name),
      slot_(slot),
      session_(session),
      connection_(std::make_unique<Connection>(settings, site, slot, slots, session.domain())) {}

Executor::~Executor() = default;

Status Executor::open() { return connection_->open(channel_); }

Status Executor::start() {
  Writer writer;
  writer.value(CallHead{static_cast<uint16_t>(Operation::kDescribe), 0, 0, 0, 0, 0});
  Wait wait;
  if (call(writer.bytes, {}, wait) != CUDA_SUCCESS)
    return Error{"gpunode " + name_ + ": " +
                 (why_lost_.empty() ? "the worker can't start" : why_lost_)};
  Reader reader(wait.record);
  (void)reader.value<AnswerHead>();
  description_ = reader.value<Description>();
  const auto offered = reader.raw(api::kSymbolCount);
  if (!reader.ok() || description_.specification != kSpecification)
    return Error{"gpunode " + name_ + " is of another version than this one"};
  if (!makesSense(description_))
    return Error{"gpunode " + name_ + " says what makes no sense of its memory"};
  offered_.assign(offered.begin(), offered.end());
  base::ownThread([this] { attend(); }).detach();
  base::logInfo("forwarded mode: gpunode %s, session %016llx, %d device(s), CUDA %d.%d",
                name_.c_str(), static_cast<unsigned long long>(connection_->number()),
                description_.devices, description_.driver_version / 1000,
                description_.driver_version % 1000 / 10);
  return {};
}

bool Executor::sharesMemory() const { return connection_->sharesMemory(); }
PageRoute Executor::pageRoute() const { return connection_->pageRoute(); }
void Executor::nameToPeer(unsigned slot, PeerLinkHead* head, std::string* address) const {
  connection_->nameToPeer(slot, head, address);
}

// --- calls ---------------------------------------------------------------------------------------

bool Executor::begin(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait,
                     bool flush) {
  auto& head = *reinterpret_cast<CallHead*>(record.data());
  head.thread = thisThread();
  if (session_.othersCall()) head.flags |= kOthersCall;
  noteCall(session_, head.function);
  {
    std::lock_guard lock(waits_mutex_);
    if (ended_) return false;
    wait.number = next_wait_++;
    if (next_wait_ == 0) next_wait_ = 1;
    waits_.emplace(wait.number, &wait);
  }
  head.reply = wait.number;
  wait.function = head.function;
  if (channel_.write({record, bulk}, flush)) return true;
  std::lock_guard lock(waits_mutex_);
  waits_.erase(wait.number);
  return false;
}

CUresult Executor::finish(Wait& wait) {
  constexpr auto kEver = std::chrono::steady_clock::time_point::max();
  const auto begun = std::chrono::steady_clock::now();
  if (!receiveFor(wait, begun + kForUnsent)) {
    tellUnsent(session_);
    (void)receiveFor(wait, kEver);
  }
  if (base::logs(base::LogLevel::kDebug))  // which tells of the trips
    noteTrip(session_, wait.function, std::chrono::steady_clock::now() - begun);
  return wait.result;
}

bool Executor::finishWithin(Wait& wait, std::chrono::milliseconds time) {
  return receiveFor(wait, std::chrono::steady_clock::now() + time);
}

void Executor::leave(const Wait& wait) {
  std::lock_guard lock(waits_mutex_);
  waits_.erase(wait.number);
}

CUresult Executor::call(std::vector<std::byte>& record, std::span<const std::byte> bulk,
                        Wait& wait) {
  if (!begin(record, bulk, wait, true)) return wait.result = CUDA_ERROR_DEVICE_UNAVAILABLE;
  return finish(wait);
}

CUresult Executor::post(std::vector<std::byte>& record, std::span<const std::byte> bulk,
                        bool flush) {
  auto& head = *reinterpret_cast<CallHead*>(record.data());
  if (head.thread == 0) head.thread = thisThread();  // else it was kept for that one
  head.reply = 0;
  noteCall(session_, head.function);
  if (ended_.load(std::memory_order_relaxed)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (!channel_.write({record, bulk}, flush)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  attendant_.posts.fetch_add(1, std::memory_order_relaxed);
  if (attendant_.sleeps.load()) {
    std::lock_guard lock(attendant_.mutex);
    attendant_.due.notify_one();
  }
  return CUDA_SUCCESS;
}

// One of the threads that wait receives, for all of them; the others sleep until their answer is
// there or it is their turn.
//
// If signals matter, no handler of the program's runs on a thread that receives, or waits for its
// turn: it would keep all answers from the thread that serves what the handler touches. A thread
// that waits for the GPU lets signals come every now and then, with nothing in hand, unless it has
// a lock that it waits under (locks.h).
bool Executor::receiveFor(Wait& wait, std::chrono::steady_clock::time_point until) {
  std::vector<std::byte> record;
  std::optional<base::HeldSignals> held;  // of who was in this call before signals mattered
  const bool for_gpu = waitsForGpu(wait.function);
  bool lets = for_gpu && base::signalsMayCome();  // signals come in between
  const auto let = [&] {
    if (!for_gpu) return;
    held.reset();
    { const base::LetSignals now; }
    lets = base::signalsMayCome();
    held.emplace();
  };
  held.emplace();
  std::unique_lock lock(waits_mutex_);
  const auto late = [&] { return std::chrono::steady_clock::now() >= until; };
  while (!wait.done) {
    if (late()) return false;
    if (ended_) {
      wait.result = CUDA_ERROR_DEVICE_UNAVAILABLE;
      break;
    }
    if (receiving_) {
      ++waiting_threads_;
      turn_.wait_for(lock, lets ? kTurn : kSlice);
      --waiting_threads_;
      if (wait.done || !lets) continue;
      lock.unlock();
      let();
      lock.lock();
      continue;
    }
    {
      receiving_ = true;
      struct Turn {  // over also where something is thrown: somebody else receives then
        Executor& executor;
        std::unique_lock<std::mutex>& lock;
        ~Turn() {
          if (!lock.owns_lock()) lock.lock();
          executor.receiving_ = false;
          if (executor.waiting_threads_ != 0) executor.turn_.notify_all();
        }
      } const turn{*this, lock};
      auto now = std::chrono::steady_clock::now();
      const auto ends = std::min(until, now + (lets ? kTurn : kSlice));
      for (; !wait.done && !ended_ && now < ends; now = std::chrono::steady_clock::now()) {
        lock.unlock();
        const auto left = std::chrono::ceil<std::chrono::microseconds>(ends - now);
        const auto got = channel_.read(record, left);
        if (got == calls::Channel::Read::kRecord) {
          dispatch(record);
        } else if (got == calls::Channel::Read::kDown) {
          resume();
        }
        lock.lock();
      }
    }
    if (wait.done) break;
    lock.unlock();
    let();
    lock.lock();
  }
  waits_.erase(wait.number);
  return true;
}

// The link is down: makes it again, or the executor is lost.
void Executor::resume() {
  // A worker that has heard goodbye ends the link, maybe before its reply is read: no reason for a
  // line.
  const bool tells = !leaving_;
  if (tells)
    base::logWarn("gpunode %s: disconnected (%s); connecting again", name_.c_str(),
                  channel_.reason().c_str());
  const Status again = connection_->reopen(channel_);
  if (!again.ok()) {
    lost(again.error().message);
  } else if (tells) {
    base::logWarn("gpunode %s: connected again", name_.c_str());
  }
}

void Executor::lost(const std::string& why) {
  if (ended_) return;
  session_.sayLost(*this, why, leaving_);
  if (end(why)) session_.lost(*this, why, leaving_);
}

bool Executor::end(const std::string& why) {
  {
    std::lock_guard lock(waits_mutex_);
    if (ended_.exchange(true)) return false;
    why_lost_ = why;
    turn_.notify_all();
  }
  channel_.close(why);
  count();
  return true;
}

void Executor::dispatch(std::vector<std::byte>& record) {
  Reader reader(record);
  const auto head = reader.value<AnswerHead>();
  if (!reader.ok()) {
    channel_.close("a record without a head");
    return;
  }
  switch (head.kind) {
    case Answer::kReply: {
      std::lock_guard lock(waits_mutex_);
      ++received_;
      const auto found = waits_.find(head.number);
      if (found == waits_.end()) break;
      Wait& wait = *found->second;
      wait.result = static_cast<CUresult>(head.result);
      wait.answered = head.function != 0;
      wait.record.swap(record);
      wait.done = true;
      if (waiting_threads_ != 0) turn_.notify_all();
      break;
    }
    case Answer::kEnds: {
      const std::string why(reinterpret_cast<const char*>(record.data() + sizeof head),
                            record.size() - sizeof head);
      const auto executors = session_.executors();
      // The worker knows the other one by its number alone.
      if (head.number != 0 && head.number <= executors.size()) {
        lost("the unified view: its link to the worker of gpunode " +
             executors[head.number - 1]->name() + " is lost");
      } else {
        lost(base::printable(why));
      }
      break;
    }
    default:
      noteReceived();
      if (const char* const wrong = session_.heard(*this, head, reader); wrong != nullptr)
        channel_.close(wrong);
  }
}

void Executor::noteReceived() {
  std::lock_guard lock(waits_mutex_);
  ++received_;
}

// Counts the link's bytes, for olpagestat.
void Executor::count() {
  status::LinkBytes* const counted = countedLink(slot_);
  if (counted == nullptr) return;
  const std::lock_guard lock(counting_);
  status::setName(counted->peer, name_);
  channel_.count(*counted, true);
  counted->end.store(static_cast<uint64_t>(status::LinkEnd::kGpunode), std::memory_order_release);
}

// --- what nobody waits for -----------------------------------------------------------------------

void Executor::wake() {
  std::lock_guard lock(attendant_.mutex);
  attendant_.due.notify_one();
}

// Sends a record in the name of no thread.
void Executor::say(Operation operation, uint32_t number) {
  Writer said;
  said.value(CallHead{static_cast<uint16_t>(operation), 0, 0, 0, 0, 0});
  said.value(number);
  (void)channel_.write({said.bytes}, true);
}

// Awake while calls come that nobody waits for, and while something comes that nobody receives;
// else asleep. Now and then it looks what the worker tells by itself (a context that a kernel has
// ended, text): soon after the last call, and then at growing distances.
void Executor::attend() {
  std::vector<std::byte> record;
  uint64_t seen = 0, received_before = 0;
  auto active = std::chrono::steady_clock::now(), looked = active;
  auto counted = active - kCount;
  auto rest = std::chrono::milliseconds(kAwake);
  while (!ended_) {
    if (channel_.unsent()) (void)channel_.flush();
    const uint64_t posts = attendant_.posts.load(std::memory_order_relaxed);
    const auto now = std::chrono::steady_clock::now();
    if (now - counted >= kCount) {
      counted = now;
      count();
    }
    if (posts != seen) active = now, rest = kAwake;
    seen = posts;
    const bool comes = session_.coming();
    // A link that is lost while nobody waits is made again: the worker may be in the middle of a
    // bulk copy.
    const bool receives = comes || channel_.unsent() || !channel_.linkUp();
    if (receives || channel_.readable() || now - looked >= kLook) {
      looked = now;
      std::unique_lock lock(waits_mutex_);
      // A thread that waits for an answer receives what comes before it too: only when nobody does.
      const bool idle = !receiving_ && received_ == received_before;
      received_before = received_;
      if (idle) {
        receiving_ = true;
        lock.unlock();
        // While calls come, for no longer than they may wait for their flush.
        const auto patience = !receives               ? 0us
                              : now - active < kAwake ? std::chrono::microseconds(kBatch)
                                                      : 1ms;
        const auto got = channel_.read(record, patience);
        if (got == calls::Channel::Read::kRecord) dispatch(record);
        if (got == calls::Channel::Read::kDown && !ended_) resume();
        lock.lock();
        receiving_ = false;
        if (got == calls::Channel::Read::kRecord) received_before = received_;
        if (waiting_threads_ != 0) turn_.notify_all();
        lock.unlock();
        if (receives || got != calls::Channel::Read::kNothing) continue;
      }
    }
    if (now - active < kAwake) {
      std::this_thread::sleep_for(kBatch);
      continue;
    }
    std::unique_lock lock(attendant_.mutex);
    // Somebody else receives, and sends what finds room by that.
    if (comes || channel_.unsent()) {
      attendant_.due.wait_for(lock, 1ms);
      continue;
    }
    attendant_.sleeps.store(true);
    if (attendant_.posts.load() == seen && !channel_.unsent() && !session_.coming())
      attendant_.due.wait_for(lock, rest);
    attendant_.sleeps.store(false);
    rest = std::min<std::chrono::milliseconds>(2 * rest, kLongest);
  }
}

void Executor::sayGoodbye() {
  if (ended_) return;
  Writer goodbye;
  goodbye.value(CallHead{static_cast<uint16_t>(Operation::kGoodbye), 0, 0, 0, 0, 0});
  Wait wait;
  leaving_.store(true);
  (void)call(goodbye.bytes, {}, wait);
  count();
  std::lock_guard lock(waits_mutex_);
  ended_.store(true);
}

}  // namespace olpager::forward
