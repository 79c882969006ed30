// One call of the program's on its way: arguments in, results out. What the generated encoders are written with.
// Thread-safety: a Call belongs to its thread.
#pragma once

#include <cuda.h>

#include <exception>

#include "interpose/api/driver_symbols.h"
#include "interpose/api/range_extractors.h"
#include "interpose/forward/session.h"
#include "interpose/forward/wire.h"

namespace olpager::forward {

/// Whether [address, + bytes) lies in a plain allocation of the program's (device_memory.cpp).
bool isKnownMemory(CUdeviceptr address, uint64_t bytes);
/// The calling thread's current context (contexts.cpp).
uint64_t currentContext();
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

class Call {
 public:
  explicit Call(api::Symbol symbol) : Call(static_cast<uint16_t>(symbol)) {}
  explicit Call(Operation operation) : Call(static_cast<uint16_t>(operation)) {}
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
  /// Bytes behind the arguments, not copied before they are sent.
  void bulk(std::span<const std::byte> bytes) { bulk_ = bytes; }
  void needsNoContext() { head().context = 0; }
  void inContext(uint64_t context) { head().context = context; }
  void beforeInit() { before_init_ = true; }
  void mayWait() { head().flags |= kMayWait; }
  void forgetsAnswers() { forgets_ = true; }
  void changesKernels() { changes_kernels_ = true; }

  // Making it.
  CUresult sync();
  CUresult cached();
  CUresult oneWay(bool flush = false);
  /// cached() for what is asked ahead: begin() and finish(), and the answer is remembered.
  void finishAhead();
  /// sync() in two steps.
  CUresult begin(bool flush);
  CUresult finish();

  // Results. Only when answered(): the worker's function succeeded.
  bool answered() const { return wait_.answered; }
  Reader& reply() { return reply_; }
  template <typename T>
  void take(T* into, uint64_t count) {
    if (into == nullptr) return;
    const uint64_t bytes = api::extract::saturatingProduct(count, kElement<T>);
    if (const auto found = reply_.raw(bytes); !found.empty()) std::memcpy(into, found.data(), bytes);
  }
  /// Text of the driver's own, which stays for the process's life.
  void takeText(const char** into);
  /// An array of the driver's own; it stays until this thread asks the same again.
  template <typename T>
  void takeKept(T** into) {
    if (into != nullptr) *into = static_cast<T*>(const_cast<void*>(keptArray()));
  }

 private:
  explicit Call(uint16_t function);
  CallHead& head() { return *reinterpret_cast<CallHead*>(out_.bytes.data()); }
  CUresult ready();
  uint64_t newNumber();
  void forget();
  const void* keptArray();

  Session* session_ = nullptr;
  Writer out_;
  std::span<const std::byte> bulk_;
  Wait wait_;
  Reader reply_;
  bool too_long_ = false, forgets_ = false, changes_kernels_ = false, before_init_ = false;
};

}  // namespace olpager::forward
