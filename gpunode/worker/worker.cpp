#include "gpunode/worker/worker.h"

#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "base/kernel_faults.h"
#include "base/log.h"
#include "forwarding/control.h"
#include "gpunode/worker/introductions.h"
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
// The call that this thread makes has been answered.
thread_local bool t_answered = false;
// A context that is gone may leave its address to a new one: every thread tells the driver anew.
std::atomic<uint64_t> g_contexts_gone{0};
thread_local uint64_t t_contexts_gone = 0;

// The context that this call takes down when it succeeds; 0: none. `arguments` are those of the
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
    : options_(options), handles_(options.slot), resources_(options.slot) {
  staging_.askBeforeWaits([this] { return driverMayWait(); });
}

Status Worker::start() {
  if (auto loaded = library_.load(options_.library); !loaded.ok()) return loaded;
  (void)operations_.load(library_);  // an executor has to have them (Agent::start)
  if (auto* const on_wait = library_.function<decltype(olpager_on_wait)>("olpager_on_wait");
      on_wait != nullptr)
    on_wait(&Lead::waitsForMemory);
  if (auto* const set_connect =
          library_.function<decltype(olpager_set_connect)>("olpager_set_connect");
      set_connect != nullptr)
    set_connect([](const char* name) { return introductions().connectTo(name).release(); });
  // Before the worker gives up the right to make a file.
  if (auto* const links = library_.function<decltype(olpager_links)>("olpager_links");
      links != nullptr)
    links_counted_ = links();
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
  auto* const log_there = library_.function<decltype(olpager_set_log)>("olpager_set_log");
  if (log_there != nullptr) log_there(log, told, told >= 0 ? "at the gpunode: " : "");
  return {};
}

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

void Worker::endNow(const std::string& why, uint32_t lost_executor) {
  constexpr auto kTick = 10ms;
  constexpr auto kMost = 500ms;
  tell(Answer::kEnds, lost_executor, CUDA_SUCCESS, std::as_bytes(std::span(why)), true);
  // A client that has heard lets go of its link.
  const auto end = std::chrono::steady_clock::now() + kMost;
  while (channel_.linkUp() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kTick);
  base::logInfo("the session ends: %s", why.c_str());
  leave(0);
}

void Worker::leave(int status) {
  // One thread ends the process, and takes its time for it. Others wait for that end here.
  static std::mutex leaving;
  leaving.lock();
  if (at_leave_) at_leave_();
  constexpr auto kMost = 2s;
  constexpr auto kTick = 5ms;
  if (auto* const stop = library_.function<decltype(olpager_stop)>("olpager_stop");
      options_.memservers && stop != nullptr) {
    static std::atomic<bool> told{false};  // the thread outlives this call
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

std::string Worker::serve(std::function<bool()> rejoined) {
  queues_.start();
  std::string why = lead_.serve(std::move(rejoined));
  if (base::logs(base::LogLevel::kDebug)) made_.times.tell("calls made", "in them");
  return why;
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
        if (!lead_.rejoin()) return false;
        break;
      case calls::Channel::Over::kNotYet:
        if (ended()) return false;
        break;
    }
  }
}

void Worker::makeAhead(const std::vector<std::byte>& record) {
  forward::Reader reader(record);
  forward::Names names;
  const CallHead head = forward::takeHead(reader, &names);
  Invocation in(*this, head, reader, names);
  count(record);
  (void)served(writtenService(head.function), in);
}

// The operation of a thread that waits for memory by itself.
PagerOperation& Worker::ownOperation() const {
  static thread_local PagerOperation own(operations_, nullptr, nullptr);
  return own;
}

void Worker::count(const std::vector<std::byte>& record) {
  made_.calls.fetch_add(1, std::memory_order_relaxed);
  made_.moved.fetch_add(record.size(), std::memory_order_relaxed);
}

void Worker::makeTimed(const std::vector<std::byte>& record, PagerOperation* operation) {
  if (!base::logs(base::LogLevel::kDebug)) {
    make(record, operation);
    return;
  }
  const auto begun = std::chrono::steady_clock::now();
  make(record, operation);
  const auto head = forward::Reader(record).value<CallHead>();
  made_.times.note(head.function, std::chrono::steady_clock::now() - begun);
}

void Worker::make(const std::vector<std::byte>& record, PagerOperation* operation) {
  forward::Reader reader(record);
  forward::Names names;
  forward::Aged aged;
  const CallHead head = forward::takeHead(reader, &names, &aged);
  Invocation in(*this, head, reader, names);
  if (operation == nullptr || !operation->isSuspended()) count(record);
  const bool is_aged = (head.flags & forward::kAged) != 0;
  if (!reader.ok() || (is_aged && !agent_.started())) {
    lead_.nonsense(head);
    return;
  }
  const bool written = head.function >= static_cast<uint16_t>(forward::Operation::kDescribe);
  const Serve service = written ? writtenService(head.function) : generatedService(head.function);
  queues_.look(head, reader);
  // The context that was current in the client's thread.
  uint64_t context = 0;
  if (head.context != 0 && !handles_.find(head.context, HandleKind::kContext, &context)) {
    // A primary context that nobody retained yet: as if there were none.
    context = 0;
  }
  const uint64_t ends = contextThatEnds(head, reader, options_.handle_slot);
  uint64_t ending = 0;
  if (ends != 0) (void)handles_.find(ends, HandleKind::kContext, &ending);
  if ((head.flags & forward::kBehindAll) != 0) lead_.awaitOperations();
  if (exchange_.owes() && Exchange::settlesBefore(head)) exchange_.settle();
  if (ends != 0) {
    faults_.contextEnds(ends);
  } else if (context != 0) {
    faults_.called(head);
  }
  CUresult result = CUDA_SUCCESS;
  t_answered = false;
  const CalledWith with = written ? CalledWith{} : calledWith(head.function);
  const auto call = [&] {
    const auto make = [&] { return served(service, in); };
    return with.launches_graph ? client_functions_.launchGraph(in, with, reader, make) : make();
  };
  const auto serve = [&] {
    setCurrent(handleFrom<CUcontext>(context));
    const bool has_age = is_aged && aged.age != forward::Aged::kNoOperation;
    if (is_aged && !agent_.awaitRegions(aged.regions)) {
      result = CUDA_ERROR_DEINITIALIZED;
      return;
    }
    PagerOperation* const its = operation != nullptr ? operation
                                : has_age            ? &ownOperation()
                                                     : nullptr;
    if (its == nullptr) {
      result = call();
      return;
    }
    if (!*its) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
      return;
    }
    its->enter(aged.age, aged.oldest);
    result = call();
    if (result == kOlpagerSuspended) return its->suspend();
    const bool told = its->over();
    if (has_age) agent_.made(aged.age, told);
  };
  if (api::holds(api::Fact::kCaptures, head.function)) {
    capture_thread_.run(serve);
  } else if ((head.flags & forward::kRelaxed) != 0) {
    const Relaxed relaxed(driver());
    serve();
  } else {
    serve();
  }
  if (result == kOlpagerSuspended) return;
  if (ends != 0 && result == CUDA_SUCCESS && !isStillThere(head, reader)) {
    contextGone(ends, handleFrom<CUcontext>(ending));
  }
  // Before the answer: who has it knows by then which contexts are of no use any more.
  const bool told = base::isKernelFault(result) && faults_.look(head.context);
  if (head.reply == 0 || t_answered) {
    if (result != CUDA_SUCCESS && head.thread != 0 && !told) {
      const AnswerHead failed{Answer::kFailed, head.thread, result, head.function};
      (void)channel_.write(
          {std::as_bytes(std::span(&failed, 1)), std::as_bytes(std::span(&head.context, 1))});
    }
    return;
  }
  // Output of kernels is there before the call that waited for them returns, and the driver's words
  // on a failure before the error is: the program may end then.
  const bool fails = result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
  if (fails || head.function == static_cast<uint16_t>(forward::Operation::kGoodbye)) {
    drainText();
  } else if ((head.flags & forward::kMayWait) != 0) {
    text_.drain();
  }
  const auto& results = in.results().bytes;
  made_.moved.fetch_add(results.size(), std::memory_order_relaxed);
  const AnswerHead reply{Answer::kReply, head.reply, result,
                         result == CUDA_SUCCESS || !results.empty() ? 1u : 0u};
  (void)channel_.write({std::as_bytes(std::span(&reply, 1)), results}, true);
}

void Worker::countLinks() {
  if (links_counted_ == nullptr) return;
  const std::lock_guard lock(counting_);
  status::LinkBytes& client = links_counted_->of(0);
  status::setName(client.peer, options_.client);
  channel_.count(client, true);
  agent_.count(client);
  client.end.store(static_cast<uint64_t>(status::LinkEnd::kProgram), std::memory_order_release);
  peers_.count(*links_counted_);
}

void Worker::answer(const CallHead& head, CUresult result) {
  const AnswerHead reply{Answer::kReply, head.reply, result, result == CUDA_SUCCESS ? 1u : 0u};
  (void)channel_.write({std::as_bytes(std::span(&reply, 1))}, true);
}

void Worker::answerEarly(const CallHead& head) {
  answer(head, CUDA_SUCCESS);
  t_answered = true;
}

CUcontext Worker::current() { return t_current; }

CUcontext Worker::contextOf(CUstream stream) const {
  CUcontext context = nullptr;
  if (stream == nullptr || stream == CU_STREAM_LEGACY || driver().cuStreamGetCtx == nullptr ||
      driver().cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
    return current();
  return context;
}

void Worker::setCurrent(CUcontext context) {
  if (const uint64_t gone = g_contexts_gone.load(); gone != t_contexts_gone) {
    t_contexts_gone = gone;
    t_current_known = false;
  }
  if (t_current_known && context == t_current) return;
  t_current_known = driver().cuCtxSetCurrent(context) == CUDA_SUCCESS;
  t_current = context;
}

void Worker::tell(Answer kind, uint32_t number, CUresult result, std::span<const std::byte> bytes,
                  bool flush) {
  const AnswerHead head{kind, number, result, 0};
  made_.moved.fetch_add(bytes.size(), std::memory_order_relaxed);
  (void)channel_.write({std::as_bytes(std::span(&head, 1)), bytes}, flush);
}

// A primary context that others have retained too outlives its release.
bool Worker::isStillThere(const CallHead& head, forward::Reader arguments) const {
  if (!api::holds(api::Fact::kReleasesPrimary, head.function)) return false;
  unsigned flags = 0;
  int active = 0;
  return driver().cuDevicePrimaryCtxGetState(arguments.value<CUdevice>(), &flags, &active) ==
             CUDA_SUCCESS &&
         active != 0;
}

void Worker::contextGone(uint64_t context, CUcontext known_as) {
  exchange_.contextGone(known_as);
  g_contexts_gone.fetch_add(1);
  staging_.contextGone(context);
  client_functions_.contextGone(context);
  gates_.contextGone(context);
  peers_.contextGone(context);
  thread_streams_.contextGone(context);
}

}  // namespace olpager::gpunode
