#include "interpose/forward/call.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <new>

#include "base/log.h"
#include "forwarding/tally.h"
#include "forwarding/wire/copies.h"
#include "interpose/api/function_facts.h"
#include "interpose/forward/answer_cache.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/kernel_attributes.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/per_thread.h"
#include "interpose/forward/program.h"
#include "interpose/forward/session_parts.h"

namespace olpager::forward {
namespace {

// Buffers of calls that are over, for the next ones of the thread.
using Buffers = std::vector<std::vector<std::byte>>;
Buffers& buffers() {
  struct Tag;
  return PerThread<Buffers, Tag>::get();
}

const char* keep(std::string_view text) {
  KeptTexts& texts = *program().parts().texts;
  std::lock_guard lock(texts.mutex);
  const auto found = texts.all.find(text);
  return (found != texts.all.end() ? found : texts.all.emplace(text).first)->c_str();
}

// True for calls that say that work is done, or bring what it has made (Fact::kTellsFailures).
bool tellsOfFailures(const CallHead& head) {
  if (api::holds(api::Fact::kTellsFailures, head.function)) return true;
  const bool waits = (head.flags & kMayWait) != 0;
  switch (static_cast<Operation>(head.function)) {
    case Operation::kCopyOut:
      return true;
    case Operation::kCopyIn:
    case Operation::kCopyDevice:
    case Operation::kCopyPeer:
      return waits;
    default:
      return false;
  }
}

}  // namespace

CUresult refused(const char* function, bool never) {
  base::warnOnce(function,
                 never ? "%s is not offered in forwarded mode"
                       : "%s is not there yet in forwarded mode: CUDA_ERROR_NOT_SUPPORTED",
                 function);
  return inForkedChild() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult failedWith(const char* function, const std::exception& error) noexcept {
  base::logError("%s failed: %s", function, error.what());
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? CUDA_ERROR_OUT_OF_MEMORY
                                                                : CUDA_ERROR_UNKNOWN;
}

namespace {

// Begins a record, in a buffer of a call that is over.
std::vector<std::byte> recordOf(uint16_t function, const Session* session) {
  std::vector<std::byte> record;
  if (Buffers& free = buffers(); !free.empty()) {
    record = std::move(free.back());
    free.pop_back();
  }
  const CallHead head{function, 0, 0, contextIn(session), 0, 0};
  record.resize(sizeof head);
  std::memcpy(record.data(), &head, sizeof head);
  return record;
}

}  // namespace

Call::Call(uint16_t function, Session* session)
    : session_(session),
      executor_(session != nullptr ? &session->executor() : nullptr),
      out_{recordOf(function, session)},
      group_(session != nullptr && session->group() != nullptr
                 ? std::make_unique<GroupCall>(*session, out_.bytes)
                 : nullptr) {}

Call::~Call() {
  if (waits_) leave();  // an exception came between
  constexpr size_t kFree = 4, kLargest = 64 << 10;
  if (Buffers& free = buffers(); free.size() < kFree && out_.bytes.capacity() <= kLargest)
    free.push_back(std::move(out_.bytes));
}

bool Call::finishWithin(std::chrono::milliseconds time, CUresult* result) {
  const bool came =
      group_ == nullptr ? executor_->finishWithin(wait_, time) : group_->finishWithin(wait_, time);
  if (came) *result = finish();
  return came;
}

CUresult Call::receive() {
  return group_ == nullptr ? executor_->finish(wait_) : group_->finish(wait_);
}

void Call::leave() {
  if (group_ == nullptr) {
    executor_->leave(wait_);
  } else {
    group_->leave(wait_);
  }
}

void Call::copy(const CopyHead& head) {
  value(head);
  if (group_ == nullptr) return;
  inStream(reinterpret_cast<CUstream>(head.stream), head.per_thread != 0);
  if (head.shape != CopyShape::kLinear) {
    sides(head.box);
  } else if (head.array == 0) {
    if (head.device != 0) uses(head.device, head.bytes);
    // A copy between two places of the worker's has the other one there (headBetween).
    if (this->head().function == static_cast<uint16_t>(Operation::kCopyDevice))
      uses(head.offset, head.bytes);
  }
}

void Call::sides(const CUDA_MEMCPY3D& box) {
  if (box.srcMemoryType == CU_MEMORYTYPE_DEVICE) uses(box.srcDevice, 0);
  if (box.dstMemoryType == CU_MEMORYTYPE_DEVICE) uses(box.dstDevice, 0);
}

void Call::eachAnswer(const std::function<void(unsigned executor, Reader reply)>& each) {
  const auto replyOf = [](const Wait& wait) {
    Reader reply(wait.record);
    (void)reply.value<AnswerHead>();
    return reply;
  };
  if (group_ == nullptr) {
    if (wait_.answered) each(0, replyOf(wait_));
    return;
  }
  group_->eachAnswer(wait_,
                     [&](unsigned executor, const Wait& wait) { each(executor, replyOf(wait)); });
}

uint64_t Call::newNumber() { return session_ != nullptr ? session_->newNumber() : 0; }

void Call::names(const Names& drawn) {
  assert(out_.bytes.size() == argumentsAt(head()));
  head().flags |= kNames;
  out_.value(drawn);
}

bool Call::isOfAnother(uint64_t handle) const {
  const Session* const its = sessionOfHandle(handle);
  return its != nullptr && its != session_;
}

void Call::string(const char* text) {
  value(static_cast<uint8_t>(text != nullptr));
  if (text != nullptr) out_.text(text);
}

CUresult Call::ready() {
  if (session_ == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (!session_->initialized() && !before_init_ && head().context != 0)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (other_device_) return CUDA_ERROR_INVALID_DEVICE;
  if (other_session_) return CUDA_ERROR_INVALID_HANDLE;
  // Also while nothing captures: something may by the time that the call is made.
  if (!captureForbids()) head().flags |= kRelaxed;
  return too_long_ || no_memory_ ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult Call::begin(bool flush) {
  if (const CUresult error = ready(); error != CUDA_SUCCESS) return error;
  waits_ = true;  // also where it throws; a wait without a number is nobody's
  waits_ = group_ == nullptr ? executor_->begin(out_.bytes, bulk_, wait_, flush)
                             : group_->begin(out_.bytes, bulk_, wait_, flush);
  if (waits_) return CUDA_SUCCESS;
  return group_ == nullptr ? CUDA_ERROR_DEVICE_UNAVAILABLE : group_->refusal();
}

CUresult Call::finish() {
  const CUresult result = receive();
  waits_ = false;
  reply_ = Reader(wait_.record);
  if (wait_.done) (void)reply_.value<AnswerHead>();
  forget();
  return result != CUDA_SUCCESS || of_our_own_ ? result
                                               : session_->takeFailure(tellsOfFailures(head()));
}

void Call::forget() {
  if (forgets_) {  // handles may be given out again
    forgetLayouts();
    forgetSetAttributes();
    session_->answers().forgetAll();
  }
  if (changes_kernels_) session_->answers().forgetIf(changesWithKernel);
}

CUresult Call::sync() {
  const CUresult begun = begin(true);
  return begun == CUDA_SUCCESS ? finish() : begun;
}

CUresult Call::cached() {
  if (const CUresult error = ready(); error != CUDA_SUCCESS) return error;
  if (session_->answers().find(out_.bytes, &wait_.record)) {
    wait_.result = CUDA_SUCCESS;
    wait_.answered = true;
    reply_ = Reader(wait_.record);
    (void)reply_.value<AnswerHead>();
    return CUDA_SUCCESS;
  }
  const CUresult result = sync();
  if (result == CUDA_SUCCESS && wait_.answered) session_->answers().keep(out_.bytes, wait_.record);
  return result;
}

void Call::finishAhead() {
  const CUresult result = receive();
  waits_ = false;
  if (result == CUDA_SUCCESS && wait_.answered) session_->answers().keep(out_.bytes, wait_.record);
}

CUresult Call::oneWay(bool flush) {
  // A call that can't be captured tells so by itself.
  if (capturing() && head().function < api::kSymbolCount) return sync();
  if (const CUresult error = ready(); error != CUDA_SUCCESS) return error;
  if (!of_our_own_) {
    if (const CUresult fault = session_->faultOf(head().context); fault != CUDA_SUCCESS)
      return fault;
  }
  forget();
  return group_ == nullptr ? executor_->post(out_.bytes, bulk_, flush)
                           : group_->post(out_.bytes, bulk_, flush);
}

void Call::takeString(char* into, uint64_t count) {
  if (into == nullptr || count == 0) return;
  const auto found = reply_.raw(count);
  const auto* const text = reinterpret_cast<const char*>(found.data());
  if (found.empty()) return;
  const size_t length = strnlen(text, count - 1);
  std::memcpy(into, text, length);
  into[length] = '\0';
}

void Call::takeText(const char** into) {
  if (into == nullptr) return;
  const bool there = reply_.value<uint8_t>() != 0;
  *into = there ? keep(reply_.text()) : nullptr;
}

CUresult Call::taken(CUresult result) const {
  if (reply_.ok()) return result;
  base::warnOnce("taken", "gpunode %s: an answer that makes no sense (%s): CUDA_ERROR_UNKNOWN",
                 executor_->name().c_str(), functionName(head().function).c_str());
  return CUDA_ERROR_UNKNOWN;
}

std::span<const std::byte> Call::keptArray() {
  struct Tag;
  auto& kept = PerThread<std::map<std::pair<uint16_t, size_t>, std::vector<std::byte>>, Tag>::get();
  const auto bytes = reply_.raw(reply_.value<uint64_t>());
  if (bytes.empty()) return {};
  auto& place = kept[{head().function, reply_.left()}];
  place.assign(bytes.begin(), bytes.end());
  return place;
}

}  // namespace olpager::forward
