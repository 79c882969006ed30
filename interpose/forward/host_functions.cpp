#include "interpose/forward/host_functions.h"

#include <set>

#include "interpose/forward/exchange.h"
#include "interpose/forward/group.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"
#include "interpose/forward/stand_ins.h"

namespace olpager::forward {
namespace {

thread_local bool t_in_function = false;  // in the thread that runs the program's host functions

}  // namespace

uint32_t HostFunctions::expect(std::function<void(CUresult)> run, FunctionKind kind) {
  uint32_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = next_++;
    functions_[number] = {std::move(run), kind};
    ever_any_.store(true);
    if (kind == FunctionKind::kInGraph)
      in_graphs_.store(true);
    else
      outstanding_.fetch_add(1);
  }
  // One of a graph comes when that is launched (expectGraphEnd).
  if (kind != FunctionKind::kInGraph) session_.somethingComes();
  return number;
}

bool HostFunctions::doesNotCome(uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = functions_.find(number);
  if (found == functions_.end()) return false;
  if (found->second.kind != FunctionKind::kInGraph)
    outstanding_.fetch_sub(1), session_.nothingComes();
  functions_.erase(found);
  return true;
}

uint32_t HostFunctions::expectNotice(std::function<void(CUresult)> told) {
  uint32_t number = 0;
  {
    std::lock_guard lock(mutex_);
    if (session_.ended()) return 0;
    number = next_++;
    notices_.emplace(number, std::move(told));
  }
  session_.somethingComes();
  return number;
}

bool HostFunctions::forgetNotice(uint32_t number) {
  std::lock_guard lock(mutex_);
  if (notices_.erase(number) == 0) return false;
  session_.nothingComes();
  return true;
}

uint32_t HostFunctions::newGate() {
  std::lock_guard lock(mutex_);
  ever_any_.store(true);  // other calls end what is behind it
  return next_++;
}

uint32_t HostFunctions::expectGraphEnd() {
  if (!in_graphs_) return 0;
  graphs_outstanding_.fetch_add(1);
  const uint32_t number = expectNotice([this](CUresult) { graphs_outstanding_.fetch_sub(1); });
  if (number == 0) graphs_outstanding_.fetch_sub(1);
  return number;
}

void HostFunctions::graphDoesNotEnd(uint32_t number) {
  if (forgetNotice(number)) graphs_outstanding_.fetch_sub(1);
}

bool HostFunctions::outstanding() const {
  return !t_in_function && (outstanding_.load() != 0 || graphs_outstanding_.load() != 0);
}

void HostFunctions::come(uint32_t number, int32_t status) {
  std::function<void(CUresult)> told;
  std::unique_lock lock(mutex_);
  if (auto notice = notices_.extract(number); !notice.empty()) told = std::move(notice.mapped());
  if (told) {
    lock.unlock();
    session_.nothingComes();
    told(static_cast<CUresult>(status));
    return;
  }
  if (status == kFunctionNotTaken) {
    lock.unlock();
    (void)doesNotCome(number);
    return;
  }
  due_.emplace_back(number, static_cast<CUresult>(status));
  due_condition_.notify_one();
}

void HostFunctions::lost(bool leaving) {
  decltype(notices_) notices;
  {
    std::lock_guard lock(mutex_);
    if (!leaving) endAll();
    ended_ = true;
    due_condition_.notify_all();
    notices.swap(notices_);
  }
  for (const auto& [number, told] : notices) told(CUDA_ERROR_DEVICE_UNAVAILABLE);
}

// Under the mutex.
void HostFunctions::endAll() {
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
    if (function.kind == FunctionKind::kHost) outstanding_.fetch_sub(1), session_.nothingComes();
    return true;
  });
  for (const uint32_t number : callbacks) due_.emplace_back(number, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

void HostFunctions::run() {
  t_in_function = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    due_condition_.wait(lock, [&] { return !due_.empty() || ended_; });
    if (due_.empty()) return;
    const auto [number, status] = due_.front();
    due_.erase(due_.begin());
    const auto found = functions_.find(number);
    if (found == functions_.end()) {  // nobody's: its stream goes on
      lock.unlock();                  // it may wait for room, and the thread that makes some may
                                      // need the mutex
      session_.functionDone(number);
      lock.lock();
      continue;
    }
    const auto run = found->second.run;
    const bool again = found->second.kind == FunctionKind::kInGraph;
    if (!again) functions_.erase(found);
    lock.unlock();
    run(status);
    // The function's changes are there for what is behind it in the stream, and in streams of other
    // sessions that wait for this one.
    for (Session* const session : existingSessions()) {
      if (session->group() != nullptr) (void)session->group()->giveManaged({.all = true});
      sendPinnedNow(session);
      sendStandInsNow(session);
    }
    session_.functionDone(number);
    if (!again) outstanding_.fetch_sub(1), session_.nothingComes();
    lock.lock();
  }
}

}  // namespace olpager::forward
