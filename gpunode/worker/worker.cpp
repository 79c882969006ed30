#include "gpunode/worker/worker.h"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/kernel_faults.h"
#include "base/log.h"
#include "forwarding/control.h"
#include "gpunode/worker/invocation.h"
#include "gpunode/worker/relaxed.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/function_facts.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;
using forward::Answer;
using forward::AnswerHead;
using forward::CallHead;

constexpr auto kSlice = 500ms;
constexpr auto kLook = 3ms;  // how long a call may wait with the lead

void* resolveIn(void* handle, const char* name) { return dlsym(handle, name); }

// What a record begins with; of one that is too short nothing.
CallHead headOf(const std::vector<std::byte>& record) {
  CallHead head{};
  if (record.size() >= sizeof head) std::memcpy(&head, record.data(), sizeof head);
  return head;
}

CUresult served(Serve service, Invocation& in) {
  if (service == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  try {
    return service(in);
  } catch (const std::exception& error) {
    base::logError("a call failed: %s", error.what());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// The current context as the last call of this thread left it.
thread_local CUcontext t_current = nullptr;
thread_local bool t_current_known = false;
// A context that is gone may leave its address to a new one: every thread tells the driver anew.
std::atomic<uint64_t> g_contexts_gone{0};
thread_local uint64_t t_contexts_gone = 0;

// The context that this call takes down when it succeeds; 0: none. Its arguments are those of the
// generated encoders.
uint64_t contextThatEnds(const CallHead& head, forward::Reader arguments, unsigned slot) {
  using api::Fact;
  if (api::holds(Fact::kEndsContext, head.function)) return arguments.value<uint64_t>();
  if (api::holds(Fact::kEndsPrimary, head.function) ||
      api::holds(Fact::kReleasesPrimary, head.function))
    return forward::primaryHandle(slot, arguments.value<CUdevice>());
  return 0;
}

}  // namespace

Worker::Worker(const WorkerOptions& options)
    : options_(options), handles_(options.slot), resources_(options.slot) {}

Status Worker::start() {
  library_ = dlopen(options_.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr)
    return Error{std::string("the worker can't load libolpager.so: ") + dlerror()};
  api::loadDriverTable(driver_, resolveIn, library_);
  const CUresult result =
      driver_.cuInit != nullptr ? driver_.cuInit(0) : CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS)
    return Error{"the driver at the gpunode can't start (CUDA error " + std::to_string(result) +
                 "); the gpunode's log says why"};
  if (driver_.cuDeviceGetCount(&devices_) != CUDA_SUCCESS || devices_ == 0)
    return Error{"the gpunode has no CUDA device"};
  const auto set_placed =
      reinterpret_cast<forward::SetPlaced>(dlsym(library_, "olpager_set_placed"));
  if (set_placed != nullptr && set_placed(&placed_base_, &placed_bytes_) == CUDA_SUCCESS)
    allocate_at_ = reinterpret_cast<forward::AllocateAt>(dlsym(library_, "olpager_allocate_at"));
  if (allocate_at_ == nullptr) placed_bytes_ = 0;
  text_.start([this](std::string_view bytes) {
    tell(Answer::kText, STDOUT_FILENO, CUDA_SUCCESS,
         std::as_bytes(std::span(bytes.data(), bytes.size())), true);
  });
  // The log is the gpunode's alone; what the driver says on standard error (assertions of kernels),
  // and what the pager warns of (why there is no memory), is the program's to see too.
  const int log = keepLog();
  if (log < 0) return {};
  base::setLogDescriptor(log);
  errors_.start([this, log](std::string_view bytes) {
    (void)!write(log, bytes.data(), bytes.size());
    tell(Answer::kText, STDERR_FILENO, CUDA_SUCCESS,
         std::as_bytes(std::span(bytes.data(), bytes.size())), true);
  });
  // The pager's threads don't wait for a client that takes nothing.
  const int told = errors_.another();
  const auto log_there = reinterpret_cast<decltype(&olpager_set_log)>(symbol("olpager_set_log"));
  if (log_there != nullptr) log_there(log, told, told >= 0 ? "at the gpunode: " : "");
  return {};
}

bool Worker::hasSymbol(const char* name) const { return symbol(name) != nullptr; }

void* Worker::symbol(const char* name) const { return dlsym(library_, name); }

void Worker::drainText() {
  text_.drainAll();
  errors_.drainAll();
}

void Worker::endWithoutClient(std::chrono::milliseconds grace) {
  std::thread([this, grace] {
    constexpr auto kTick = 100ms;
    auto seen = std::chrono::steady_clock::now();
    for (;;) {
      std::this_thread::sleep_for(kTick);
      const auto now = std::chrono::steady_clock::now();
      if (channel_.linkUp()) seen = now;
      if (now - seen <= (client_dead_ ? 0ms : grace + 1s)) continue;
      base::logWarn("the client is gone, and has left calls behind that are not made any more");
      leave(0);
    }
  }).detach();
}

void Worker::endNow(const std::string& why) {
  constexpr auto kTick = 10ms;
  constexpr auto kMost = 500ms;
  tell(Answer::kEnds, 0, CUDA_SUCCESS, std::as_bytes(std::span(why)), true);
  // A client that has heard lets go of its link.
  const auto end = std::chrono::steady_clock::now() + kMost;
  while (channel_.linkUp() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kTick);
  base::logInfo("the session ends: %s", why.c_str());
  leave(0);
}

void Worker::leave(int status) {
  if (at_leave_) at_leave_();
  constexpr auto kMost = 2s;
  constexpr auto kTick = 5ms;
  if (auto* const stop = reinterpret_cast<decltype(&olpager_stop)>(symbol("olpager_stop"));
      options_.memservers && stop != nullptr) {
    static std::atomic<bool> told{false};
    std::thread([stop] {
      stop();
      told.store(true);
    }).detach();
    const auto end = std::chrono::steady_clock::now() + kMost;
    while (!told && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kTick);
  }
  std::fflush(stderr);
  keepLastWords();
  _exit(status);
}

// --- the lead ------------------------------------------------------------------------------------

std::string Worker::serve(std::function<bool()> rejoined) {
  {
    std::lock_guard lock(lead_mutex_);
    threads_ = 1;
    rejoined_ = std::move(rejoined);
  }
  lead(0);
  if (base::logs(base::LogLevel::kDebug)) made_.tell("calls made", "in them");
  std::unique_lock lock(lead_mutex_);
  return why_.empty() ? "the program ended" : why_;
}

// Under lead_mutex_.
void Worker::startThread() {
  ++threads_;
  std::thread([this] { lead(0); }).detach();
}

// Whoever finds the link gone waits for the next: the leader, or who waits for a transfer.
bool Worker::rejoin() {
  std::lock_guard lock(rejoin_mutex_);
  if (channel_.attached()) return true;
  return !channel_.closed() && rejoined_ && rejoined_();
}

bool Worker::arrived(const calls::Transfer& transfer) {
  for (;;) {
    switch (channel_.wait(transfer, kSlice)) {
      case calls::Channel::Over::kDone:
        return true;
      case calls::Channel::Over::kFailed:
        base::logWarn("bytes of a copy could not be moved between here and the client: %s",
                      transfer.why());
        return false;
      case calls::Channel::Over::kDown:
        if (!rejoin()) return false;
        break;
      case calls::Channel::Over::kNotYet:
        if (ended_) return false;
        break;
    }
  }
}

namespace {
// What waits for nobody itself, and ends what streams wait for or says what they are to find then.
bool endsWaits(const CallHead& head) {
  switch (static_cast<forward::Operation>(head.function)) {
    case forward::Operation::kHostFunctionDone:
    case forward::Operation::kHostBytes:
    case forward::Operation::kStraightStop:
    case forward::Operation::kOpenGate:
      return true;
    default:
      return false;
  }
}
}  // namespace

// Under lead_mutex_. Whether streams wait for what the client has to say.
bool Worker::clientEndsSomething() const { return functions_ != 0 || gates_.closed() != 0; }

void Worker::gatePut() { lead_free_.notify_one(); }

// Waits for the lead: until nobody has it, or its holder waits for too long.
bool Worker::takeLead(std::unique_lock<std::mutex>& lock, uint64_t self) {
  ++followers_;
  uint64_t seen = waits_;
  while (!ended_ && leader_ != 0) {
    const uint64_t waits = waits_;
    const bool waiting = leader_waits_;
    // While calls wait now and then, by the clock: to be woken for each of them would cost more
    // than they do.
    const uint64_t call = lead_call_.load();
    const bool looks = waiting || waits != seen || clientEndsSomething();
    seen = waits;
    asleep_ += looks ? 0 : 1;
    lead_free_.wait_for(lock, looks ? kLook : kSlice);
    asleep_ -= looks ? 0 : 1;
    if (leader_ != 0 && leader_waits_ && waiting && waits_ == waits) break;
    // In a call that was not expected to wait, and that may wait for a host function or behind a
    // gate all the same: the driver loads a kernel, drains a context, or has no room for a launch
    // more, while the function is not over or the gate not open. And where the link is lost during
    // such a call the next one is taken, for which the client does not wait as long.
    const bool reads = clientEndsSomething() || !channel_.linkUp();
    if (reads && call != 0 && lead_call_.load() == call && !leader_waits_) {
      lock.unlock();
      readAhead(call);
      lock.lock();
    }
  }
  --followers_;
  if (ended_) return false;
  leader_ = self;
  leader_waits_ = false;
  if (followers_ == 0) startThread();  // somebody looks whether the leader waits
  return true;
}

void Worker::lead(uint64_t self) {
  std::vector<std::byte> record;
  std::unique_lock lock(lead_mutex_);
  self = next_thread_++;
  while (takeLead(lock, self)) {
    while (!ended_ && leader_ == self) {
      lock.unlock();
      const auto watches = faults_.turn();
      const auto turn = exchange_.owes() ? Exchange::kTurn : watches;
      // For a client that does not take its answers no more calls are made: a thread for each would
      // wait to write, with its answer in hand.
      const auto got = channel_.awaitRoom(turn) ? next(record, turn)
                       : channel_.attached()    ? calls::Channel::Read::kNothing
                                                : calls::Channel::Read::kDown;
      // Not with what ends others' waits in hand: the driver, whom that asks, may be waiting for
      // just it.
      if (exchange_.owes() &&
          !(got == calls::Channel::Read::kRecord && endsWaits(headOf(record)))) {
        lead_call_.store(++lead_calls_);
        exchange_.attend();
        lead_call_.store(0);
      }
      if (got == calls::Channel::Read::kDown && !ended_ && !rejoin()) {
        lock.lock();
        if (why_.empty())
          why_ = (channel_.closed() ? "the client sends nonsense: " : "the client is gone: ") +
                 channel_.reason();
        ended_.store(true);
        break;
      }
      if (got != calls::Channel::Read::kRecord) {
        if (got == calls::Channel::Read::kNothing) {
          lead_call_.store(++lead_calls_);
          faults_.attend();
          lead_call_.store(0);
        }
        lock.lock();
        continue;
      }
      const CallHead head = headOf(record);
      if ((head.flags & forward::kMayWait) == 0) {
        // Nobody reads past what ends others' waits: what a function changed, however long it
        // takes, is there before the function is over.
        if (!endsWaits(head)) lead_call_.store(++lead_calls_);
        makeTimed(record);
        lead_call_.store(0);
        lock.lock();
        continue;
      }
      lock.lock();
      ++waits_;
      leader_waits_ = true;
      if ((head.flags & forward::kOthersCall) != 0) {
        leader_ = 0;
        lock.unlock();
        lead_free_.notify_one();
      } else {
        const bool nobody_looks = asleep_ == followers_;
        lock.unlock();
        if (nobody_looks) lead_free_.notify_one();
      }
      makeTimed(record);
      lock.lock();
      if (leader_ == self) leader_waits_ = false;
    }
  }
  lead_free_.notify_all();
  --threads_;
}

void Worker::nonsense(const CallHead& head) {
  {
    std::lock_guard lock(lead_mutex_);
    if (why_.empty())
      why_ = "the client sends nonsense (function " + std::to_string(head.function) + ")";
  }
  ended_.store(true);
}

// Records that were read ahead come first.
calls::Channel::Read Worker::next(std::vector<std::byte>& record,
                                  std::chrono::microseconds timeout) {
  const std::lock_guard reading(reading_mutex_);
  if (ahead_.empty()) return channel_.read(record, timeout);
  record = std::move(ahead_.front());
  ahead_.pop_front();
  ahead_bytes_ -= record.size();
  return calls::Channel::Read::kRecord;
}

// While the leader stays in that call: takes what comes, and makes of it what ends host functions,
// what they changed in memory, and what opens gates. All else waits for the leader, in its order:
// nothing that a gate waits for is among it (interpose/forward/crossings.h).
void Worker::readAhead(uint64_t stuck) {
  constexpr size_t kMost = 64 << 20;
  const std::unique_lock reading(reading_mutex_, std::try_to_lock);
  if (!reading.owns_lock()) return;
  std::vector<std::byte> record;
  while (lead_call_.load() == stuck && !ended_ && ahead_bytes_ < kMost) {
    const auto got = channel_.read(record, kLook);
    if (got == calls::Channel::Read::kDown && !rejoin()) return;
    if (got != calls::Channel::Read::kRecord) continue;
    const CallHead head = headOf(record);
    const bool opens =
        static_cast<forward::Operation>(head.function) == forward::Operation::kOpenGate;
    if (endsWaits(head) && (!opens || opensNow(record))) {
      makeAhead(record);
    } else {
      ahead_bytes_ += record.size();
      ahead_.push_back(std::move(record));
    }
  }
}

// A gate whose place in its stream is not made yet is opened in its turn.
bool Worker::opensNow(const std::vector<std::byte>& record) {
  forward::Reader reader(record);
  (void)reader.value<CallHead>();
  return gates_.isPut(reader.value<uint32_t>());
}

// What needs no driver.
void Worker::makeAhead(const std::vector<std::byte>& record) {
  forward::Reader reader(record);
  const auto head = reader.value<CallHead>();
  Invocation in(*this, head, reader);
  count(record);
  (void)served(writtenService(head.function), in);
}

void Worker::count(const std::vector<std::byte>& record) {
  calls_.fetch_add(1, std::memory_order_relaxed);
  moved_.fetch_add(record.size(), std::memory_order_relaxed);
}

void Worker::makeTimed(const std::vector<std::byte>& record) {
  if (!base::logs(base::LogLevel::kDebug)) {
    make(record);
    return;
  }
  const auto begun = std::chrono::steady_clock::now();
  make(record);
  const CallHead head = headOf(record);
  made_.note(head.function, std::chrono::steady_clock::now() - begun);
}

void Worker::make(const std::vector<std::byte>& record) {
  forward::Reader reader(record);
  const auto head = reader.value<CallHead>();
  Invocation in(*this, head, reader);
  count(record);
  if (!reader.ok()) {
    nonsense(head);
    return;
  }
  const bool operation = head.function >= static_cast<uint16_t>(forward::Operation::kDescribe);
  const Serve service = operation ? writtenService(head.function) : generatedService(head.function);
  // The context that was current in the client's thread.
  uint64_t context = 0;
  if (head.context != 0 && !handles_.find(head.context, HandleKind::kContext, &context)) {
    // A primary context that nobody retained yet: as if there were none.
    context = 0;
  }
  const uint64_t ends = contextThatEnds(head, reader, options_.slot);
  uint64_t ending = 0;
  if (ends != 0) (void)handles_.find(ends, HandleKind::kContext, &ending);
  if (exchange_.owes() && Exchange::settlesBefore(head)) exchange_.settle();
  if (ends != 0) {
    faults_.contextEnds(ends);
  } else if (context != 0) {
    faults_.called(head);
  }
  CUresult result = CUDA_SUCCESS;
  const auto serve = [&] {
    setCurrent(handleFrom<CUcontext>(context));
    result = served(service, in);
  };
  if (api::holds(api::Fact::kCaptures, head.function)) {
    capture_thread_.run(serve);
  } else if ((head.flags & forward::kRelaxed) != 0) {
    const Relaxed relaxed(driver_);
    serve();
  } else {
    serve();
  }
  if (ends != 0 && result == CUDA_SUCCESS && !isStillThere(head, reader)) {
    contextGone(ends, handleFrom<CUcontext>(ending));
  }
  // Before the answer: who has it knows by then which contexts are of no use any more.
  const bool told = base::isKernelFault(result) && faults_.look(head.context);
  if (head.reply == 0) {
    if (result != CUDA_SUCCESS && head.thread != 0 && !told) {
      const AnswerHead failed{Answer::kFailed, head.thread, result, head.function};
      (void)channel_.write(
          {std::as_bytes(std::span(&failed, 1)), std::as_bytes(std::span(&head.context, 1))});
    }
    return;
  }
  // What kernels printed is there before the call that waited for them returns, and what the driver
  // says of a failure before the error is: the program may end then.
  const bool fails = result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
  if (fails || head.function == static_cast<uint16_t>(forward::Operation::kGoodbye)) {
    drainText();
  } else if ((head.flags & forward::kMayWait) != 0) {
    text_.drain();
  }
  const auto& results = in.results().bytes;
  moved_.fetch_add(results.size(), std::memory_order_relaxed);
  const AnswerHead reply{Answer::kReply, head.reply, result,
                         result == CUDA_SUCCESS || !results.empty() ? 1u : 0u};
  (void)channel_.write({std::as_bytes(std::span(&reply, 1)), results}, true);
}

CUcontext Worker::current() { return t_current; }

CUcontext Worker::contextOf(CUstream stream) const {
  CUcontext context = nullptr;
  if (stream == nullptr || stream == CU_STREAM_LEGACY || driver_.cuStreamGetCtx == nullptr ||
      driver_.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
    return current();
  return context;
}

void Worker::setCurrent(CUcontext context) {
  if (const uint64_t gone = g_contexts_gone.load(); gone != t_contexts_gone) {
    t_contexts_gone = gone;
    t_current_known = false;
  }
  if (t_current_known && context == t_current) return;
  t_current_known = driver_.cuCtxSetCurrent(context) == CUDA_SUCCESS;
  t_current = context;
}

void Worker::tell(Answer kind, uint32_t number, CUresult result, std::span<const std::byte> bytes,
                  bool flush) {
  const AnswerHead head{kind, number, result, 0};
  moved_.fetch_add(bytes.size(), std::memory_order_relaxed);
  (void)channel_.write({std::as_bytes(std::span(&head, 1)), bytes}, flush);
}

// A primary context that others have retained too outlives its release.
bool Worker::isStillThere(const CallHead& head, forward::Reader arguments) const {
  if (!api::holds(api::Fact::kReleasesPrimary, head.function)) return false;
  unsigned flags = 0;
  int active = 0;
  return driver_.cuDevicePrimaryCtxGetState(arguments.value<CUdevice>(), &flags, &active) ==
             CUDA_SUCCESS &&
         active != 0;
}

// --- streams of threads, host functions ----------------------------------------------------------

CUresult Worker::threadStream(uint32_t thread, uint64_t context, CUstream* stream) {
  std::lock_guard lock(streams_mutex_);
  ThreadStream& known = thread_streams_[{context, forward::threadPlace(thread)}];
  // Of a thread that has ended: it serves the next in its place, unless there is still something in
  // it that this one would wait for.
  if (known.stream != nullptr && known.thread != thread &&
      driver_.cuStreamQuery(known.stream) != CUDA_SUCCESS) {
    // What its launches owe goes into the stream before nobody can name it any more.
    const CUcontext before = current();
    if (exchange_.owes()) exchange_.settle();
    setCurrent(before);
    (void)driver_.cuStreamDestroy_v2(known.stream);  // goes when it is through
    known.stream = nullptr;
  }
  known.thread = thread;
  if (known.stream == nullptr) {
    if (driver_.cuStreamCreate == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    const CUresult result = driver_.cuStreamCreate(&known.stream, CU_STREAM_DEFAULT);
    if (result != CUDA_SUCCESS) {
      known.stream = nullptr;
      return result;
    }
  }
  *stream = known.stream;
  return CUDA_SUCCESS;
}

void Worker::contextGone(uint64_t context, CUcontext known_as) {
  exchange_.contextGone(known_as);
  g_contexts_gone.fetch_add(1);
  staging_.contextGone(context);
  gates_.contextGone(context);
  peers_.contextGone(context);
  std::lock_guard lock(streams_mutex_);
  std::erase_if(thread_streams_, [&](const auto& entry) { return entry.first.first == context; });
}

void Worker::callClient(uint32_t number, CUresult status) {
  const auto waits = [&](uint32_t more, uint32_t fewer) {
    std::lock_guard lock(lead_mutex_);
    functions_ += more;
    functions_ -= fewer;
  };
  {
    std::lock_guard lock(client_mutex_);
    ++called_[number].calls;
  }
  waits(1, 0);
  lead_free_.notify_one();  // looks whether the leader is in a call for long
  tell(Answer::kHostFunction, number, status, {}, true);
  {
    std::unique_lock lock(client_mutex_);
    // Without the client the stream must go on, or nothing of the session could be taken down.
    Called& called = called_[number];  // stays: this call is counted
    while (!ended_ && called.done == 0) client_done_.wait_for(lock, kSlice);
    if (called.done != 0) --called.done;
    if (--called.calls == 0) called_.erase(number);
  }
  waits(0, 1);
}

void Worker::clientFunctionDone(uint32_t number) {
  std::lock_guard lock(client_mutex_);
  const auto found = called_.find(number);
  if (found == called_.end()) return;  // nonsense
  ++found->second.done;
  client_done_.notify_all();
}

}  // namespace olpager::gpunode
