// The session's states: made -> up (open, start) -> ended (lost, or the program's end); final. In a
// forked child a session of its parent is out of reach, and one is made anew only where the parent
// had not called cuInit yet.
#include "interpose/forward/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <set>

#include "base/log.h"
#include "base/text.h"
#include "forwarding/tally.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/connection.h"
#include "interpose/forward/crossings.h"
#include "interpose/forward/device_memory.h"
#include "interpose/forward/kernel_attributes.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/logs.h"
#include "interpose/forward/memory.h"
#include "interpose/forward/pinned.h"
#include "interpose/forward/stand_ins.h"
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
constexpr size_t kMostRemembered = 65536;

thread_local bool t_in_function = false;  // in the thread that runs the program's host functions

}  // namespace

Session::Session(const base::Settings& settings, std::string gpunode, unsigned slot, unsigned slots)
    : gpunode_(std::move(gpunode)),
      slot_(slot),
      slots_(slots),
      connection_(std::make_unique<Connection>(settings, gpunode_, slot, slots)),
      next_number_(firstNumber(slot)) {}

Session::~Session() = default;

bool Session::othersCall() const { return callingThreads() > 1 || has_functions_.load(); }

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
  std::thread([this] { runFunctions(); }).detach();
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
  noteTrip(slot_, wait.function, std::chrono::steady_clock::now() - begun);
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
  posts_.fetch_add(1, std::memory_order_relaxed);
  if (attendant_sleeps_.load()) {
    std::lock_guard lock(attend_mutex_);
    attend_.notify_one();
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
    bytes_came_.notify_all();
  }
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
  decltype(notices_) notices;
  {
    std::lock_guard lock(functions_mutex_);
    if (!leaving_) endFunctions();
    functions_ended_ = true;
    function_due_.notify_all();
    notices.swap(notices_);
  }
  for (const auto& [number, told] : notices) told(CUDA_ERROR_DEVICE_UNAVAILABLE);
  forgetUserObjects(slot_);
  forgetStandIns(slot_);
  forgetCapturesIn(slot_);
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
      std::lock_guard lock(waits_mutex_);
      ++received_;
      failures_.emplace(std::pair(context, head.number), static_cast<CUresult>(head.result));
      any_failure_.store(true);
      forgetSetAttributes();
      base::logDebug("%s failed at the gpunode: %d", functionName(head.function).c_str(),
                     head.result);
      break;
    }
    case Answer::kBroken: {
      const auto context = reader.value<uint64_t>();
      std::lock_guard lock(waits_mutex_);
      ++received_;
      if (!reader.ok() || !broken_.emplace(context, static_cast<CUresult>(head.result)).second)
        break;
      any_failure_.store(true);
      base::logError(
          "the gpunode had no memory for an allocation that it was expected to have (CUDA error "
          "%d): every call "
          "that uses this context fails from now on",
          head.result);
      break;
    }
    case Answer::kFault: {
      const auto context = reader.value<uint64_t>();
      {
        std::lock_guard lock(waits_mutex_);
        ++received_;
      }
      if (reader.ok()) noteFault(context, static_cast<CUresult>(head.result));
      break;
    }
    case Answer::kBytes: {
      Rows expected;
      {
        std::lock_guard lock(waits_mutex_);
        ++received_;
        const auto found = expected_.find(head.number);
        if (found == expected_.end()) break;
        expected =
            found->second;  // it stays until its bytes are there: who is to read them waits for it
      }
      // None: they are there already, or the copy has failed.
      const auto bytes = reader.raw(reader.left());
      if (!bytes.empty() && bytes.size() != expected.bytes()) {
        channel_.close("bytes of a copy that are not as many as it asked for");
        return;
      }
      if (const std::byte* from = bytes.data(); !bytes.empty()) {
        expected.forEach([&](std::byte* row) {
          std::memcpy(row, from, expected.width);
          from += expected.width;
        });
      }
      {
        std::lock_guard lock(waits_mutex_);
        expected_.erase(head.number);
        bytes_came_.notify_all();
      }
      bytes_come_.fetch_sub(1);
      comes_.fetch_sub(1);
      break;
    }
    case Answer::kHostBytes: {
      {
        std::lock_guard lock(waits_mutex_);
        ++received_;
      }
      while (reader.ok() && reader.left() > 0) {
        if (Run run; readRun(reader, &run)) takePinned(slot_, run);
      }
      // One for each launch, at most as many as are expected.
      const auto answered =
          std::min<uint64_t>(head.number, changes_expected_.load() - changes_answered_.load());
      changes_answered_.fetch_add(answered);
      comes_.fetch_sub(static_cast<uint32_t>(answered));
      break;
    }
    case Answer::kHostFunction: {
      {
        std::lock_guard lock(waits_mutex_);
        ++received_;
      }
      std::function<void(CUresult)> told;
      std::unique_lock lock(functions_mutex_);
      if (auto notice = notices_.extract(head.number); !notice.empty())
        told = std::move(notice.mapped());
      if (told) {
        lock.unlock();
        comes_.fetch_sub(1);
        told(static_cast<CUresult>(head.result));
        break;
      }
      if (head.result == kFunctionNotTaken) {
        lock.unlock();
        (void)functionDoesNotCome(head.number);
        break;
      }
      due_.emplace_back(head.number, static_cast<CUresult>(head.result));
      function_due_.notify_one();
      break;
    }
    case Answer::kUserObjectGone:
    case Answer::kLog: {
      {
        std::lock_guard lock(waits_mutex_);
        ++received_;
      }
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
  if (!any_failure_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  const uint64_t context = contextIn(this);
  const uint32_t thread = thisThread();
  std::lock_guard lock(waits_mutex_);
  if (const auto broken = broken_.find(context); broken != broken_.end()) return broken->second;
  if (!tells) return CUDA_SUCCESS;
  auto found = failures_.find({context, thread});
  if (found == failures_.end()) found = failures_.find({0, thread});
  if (found == failures_.end()) {
    found = failures_.lower_bound({context, 0});
    if (found == failures_.end() || found->first.first != context) return CUDA_SUCCESS;
  }
  const CUresult result = found->second;
  failures_.erase(found);
  any_failure_.store(!failures_.empty() || !broken_.empty());
  return result;
}

void Session::noteFault(uint64_t context, CUresult fault) {
  std::lock_guard lock(waits_mutex_);
  faults_.emplace(context, fault);
  any_fault_.store(true);
}

CUresult Session::faultOf(uint64_t context) {
  if (!any_fault_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  std::lock_guard lock(waits_mutex_);
  const auto found = faults_.find(context);
  return found != faults_.end() ? found->second : CUDA_SUCCESS;
}

void Session::contextGone(uint64_t context) {
  forgetDeviceMemory(context);
  forgetOwnStreams(context);
  forgetCapturesOf(context);
  std::lock_guard lock(waits_mutex_);
  broken_.erase(context);
  faults_.erase(context);
  any_fault_.store(!faults_.empty());
  std::erase_if(failures_, [&](const auto& one) { return one.first.first == context; });
  any_failure_.store(!failures_.empty() || !broken_.empty());
}

// --- what comes by itself ------------------------------------------------------------------------

void Session::somethingComes() {
  comes_.fetch_add(1);
  std::lock_guard lock(attend_mutex_);
  attend_.notify_one();
}

uint32_t Session::expectRows(const Rows& into) {
  uint32_t number = 0;
  {
    std::lock_guard lock(waits_mutex_);
    number = next_expected_++;
    expected_[number] = into;
    bytes_come_.fetch_add(1);
  }
  somethingComes();
  return number;
}

void Session::bytesDoNotCome(uint32_t number) {
  std::lock_guard lock(waits_mutex_);
  if (expected_.erase(number) == 0) return;
  bytes_came_.notify_all();
  bytes_come_.fetch_sub(1);
  comes_.fetch_sub(1);
}

void Session::expectChanges() {
  changes_expected_.fetch_add(1);
  comes_.fetch_add(1);
  // The call that is posted now wakes the attendant.
}

void Session::changesDoNotCome() {
  changes_answered_.fetch_add(1);
  comes_.fetch_sub(1);
}

// Under waits_mutex_.
bool Session::expects(uint64_t address, uint64_t bytes) const {
  return std::any_of(expected_.begin(), expected_.end(),
                     [&](const auto& entry) { return entry.second.touch(address, bytes); });
}

bool Session::bytesOutstanding(uint64_t address, uint64_t bytes) {
  // Whoever counted the last one had put it in place.
  if (bytes_come_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard lock(waits_mutex_);
  return expects(address, bytes);
}

// The attendant receives them.
void Session::awaitBytes(uint64_t address, uint64_t bytes) {
  if (bytes_come_.load(std::memory_order_acquire) == 0) return;
  (void)channel_.flush();
  std::unique_lock lock(waits_mutex_);
  while (!ended_ && expects(address, bytes)) bytes_came_.wait_for(lock, kSlice);
}

uint32_t Session::expectFunction(std::function<void(CUresult)> run, FunctionKind kind) {
  uint32_t number = 0;
  {
    std::lock_guard lock(functions_mutex_);
    number = next_function_++;
    functions_[number] = {std::move(run), kind};
    has_functions_.store(true);
    if (kind == FunctionKind::kInGraph)
      functions_in_graphs_.store(true);
    else
      functions_outstanding_.fetch_add(1);
  }
  // One of a graph comes when that is launched (expectGraphEnd).
  if (kind != FunctionKind::kInGraph) somethingComes();
  return number;
}

bool Session::functionDoesNotCome(uint32_t number) {
  std::lock_guard lock(functions_mutex_);
  const auto found = functions_.find(number);
  if (found == functions_.end()) return false;
  if (found->second.kind != FunctionKind::kInGraph)
    functions_outstanding_.fetch_sub(1), comes_.fetch_sub(1);
  functions_.erase(found);
  return true;
}

// The session is lost, under functions_mutex_. What the worker has called is called. Of the others
// CUDA calls callbacks behind a failure, with its error, and no host functions.
void Session::endFunctions() {
  std::set<uint32_t> called;
  for (const auto& [number, status] : due_) called.insert(number);
  std::set<uint32_t> callbacks;  // in the order in which they were enqueued
  std::erase_if(functions_, [&](const auto& one) {
    const auto& [number, function] = one;
    if (called.contains(number)) return false;
    if (function.kind == FunctionKind::kCallback) {
      callbacks.insert(number);
      return false;
    }
    if (function.kind == FunctionKind::kHost)
      functions_outstanding_.fetch_sub(1), comes_.fetch_sub(1);
    return true;
  });
  for (const uint32_t number : callbacks) due_.emplace_back(number, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

uint32_t Session::expectNotice(std::function<void(CUresult)> told) {
  uint32_t number = 0;
  {
    std::lock_guard lock(functions_mutex_);
    if (ended_) return 0;
    number = next_function_++;
    notices_.emplace(number, std::move(told));
    has_functions_.store(true);
  }
  somethingComes();
  return number;
}

bool Session::forgetNotice(uint32_t number) {
  std::lock_guard lock(functions_mutex_);
  if (notices_.erase(number) == 0) return false;
  comes_.fetch_sub(1);
  return true;
}

uint32_t Session::expectGraphEnd() {
  if (!functions_in_graphs_) return 0;
  graphs_outstanding_.fetch_add(1);
  const uint32_t number = expectNotice([this](CUresult) { graphs_outstanding_.fetch_sub(1); });
  if (number == 0) graphs_outstanding_.fetch_sub(1);
  return number;
}

void Session::graphDoesNotEnd(uint32_t number) {
  if (forgetNotice(number)) graphs_outstanding_.fetch_sub(1);
}

uint32_t Session::newGate() {
  std::lock_guard lock(functions_mutex_);
  has_functions_.store(true);  // other calls end what is behind it
  return next_function_++;
}

void Session::openGate(uint32_t number) { say(Operation::kOpenGate, number); }

void Session::exportGone(uint32_t number) { say(Operation::kExportGone, number); }

// Of none of the program's threads.
void Session::say(Operation operation, uint32_t number) {
  Writer said;
  said.value(CallHead{static_cast<uint16_t>(operation), 0, 0, 0, 0, 0});
  said.value(number);
  (void)channel_.write({said.bytes}, true);
}

void Session::breakContext(uint64_t context, CUresult why) {
  std::lock_guard lock(waits_mutex_);
  if (!broken_.emplace(context, why).second) return;
  any_failure_.store(true);
  base::logError(
      "what a stream waited for at another gpunode failed or is lost (CUDA error %d): every call "
      "that uses its context "
      "on gpunode %s fails from now on",
      static_cast<int>(why), gpunode_.c_str());
}

bool Session::functionsOutstanding() const {
  return !t_in_function && (functions_outstanding_.load() != 0 || graphs_outstanding_.load() != 0);
}

void Session::runFunctions() {
  t_in_function = true;
  std::unique_lock lock(functions_mutex_);
  for (;;) {
    function_due_.wait(lock, [&] { return !due_.empty() || functions_ended_; });
    if (due_.empty()) return;
    const auto [number, status] = due_.front();
    due_.erase(due_.begin());
    const auto found = functions_.find(number);
    if (found == functions_.end()) {  // nobody's: its stream goes on
      lock.unlock();                  // it may wait for room, and who makes some may need the mutex
      say(Operation::kHostFunctionDone, number);
      lock.lock();
      continue;
    }
    const auto run = found->second.run;
    const bool again = found->second.kind == FunctionKind::kInGraph;
    if (!again) functions_.erase(found);
    lock.unlock();
    run(status);
    // What it changed is there for what is behind it in the stream, and in streams of other
    // sessions that wait for this one.
    for (Session* const session : existingSessions()) {
      sendPinnedNow(session);
      sendStandInsNow(session);
    }
    say(Operation::kHostFunctionDone, number);
    if (!again) functions_outstanding_.fetch_sub(1), comes_.fetch_sub(1);
    lock.lock();
  }
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
    const uint64_t posts = posts_.load(std::memory_order_relaxed);
    const auto now = std::chrono::steady_clock::now();
    if (posts != seen) active = now, rest = kAwake;
    seen = posts;
    const bool comes = comes_.load() != 0;
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
    std::unique_lock lock(attend_mutex_);
    // Somebody else receives, and sends what finds room by that.
    if (comes || channel_.unsent()) {
      attend_.wait_for(lock, 1ms);
      continue;
    }
    attendant_sleeps_.store(true);
    if (posts_.load() == seen && !channel_.unsent() && comes_.load() == 0)
      attend_.wait_for(lock, rest);
    attendant_sleeps_.store(false);
    rest = std::min<std::chrono::milliseconds>(2 * rest, kLongest);
  }
}

// --- answers that stay ---------------------------------------------------------------------------

namespace {
// The function, the context and the arguments; not the thread, nor the number of the wait.
std::string keyOf(const std::vector<std::byte>& record) {
  CallHead head;
  std::memcpy(&head, record.data(), sizeof head);
  std::string key(reinterpret_cast<const char*>(&head.function), sizeof head.function);
  key.append(reinterpret_cast<const char*>(&head.context), sizeof head.context);
  key.append(reinterpret_cast<const char*>(record.data()) + sizeof head,
             record.size() - sizeof head);
  return key;
}

// The same the other way round.
struct Question {
  size_t function;
  std::string_view arguments;
};
Question questionIn(std::string_view key) {
  uint16_t function = 0;
  std::memcpy(&function, key.data(), sizeof function);
  return {function, key.substr(sizeof function + sizeof(uint64_t))};
}
}  // namespace

bool Session::remembered(const std::vector<std::byte>& record, Wait& wait) {
  const std::string key = keyOf(record);
  std::lock_guard lock(remembered_mutex_);
  const auto found = remembered_.find(key);
  if (found == remembered_.end()) return false;
  wait.record = found->second;
  wait.result = CUDA_SUCCESS;
  wait.answered = true;
  return true;
}

void Session::remember(const std::vector<std::byte>& record, const Wait& wait) {
  std::lock_guard lock(remembered_mutex_);
  if (remembered_.size() >= kMostRemembered) remembered_.clear();
  remembered_[keyOf(record)] = wait.record;
}

void Session::forgetAnswers() {
  forgetLayouts();
  forgetSetAttributes();
  std::lock_guard lock(remembered_mutex_);
  remembered_.clear();
}

void Session::forgetAnswersOf(api::Symbol symbol) {
  forgetAnswersIf(
      [&](size_t function, std::string_view) { return function == static_cast<size_t>(symbol); });
}

void Session::forgetAnswersIf(
    const std::function<bool(size_t function, std::string_view arguments)>& is) {
  std::lock_guard lock(remembered_mutex_);
  std::erase_if(remembered_, [&](const auto& entry) {
    const Question question = questionIn(entry.first);
    return is(question.function, question.arguments);
  });
}

void Session::atExit() {
  if (ended_) return;
  Writer goodbye;
  goodbye.value(CallHead{static_cast<uint16_t>(Operation::kGoodbye), 0, 0, 0, 0, 0});
  Wait wait;
  if (base::logs(base::LogLevel::kDebug)) tellTrips(slot_, gpunode_);
  leaving_.store(true);
  (void)call(goodbye.bytes, {}, wait);
  std::lock_guard lock(waits_mutex_);
  ended_.store(true);
}

}  // namespace olpager::forward
