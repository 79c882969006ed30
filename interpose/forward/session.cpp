#include "interpose/forward/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <string_view>
#include <thread>

#include "base/held_signals.h"
#include "base/log.h"
#include "forwarding/wire/runs.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/answer_cache.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/context.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/counted_links.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/executor.h"
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

// The rest of a record, as text.
std::string_view textOf(Reader& reader) {
  const auto bytes = reader.raw(reader.left());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Session::Session(const base::Settings& settings, std::span<const Site> sites, unsigned slot,
                 unsigned slots)
    : slot_(slot),
      slots_(slots),
      unified_(settings.view == base::ViewSetting::kUnified),
      domain_(transport::makeDomain()),
      parts_(std::make_unique<SessionParts>(*this)),
      answers_(std::make_unique<AnswerCache>()),
      arrivals_(std::make_unique<Arrivals>(*this)),
      functions_(std::make_unique<HostFunctions>(*this)),
      own_numbers_(firstNumber(slot)),
      numbers_(unified_ ? program().parts().common_numbers : own_numbers_) {
  for (const Site& site : sites)
    executors_.push_back(std::make_unique<Executor>(
        settings, site, slot + static_cast<unsigned>(executors_.size()), slots, *this));
}

Session::~Session() = default;

bool Session::othersCall() const { return callingThreads() > 1 || functions_->everAny(); }

// All at once: the drivers start meanwhile.
Status Session::open() {
  std::vector<std::future<Status>> others;
  for (size_t i = 1; i < executors_.size(); ++i)
    others.push_back(std::async(std::launch::async, [this, i] { return executors_[i]->open(); }));
  Status status = executors_.front()->open();
  for (auto& one : others) {
    if (Status its = one.get(); status.ok()) status = std::move(its);
  }
  return status;
}

Status Session::start() {
  for (const auto& executor : executors_)
    if (Status started = executor->start(); !started.ok()) return started;
  base::ownThread([this] { functions_->run(); }).detach();
  return {};
}

bool Session::sharesMemory() const {
  return std::all_of(executors_.begin(), executors_.end(),
                     [](const auto& executor) { return executor->sharesMemory(); });
}

void Session::formGroup(std::unique_ptr<Group> group) { group_ = std::move(group); }

void Session::sayLost(const Executor& executor, const std::string& why, bool leaving) {
  const std::lock_guard lock(saying_lost_);
  if (std::exchange(lost_is_said_, true)) return;
  const std::string& gpunode = executor.name();
  if (leaving) {
    base::logDebug("gpunode %s: %s", gpunode.c_str(), why.c_str());
  } else if (executors_.size() > 1) {
    base::logError("the unified view is lost: gpunode %s: %s; every CUDA call fails from now on",
                   gpunode.c_str(), why.c_str());
  } else if (slots_ > 1) {
    base::logError(
        "the session on gpunode %s is lost: %s; every CUDA call for its devices fails from now on",
        gpunode.c_str(), why.c_str());
  } else {
    base::logError(
        "the session on the gpunode is lost: %s; every CUDA call of this program fails from now on",
        why.c_str());
  }
}

void Session::lost(const Executor& executor, const std::string& why, bool leaving) {
  sayLost(executor, why, leaving);
  if (ended_.exchange(true)) return;
  for (const auto& each : executors_)
    if (!leaving) (void)each->end(why);
  arrivals_->wake();
  functions_->lost(leaving);
  parts_->lost();
}

// --- what comes by itself ------------------------------------------------------------------------

const char* Session::heard(const Executor& executor, const AnswerHead& head, Reader reader) {
  switch (head.kind) {
    case Answer::kFailed: {
      const auto context = reader.value<uint64_t>();
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
      if (reader.ok())
        parts_->contexts->with(
            context, [&](Context& in) { in.failures.faulted(static_cast<CUresult>(head.result)); });
      break;
    }
    case Answer::kBytes: {
      if (arrivals_->bytesCome(head.number, reader.raw(reader.left()))) break;
      return "bytes of a copy that are not as many as it asked for";
    }
    case Answer::kHostBytes: {
      if (status::LinkBytes* const counted = countedLink(executor.slot()); counted != nullptr)
        status::count(counted->pinned_received, reader.left());
      while (reader.ok() && reader.left() > 0) {
        if (Run run; readRun(reader, &run)) takePinned(*this, executor.slot(), run);
      }
      // One for each launch, at most as many as are expected.
      arrivals_->changesCome(head.number);
      break;
    }
    case Answer::kHostFunction: {
      functions_->come(head.number, head.result);
      break;
    }
    case Answer::kUserObjectGone:
    case Answer::kLog: {
      if (head.kind == Answer::kUserObjectGone) {
        userObjectGone(*this, reader.value<uint64_t>());
      } else {
        driverLogged(head.number, textOf(reader));
      }
      break;
    }
    case Answer::kText: {
      std::FILE* const stream = head.number == STDERR_FILENO ? stderr : stdout;
      const std::string_view text = textOf(reader);
      (void)!std::fwrite(text.data(), 1, text.size(), stream);
      std::fflush(stream);
      break;
    }
    default:
      return "a record of no known kind";
  }
  return nullptr;
}

// The thread's own failure, else that of another that has put something into this context: a kernel
// that was not launched is nothing that may seem to have ended well, and its thread may never wait,
// or be gone.
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

// --- what nobody waits for -----------------------------------------------------------------------

void Session::somethingComes() {
  coming_.fetch_add(1);
  executor().wake();
}

void Session::openGate(uint32_t number) { executor().say(Operation::kOpenGate, number); }

void Session::exportGone(uint32_t number) { executor().say(Operation::kExportGone, number); }
void Session::functionDone(uint32_t number) {
  executor().say(Operation::kHostFunctionDone, number);
}

void Session::flush() { executor().flush(); }

void Session::breakContext(uint64_t context, CUresult why) {
  if (!parts_->contexts->with(context, [&](Context& in) { return in.failures.breaks(why); }))
    return;
  base::logError(
      "what a stream waited for at another gpunode failed or is lost (CUDA error %d): every call "
      "that uses its context "
      "on gpunode %s fails from now on",
      static_cast<int>(why), executor().name().c_str());
}

void Session::atExit() {
  if (ended_) return;
  if (base::logs(base::LogLevel::kDebug)) tellTrips(*this);
  if (group_ != nullptr) group_->leaves();
  for (const auto& executor : executors_) executor->sayGoodbye();
  ended_.store(true);
}

}  // namespace olpager::forward
