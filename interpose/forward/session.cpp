// The session's states: made -> up (open, start) -> ended (lost, or the program's end); final. In a
// forked child a session of its parent is out of reach, and one is made anew only where the parent
// had not called cuInit yet.
#include "interpose/forward/session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "base/text.h"
#include "forwarding/tally.h"
#include "forwarding/wire/runs.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/answer_cache.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/connection.h"
#include "interpose/forward/context.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/device_memory.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/kernel_attributes.h"
#include "interpose/forward/logs.h"
#include "interpose/forward/program.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/threads.h"
#include "interpose/forward/trips.h"
#include "interpose/forward/user_objects.h"

namespace olpager::forward {
namespace {

using namespace std::chrono_literals;

constexpr auto kSlice = 100ms;  // of a wait: looks at the session's end in between
constexpr auto kBatch = 50us;   // what nobody waits for is sent after so long
constexpr auto kAwake = 2ms;    // without calls before the attendant sleeps
constexpr auto kLook = 1ms;     // between looks at what comes by itself
constexpr auto kLongest = 1s;   // of the attendant's sleep

}  // namespace

Session::Session(const base::Settings& settings, std::string gpunode, unsigned slot, unsigned slots)
    : gpunode_(std::move(gpunode)),
      slot_(slot),
      slots_(slots),
      unified_(settings.view == base::ViewSetting::kUnified),
      connection_(std::make_unique<Connection>(settings, gpunode_, slot, slots)),
      parts_(std::make_unique<SessionParts>(*this)),
      answers_(std::make_unique<AnswerCache>()),
      arrivals_(std::make_unique<Arrivals>(*this)),
      functions_(std::make_unique<HostFunctions>(*this)),
      own_numbers_(firstNumber(slot)),
      numbers_(unified_ ? program().parts().common_numbers : own_numbers_) {}

Session::~Session() = default;

bool Session::othersCall() const { return callingThreads() > 1 || functions_->everAny(); }

Status Session::open() { return connection_->open(channel_); }

Status Session::start() {
  Writer writer;
  writer.value(CallHead{static_cast<uint16_t>(Operation::kDescribe), 0, 0, 0, 0, 0});
  Wait wait;
  if (call(writer.bytes, {}, wait) != CUDA_SUCCESS)
    return Error{"gpunode " + gpunode_ + ": " +
                 (why_lost_.empty() ? "the worker can't start" : why_lost_)};
  Reader reader(wait.record);
  (void)reader.value<AnswerHead>();
  description_ = reader.value<Description>();
  const auto offered = reader.raw(api::kSymbolCount);
  if (!reader.ok() || description_.specification != kSpecification)
    return Error{"gpunode " + gpunode_ + " is of another version than this one"};
  offered_.assign(offered.begin(), offered.end());
  std::thread([this] { attend(); }).detach();
  std::thread([this] { functions_->run(); }).detach();
  base::logInfo("forwarded mode: gpunode %s, session %016llx, %d device(s), CUDA %d.%d",
                gpunode_.c_str(), static_cast<unsigned long long>(connection_->number()),
                description_.devices, description_.driver_version / 1000,
                description_.driver_version % 1000 / 10);
  return {};
}

const transport::DomainPtr& Session::domain() const { return connection_->domain(); }
bool Session::sharesMemory() const { return connection_->sharesMemory(); }
void Session::nameToPeer(unsigned slot, PeerLinkHead* head, std::string* address) const {
  connection_->nameToPeer(slot, head, address);
}

// --- calls ---------------------------------------------------------------------------------------

bool Session::begin(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait,
                    bool flush) {
  auto& head = *reinterpret_cast<CallHead*>(record.data());
  head.thread = thisThread();
  if (othersCall()) head.flags |= kOthersCall;
  noteCall(*this, head.function);
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

CUresult Session::finish(Wait& wait) {
  if (!base::logs(base::LogLevel::kDebug)) {  // which tells of the trips
    receiveFor(wait);
    return wait.result;
  }
  const auto begun = std::chrono::steady_clock::now();
  receiveFor(wait);
  noteTrip(*this, wait.function, std::chrono::steady_clock::now() - begun);
  return wait.result;
}

void Session::leave(const Wait& wait) {
  std::lock_guard lock(waits_mutex_);
  waits_.erase(wait.number);
}

CUresult Session::call(std::vector<std::byte>& record, std::span<const std::byte> bulk,
                       Wait& wait) {
  if (!begin(record, bulk, wait, true)) return wait.result = CUDA_ERROR_DEVICE_UNAVAILABLE;
  return finish(wait);
}

CUresult Session::post(std::vector<std::byte>& record, std::span<const std::byte> bulk,
                       bool flush) {
  auto& head = *reinterpret_cast<CallHead*>(record.data());
  head.thread = thisThread();
  head.reply = 0;
  noteCall(*this, head.function);
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
void Session::receiveFor(Wait& wait) {
  std::vector<std::byte> record;
  std::unique_lock lock(waits_mutex_);
  while (!wait.done) {
    if (ended_) {
      wait.result = CUDA_ERROR_DEVICE_UNAVAILABLE;
      break;
    }
    if (receiving_) {
      ++waiting_threads_;
      turn_.wait_for(lock, kSlice);
      --waiting_threads_;
      continue;
    }
    receiving_ = true;
    struct Turn {  // over also where something is thrown: somebody else receives then
      Session& session;
      std::unique_lock<std::mutex>& lock;
      ~Turn() {
        if (!lock.owns_lock()) lock.lock();
        session.receiving_ = false;
        if (session.waiting_threads_ != 0) session.turn_.notify_all();
      }
    } const turn{*this, lock};
    while (!wait.done && !ended_) {
      lock.unlock();
      const auto got = channel_.read(record, kSlice);
      if (got == calls::Channel::Read::kRecord) {
        dispatch(record);
      } else if (got == calls::Channel::Read::kDown) {
        resume();
      }
      lock.lock();
    }
  }
  waits_.erase(wait.number);
}

// The link is down: makes it again, or the session is lost.
void Session::resume() {
  // Who has heard goodbye ends the link, maybe before its reply is read: no reason for a line.
  const bool tells = !leaving_;
  if (tells)
    base::logWarn("gpunode %s: disconnected (%s); connecting again", gpunode_.c_str(),
                  channel_.reason().c_str());
  const Status again = connection_->reopen(channel_);
  if (!again.ok()) {
    lost(again.error().message);
  } else if (tells) {
    base::logWarn("gpunode %s: connected again", gpunode_.c_str());
  }
}

void Session::lost(const std::string& why) {
  {
    std::lock_guard lock(waits_mutex_);
    if (ended_.exchange(true)) return;
    why_lost_ = why;
    turn_.notify_all();
  }
  arrivals_->wake();
  channel_.close(why);
  if (leaving_) {
    base::logDebug("gpunode %s: %s", gpunode_.c_str(), why.c_str());
  } else if (slots_ > 1) {
    base::logError(
        "the session on gpunode %s is lost: %s; every CUDA call for its devices fails from now on",
        gpunode_.c_str(), why.c_str());
  } else {
    base::logError(
        "the session on the gpunode is lost: %s; every CUDA call of this program fails from now on",
        why.c_str());
  }
  functions_->lost(leaving_);
  parts_->lost();
}

void Session::dispatch(std::vector<std::byte>& record) {
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
    case Answer::kFailed: {
      const auto context = reader.value<uint64_t>();
      noteReceived();
      parts_->contexts->with(context, [&](Context& in) {
        in.failures.failed(head.number, static_cast<CUresult>(head.result));
      });
      forgetSetAttributes();
      base::logDebug("%s failed at the gpunode: %d", functionName(head.function).c_str(),
                     head.result);
      break;
    }
    case Answer::kBroken: {
      const auto context = reader.value<uint64_t>();
      noteReceived();
      if (!reader.ok() || !parts_->contexts->with(context, [&](Context& in) {
            return in.failures.breaks(static_cast<CUresult>(head.result));
          }))
        break;
      base::logError(
          "the gpunode had no memory for an allocation that it was expected to have (CUDA error "
          "%d): every call "
          "that uses this context fails from now on",
          head.result);
      break;
    }
    case Answer::kFault: {
      const auto context = reader.value<uint64_t>();
      noteReceived();
      if (reader.ok())
        parts_->contexts->with(
            context, [&](Context& in) { in.failures.faulted(static_cast<CUresult>(head.result)); });
      break;
    }
    case Answer::kBytes: {
      noteReceived();
      if (arrivals_->bytesCome(head.number, reader.raw(reader.left()))) break;
      channel_.close("bytes of a copy that are not as many as it asked for");
      return;
    }
    case Answer::kHostBytes: {
      noteReceived();
      while (reader.ok() && reader.left() > 0) {
        if (Run run; readRun(reader, &run)) takePinned(*this, run);
      }
      // One for each launch, at most as many as are expected.
      arrivals_->changesCome(head.number);
      break;
    }
    case Answer::kHostFunction: {
      noteReceived();
      functions_->come(head.number, head.result);
      break;
    }
    case Answer::kUserObjectGone:
    case Answer::kLog: {
      noteReceived();
      if (head.kind == Answer::kUserObjectGone) {
        userObjectGone(*this, reader.value<uint64_t>());
      } else {
        driverLogged(head.number,
                     {reinterpret_cast<const char*>(record.data()) + sizeof head, reader.left()});
      }
      break;
    }
    case Answer::kEnds: {
      const std::string why(reinterpret_cast<const char*>(record.data() + sizeof head),
                            record.size() - sizeof head);
      lost(base::printable(why));
      break;
    }
    case Answer::kText: {
      std::FILE* const stream = head.number == STDERR_FILENO ? stderr : stdout;
      (void)!std::fwrite(record.data() + sizeof head, 1, record.size() - sizeof head, stream);
      std::fflush(stream);
      break;
    }
    default:
      channel_.close("a record of no known kind");
  }
}

// Its own, else of whoever has put something into this context: a kernel that was not launched is
// nothing that may seem to have ended well, and its thread may never wait, or be gone.
CUresult Session::takeFailure(bool tells) {
  if (parts_->failures->to_tell.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  const uint64_t context = contextIn(this);
  CUresult why = CUDA_SUCCESS;
  parts_->contexts->withKnown(context, [&](Context& in) {
    why = in.failures.broken();
    if (why == CUDA_SUCCESS && tells) why = in.failures.take(thisThread());
  });
  if (why != CUDA_SUCCESS || !tells) return why;
  parts_->contexts->withKnown(0, [&](Context& in) { why = in.failures.take(thisThread()); });
  if (why != CUDA_SUCCESS) return why;
  parts_->contexts->withKnown(context, [&](Context& in) { why = in.failures.takeAny(); });
  return why;
}

CUresult Session::faultOf(uint64_t context) {
  if (parts_->failures->faults.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  CUresult fault = CUDA_SUCCESS;
  parts_->contexts->withKnown(context, [&](const Context& in) { fault = in.failures.fault(); });
  return fault;
}

// --- what comes by itself ------------------------------------------------------------------------

void Session::somethingComes() {
  attendant_.comes.fetch_add(1);
  std::lock_guard lock(attendant_.mutex);
  attendant_.due.notify_one();
}

void Session::noteReceived() {
  std::lock_guard lock(waits_mutex_);
  ++received_;
}

void Session::openGate(uint32_t number) { say(Operation::kOpenGate, number); }

void Session::exportGone(uint32_t number) { say(Operation::kExportGone, number); }
void Session::functionDone(uint32_t number) { say(Operation::kHostFunctionDone, number); }

// Of none of the program's threads.
void Session::say(Operation operation, uint32_t number) {
  Writer said;
  said.value(CallHead{static_cast<uint16_t>(operation), 0, 0, 0, 0, 0});
  said.value(number);
  (void)channel_.write({said.bytes}, true);
}

void Session::breakContext(uint64_t context, CUresult why) {
  if (!parts_->contexts->with(context, [&](Context& in) { return in.failures.breaks(why); }))
    return;
  base::logError(
      "what a stream waited for at another gpunode failed or is lost (CUDA error %d): every call "
      "that uses its context "
      "on gpunode %s fails from now on",
      static_cast<int>(why), gpunode_.c_str());
}

// Awake while calls come that nobody waits for, and while something comes that nobody receives;
// else asleep. Now and then it looks what the worker tells by itself (a context that a kernel has
// ended, text): soon after the last call, and then at growing distances.
void Session::attend() {
  std::vector<std::byte> record;
  uint64_t seen = 0, received_before = 0;
  auto active = std::chrono::steady_clock::now(), looked = active;
  auto rest = std::chrono::milliseconds(kAwake);
  while (!ended_) {
    if (channel_.unsent()) (void)channel_.flush();
    const uint64_t posts = attendant_.posts.load(std::memory_order_relaxed);
    const auto now = std::chrono::steady_clock::now();
    if (posts != seen) active = now, rest = kAwake;
    seen = posts;
    const bool comes = attendant_.comes.load() != 0;
    // A link that is lost while nobody waits is made again: the worker may be in the middle of a
    // bulk copy.
    const bool receives = comes || channel_.unsent() || !channel_.linkUp();
    if (receives || channel_.readable() || now - looked >= kLook) {
      looked = now;
      std::unique_lock lock(waits_mutex_);
      // Who waits for an answer receives what comes before it too: only when nobody does.
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
    if (attendant_.posts.load() == seen && !channel_.unsent() && attendant_.comes.load() == 0)
      attendant_.due.wait_for(lock, rest);
    attendant_.sleeps.store(false);
    rest = std::min<std::chrono::milliseconds>(2 * rest, kLongest);
  }
}

void Session::atExit() {
  if (ended_) return;
  Writer goodbye;
  goodbye.value(CallHead{static_cast<uint16_t>(Operation::kGoodbye), 0, 0, 0, 0, 0});
  Wait wait;
  if (base::logs(base::LogLevel::kDebug)) tellTrips(*this);
  leaving_.store(true);
  (void)call(goodbye.bytes, {}, wait);
  std::lock_guard lock(waits_mutex_);
  ended_.store(true);
}

}  // namespace olpager::forward
