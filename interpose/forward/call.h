// One call of the program's on its way: arguments in, results out. Generated encoders write into
// it. Thread-safety: a Call belongs to its thread.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "forwarding/wire/device_resources.h"
#include "forwarding/wire/wire.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/range_extractors.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/devices.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/group_call.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"

namespace olpager::forward {

/// Texts of drivers that the program was given: each stays for the process's life.
struct KeptTexts {
  std::mutex mutex;
  std::set<std::string, std::less<>> all;
};

/// True if [address, + bytes) lies in a plain allocation of the program's (device_memory.cpp).
bool isKnownMemory(CUdeviceptr address, uint64_t bytes);
/// True if `address` lies in one, and [address, + bytes) goes beyond its end.
bool leavesKnownMemory(CUdeviceptr address, uint64_t bytes);
/// Not there in forwarded mode: CUDA_ERROR_NOT_SUPPORTED, and a line once. `never`: nor will it be.
CUresult refused(const char* function, bool never);
CUresult failedWith(const char* function, const std::exception& error) noexcept;

template <typename Body>
CUresult guarded(const char* function, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return failedWith(function, error);
  }
}

struct CopyHead;

// Many members: a function for each kind of argument and answer.
class Call {
 public:
  /// To where the arguments say, or to the session that the caller knows; null fails.
  Call(api::Symbol symbol, const Route& route)
      : Call(static_cast<uint16_t>(symbol), route.session()) {}
  Call(Operation operation, const Route& route)
      : Call(static_cast<uint16_t>(operation), route.session()) {}
  Call(api::Symbol symbol, Session* session) : Call(static_cast<uint16_t>(symbol), session) {}
  Call(Operation operation, Session* session) : Call(static_cast<uint16_t>(operation), session) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Arguments.
  template <typename T>
  void value(const T& value) {
    out_.value(value);
  }
  template <typename T>
  void array(const T* from, uint64_t count) {
    value(static_cast<uint8_t>(from != nullptr));
    if (from == nullptr) return;
    const uint64_t bytes = api::extract::saturatingProduct(count, kElement<T>);
    if (bytes > kMostBytes) {
      too_long_ = true;
      return;
    }
    out_.raw(from, bytes);
  }
  /// A handle; one of another session makes the call fail, as the driver fails where handles are of
  /// two contexts.
  template <typename T>
  void handle(T handle) {
    static_assert(sizeof handle == sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &handle, sizeof bits);
    if (severalSessions() && isOfAnother(bits)) other_session_ = true;
    out_.value(bits);
  }
  /// An argument with numbers of devices in it, sent as the worker counts them. One that is another
  /// gpunode's makes the call fail.
  template <typename T>
  void devices(T value) {
    if (session_ != nullptr && !toWorker(*session_, value)) other_device_ = true;
    out_.value(value);
  }
  template <typename T>
  void devices(const T* from, uint64_t count) {
    value(static_cast<uint8_t>(from != nullptr));
    for (uint64_t i = 0; from != nullptr && i < count && i < kMostDeviceStructures; ++i)
      devices(from[i]);
    if (count > kMostDeviceStructures) too_long_ = true;
  }
  void string(const char* text);
  void raw(const void* from, size_t bytes) { out_.raw(from, bytes); }
  void wants(const void* pointer) { value(static_cast<uint8_t>(pointer != nullptr)); }
  /// A handle of the client's own count.
  template <typename T>
  T number() {
    const uint64_t made = newNumber();
    value(made);
    T handle;
    static_assert(sizeof handle == sizeof made);
    std::memcpy(&handle, &made, sizeof made);
    return handle;
  }
  /// In the unified view: handles of the answer, so many of them at most, get numbers of the
  /// client's own count if they are new to the worker. Before any argument.
  void names(uint64_t count) {
    if (session_ == nullptr || !session_->namesAnswers()) return;
    const uint64_t drawn = std::min<uint64_t>(count, kMostBytes / sizeof(uint64_t));
    names(Names{session_->newNumbers(drawn), drawn});
  }
  /// These numbers, which have been drawn.
  void names(const Names& drawn);
  /// Inputs for the choice of an executor in a session of several (group.h): device memory that the
  /// call names; all words of its arguments that are addresses of it; and a stream, which may
  /// capture.
  void uses(uint64_t address, uint64_t bytes) {
    if (group_ != nullptr && !group_->uses(address, bytes)) no_memory_ = true;
  }
  void usesAddresses(const void* words, uint64_t bytes) {
    if (group_ != nullptr) group_->usesAddresses(words, bytes);
  }
  void asksAbout(uint64_t address) {
    if (group_ != nullptr) group_->asksAbout(address);
  }
  /// Code that runs there, or will.
  void runs(uint64_t function, uint64_t context) {
    if (group_ != nullptr) group_->runs(function, context);
  }
  void inStream(CUstream stream, bool per_thread) {
    if (group_ != nullptr) group_->inStream(stream, per_thread);
  }
  /// By an event of its own the stream may become part of another one's capture.
  void mayJoinCapture() {
    if (group_ != nullptr) group_->mayJoinCapture();
  }
  /// The sides of a copy that are device memory.
  void sides(const CUDA_MEMCPY3D& box);
  /// The head of a copy, and its operands.
  void copy(const CopyHead& head);
  /// To that executor, where the memory that it names is; of an operation in a stream that nothing
  /// else is in.
  void operatesAt(unsigned executor) {
    if (group_ != nullptr) group_->operatesAt(executor);
  }
  /// To that executor alone, whatever runs where.
  void only(unsigned executor) {
    if (group_ != nullptr) group_->only(executor);
  }
  /// After finish(): the answer of each executor that has made the call.
  void eachAnswer(const std::function<void(unsigned executor, Reader reply)>& each);
  /// Bytes behind the arguments, not copied before they are sent.
  void bulk(std::span<const std::byte> bytes) { bulk_ = bytes; }
  /// The call's session; null: none, and the call goes nowhere.
  Session* session() const { return session_; }
  void needsNoContext() { head().context = 0; }
  void inContext(uint64_t context) { head().context = context; }
  void beforeInit() { before_init_ = true; }
  void mayWait() { head().flags |= kMayWait; }
  /// Other calls may end what it waits for.
  void othersCall() { head().flags |= kOthersCall; }
  /// The worker makes the call after all operations that were sent before, whoever's they are.
  void behindAll() { head().flags |= kBehindAll; }
  /// For a stream that can't be part of a capture: no capture forbids the call.
  void relaxed() { head().flags |= kRelaxed; }
  void forgetsAnswers() { forgets_ = true; }
  void changesKernels() { changes_kernels_ = true; }
  /// The call is the library's own beside what the program asks for: an earlier failure is for the
  /// program's next call to tell, and one way it goes also where a kernel has ended the context: it
  /// is about others as well.
  void ofOurOwn() { of_our_own_ = true; }

  // Making it.
  CUresult sync();
  CUresult cached();
  CUresult oneWay(bool flush = false);
  /// cached() for what is asked ahead: begin() and finish(), and the answer is remembered.
  void finishAhead();
  /// sync() in two steps.
  CUresult begin(bool flush);
  CUresult finish();
  /// finish() within that time. False: the answer is still to come, and begin() stays to be
  /// finished. Only for a call that goes to one executor.
  bool finishWithin(std::chrono::milliseconds time, CUresult* result);

  // Results. Only when answered(): the worker's function succeeded.
  bool answered() const { return wait_.answered; }
  Reader& reply() { return reply_; }
  template <typename T>
  void take(T* into, uint64_t count) {
    if (into == nullptr) return;
    const uint64_t bytes = api::extract::saturatingProduct(count, kElement<T>);
    if (const auto found = reply_.raw(bytes); !found.empty())
      std::memcpy(into, found.data(), bytes);
  }
  /// Handles: of no other session's, or the program's next calls would go there.
  template <typename T>
  void takeHandles(T* into, uint64_t count) {
    take(into, count);
    for (uint64_t i = 0; into != nullptr && i < count; ++i) mustBeOwn(into[i]);
  }
  /// One of an answer that is read by hand; 0 and a call that fails where it can't be.
  template <typename T>
  T takeHandle() {
    T handle{};
    takeHandles(&handle, 1);
    return handle;
  }
  /// A text into room of the caller's for `count` characters; the room behind its end stays as it
  /// was.
  void takeString(char* into, uint64_t count);
  template <typename T>
  void takeDevices(T* into, uint64_t count) {
    take(into, count);
    for (uint64_t i = 0; into != nullptr && i < count; ++i) fromWorker(*session_, into[i]);
  }
  /// Text of the driver's own, which stays for the process's life.
  void takeText(const char** into);
  /// An array of the driver's own; it stays until this thread asks the same again. Returns how many
  /// elements it has.
  template <typename T>
  uint64_t takeKept(T** into) {
    if (into == nullptr) return 0;
    const std::span<const std::byte> kept = keptArray();
    *into = reinterpret_cast<T*>(const_cast<std::byte*>(kept.data()));
    return kept.size() / kElement<T>;
  }
  /// The answer said how many elements of an array the program may read: there are `room`.
  template <typename T>
  void holds(const T* count, uint64_t room) {
    if (count != nullptr && static_cast<uint64_t>(*count) > room) reply_.fail();
  }
  /// `result`, behind all that was taken; an error where the answer had less, or what can't be.
  CUresult taken(CUresult result) const;

 private:
  Call(uint16_t function, Session* session);
  CallHead& head() { return *reinterpret_cast<CallHead*>(out_.bytes.data()); }
  const CallHead& head() const { return *reinterpret_cast<const CallHead*>(out_.bytes.data()); }
  CUresult ready();
  CUresult receive();
  void leave();
  bool isOfAnother(uint64_t handle) const;
  template <typename T>
  void mustBeOwn(T& handle) {
    uint64_t bits = 0;
    static_assert(sizeof handle == sizeof bits);
    std::memcpy(&bits, &handle, sizeof bits);
    if (!severalSessions() || !isOfAnother(bits)) return;
    handle = {};
    reply_.fail();
  }
  uint64_t newNumber();
  void forget();
  std::span<const std::byte> keptArray();

  static constexpr uint64_t kMostDeviceStructures = 4096;

  Session* session_ = nullptr;
  Executor* executor_ = nullptr;  // of the session, where it has one
  Writer out_;
  const std::unique_ptr<GroupCall> group_;  // where it has several
  std::span<const std::byte> bulk_;
  Wait wait_;
  Reader reply_;
  bool waits_ = false;  // its answer is still to come
  bool too_long_ = false, other_device_ = false, other_session_ = false, forgets_ = false,
       changes_kernels_ = false, before_init_ = false, of_our_own_ = false, no_memory_ = false;
};

}  // namespace olpager::forward
