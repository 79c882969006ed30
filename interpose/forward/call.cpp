#include "interpose/forward/call.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <new>

#include "base/log.h"
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

// What says that work is done, or brings what it has made (Fact::kTellsFailures).
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

Call::Call(uint16_t function, Session* session)
    : session_(session), executor_(session != nullptr ? &session->executor() : nullptr) {
  if (Buffers& free = buffers(); !free.empty()) {
    out_.bytes = std::move(free.back());
    free.pop_back();
  }
  out_.bytes.clear();
  out_.value(CallHead{function, 0, 0, contextIn(session), 0, 0});
}

Call::~Call() {
  if (waits_) executor_->leave(wait_);  // an exception came between
  constexpr size_t kFree = 4, kLargest = 64 << 10;
  if (Buffers& free = buffers(); free.size() < kFree && out_.bytes.capacity() <= kLargest)
    free.push_back(std::move(out_.bytes));
}

uint64_t Call::newNumber() { return session_ != nullptr ? session_->newNumber() : 0; }

void Call::drawNames(uint64_t count) {
  assert(out_.bytes.size() == sizeof(CallHead));
  head().flags |= kNames;
  const uint64_t names = std::min<uint64_t>(count, kMostBytes / sizeof(uint64_t));
  out_.value(Names{session_->newNumbers(names), names});
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
  if (capturing() && !captureForbids()) head().flags |= kRelaxed;
  return too_long_ ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult Call::begin(bool flush) {
  if (const CUresult error = ready(); error != CUDA_SUCCESS) return error;
  waits_ = true;  // also where it throws; a wait without a number is nobody's
  waits_ = executor_->begin(out_.bytes, bulk_, wait_, flush);
  return waits_ ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

CUresult Call::finish() {
  const CUresult result = executor_->finish(wait_);
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
  const CUresult result = executor_->finish(wait_);
  waits_ = false;
  if (result == CUDA_SUCCESS && wait_.answered) session_->answers().keep(out_.bytes, wait_.record);
}

CUresult Call::oneWay(bool flush) {
  // What can't be captured is told by the call itself.
  if (capturing() && head().function < api::kSymbolCount) return sync();
  if (const CUresult error = ready(); error != CUDA_SUCCESS) return error;
  if (!of_our_own_) {
    if (const CUresult fault = session_->faultOf(head().context); fault != CUDA_SUCCESS)
      return fault;
  }
  forget();
  return executor_->post(out_.bytes, bulk_, flush);
}

void Call::takeString(char* into, uint64_t count) {
  if (into == nullptr || count == 0) return;
  const auto found = reply_.raw(count);
  const auto* const text = reinterpret_cast<const char*>(found.data());
  if (!found.empty()) std::memcpy(into, text, std::min<size_t>(strnlen(text, count) + 1, count));
}

void Call::takeText(const char** into) {
  if (into == nullptr) return;
  const bool there = reply_.value<uint8_t>() != 0;
  *into = there ? keep(reply_.text()) : nullptr;
}

const void* Call::keptArray() {
  struct Tag;
  auto& kept = PerThread<std::map<std::pair<uint16_t, size_t>, std::vector<std::byte>>, Tag>::get();
  const auto bytes = reply_.raw(reply_.value<uint64_t>());
  if (bytes.empty()) return nullptr;
  auto& place = kept[{head().function, reply_.left()}];
  place.assign(bytes.begin(), bytes.end());
  return place.data();
}

}  // namespace olpager::forward
