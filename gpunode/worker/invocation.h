// One call of a client as the worker makes it: arguments out of the record, each checked; results
// into the answer. The generated decoders are written with it. Thread-safety: an Invocation belongs
// to the thread that makes the call. Memory of its arrays lives as long as it.
#pragma once

#include <cuda.h>

#include <array>
#include <memory>
#include <vector>

#include "forwarding/wire/wire.h"
#include "gpunode/worker/handles.h"
#include "interpose/api/driver_table.h"
#include "interpose/api/range_extractors.h"

namespace olpager::gpunode {

class Worker;

class Invocation {
 public:
  /// `names`: what the client has numbered ahead.
  Invocation(Worker& worker, const forward::CallHead& head, forward::Reader arguments,
             const forward::Names& names = {})
      : worker_(worker), head_(head), names_(names), in_(arguments) {}

  // --- arguments
  template <typename T>
  T value() {
    return in_.value<T>();
  }
  template <typename T>
  T peek() const {
    return in_.peek<T>();
  }
  template <typename T>
  T handle() {
    return translated<T>(in_.value<uint64_t>());
  }
  template <typename T>
  T translated(uint64_t number) {
    if (number == 0) return T{};
    uint64_t value = 0;
    if (!find(number, kKindOf<T>, &value)) {
      bad_handle_ = true;
      return T{};
    }
    return handleFrom<T>(value);
  }
  /// A kernel, by either of its two handles. `places`: of its parameters, where they are known
  /// already.
  CUfunction kernel(uint64_t number, const ParameterPlaces** places);
  /// A stream as the call means it: the default stream of a thread is one that the worker made for
  /// it.
  CUstream stream(bool per_thread) { return streamOf(in_.value<uint64_t>(), per_thread); }
  CUstream streamOf(uint64_t number, bool per_thread);
  CUstream defaultStream(bool per_thread) { return streamOf(0, per_thread); }
  template <typename T>
  T* array(uint64_t count) {
    if (in_.value<uint8_t>() == 0) return nullptr;
    const uint64_t bytes = api::extract::saturatingProduct(count, sizeof(T));
    const auto found = in_.raw(bytes);
    auto* const copy = static_cast<T*>(memory(bytes));
    if (!found.empty() && copy != nullptr)
      std::memcpy(static_cast<void*>(copy), found.data(), bytes);
    return copy;
  }
  template <typename T>
  T* handles(uint64_t count) {
    T* const all = array<T>(count);
    for (uint64_t i = 0; ok() && all != nullptr && i < count; ++i)
      all[i] = translated<T>(bitsOf(all[i]));
    return all;
  }
  const char* string();
  /// Room for `count` results, zeroed; null when the client wants none.
  template <typename T>
  T* wanted(uint64_t count) {
    if (in_.value<uint8_t>() == 0) return nullptr;
    return static_cast<T*>(memory(api::extract::saturatingProduct(count, sizeof(T))));
  }
  /// True if the driver knows memory at the address: any other is this process's own.
  bool isMemory(CUdeviceptr address) const;
  forward::Reader& arguments() { return in_; }
  /// An argument says something that is not so: the call fails with CUDA_ERROR_INVALID_VALUE.
  void refuseValue() { bad_value_ = true; }
  /// False: the call can't be made, refusal() says as what it fails. Nonsense ends the session.
  bool ok() const { return in_.ok() && !bad_handle_ && !too_much_ && !bad_value_; }
  CUresult refusal() const;

  // --- results
  template <typename T>
  void put(const T* from, uint64_t count) {
    if (from != nullptr) out_.raw(from, count * sizeof(T));
  }
  template <typename T>
  void putHandles(const T* from, uint64_t count) {
    for (uint64_t i = 0; from != nullptr && i < count; ++i)
      out_.value(number(kKindOf<std::remove_const_t<T>>, bitsOf(from[i])));
  }
  void putText(const char* const* text);
  template <typename T>
  void putKept(T* const* from, uint64_t count) {
    if (from == nullptr) return;
    constexpr uint64_t kBytes = forward::kElement<T>;
    const uint64_t bytes = *from != nullptr ? api::extract::saturatingProduct(count, kBytes) : 0;
    out_.value(bytes > forward::kMostBytes ? uint64_t{0} : bytes);
    if (bytes <= forward::kMostBytes) out_.raw(*from, bytes);
  }
  template <typename T>
  void putKeptHandles(T* const* from, uint64_t count) {
    if (from == nullptr) return;
    if (*from == nullptr) count = 0;
    out_.value(count * sizeof(uint64_t));
    putHandles(*from, count);
  }
  forward::Writer& results() { return out_; }
  template <typename T>
  void bind(uint64_t number, T value) {
    bindNumber(number, kKindOf<T>, bitsOf(value));
  }
  template <typename T>
  uint64_t numberFor(T value) {
    return number(kKindOf<T>, bitsOf(value));
  }
  void gone(uint64_t number);

  /// Makes the stream's context current, which need not be the caller's: the client's number of it.
  /// An event that marks a place in the stream, or that the stream waits for, has to be of that
  /// context.
  uint64_t enterContextOf(CUstream stream);

  const api::DriverTable& driver() const;
  Worker& worker() { return worker_; }
  const forward::CallHead& head() const { return head_; }

 private:
  bool find(uint64_t number, HandleKind kind, uint64_t* value) const;
  uint64_t number(HandleKind kind, uint64_t value);
  void bindNumber(uint64_t number, HandleKind kind, uint64_t value);
  void* memory(uint64_t bytes);

  Worker& worker_;
  const forward::CallHead head_;
  forward::Names names_;  // that are left
  forward::Reader in_;
  forward::Writer out_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  alignas(16) std::byte small_[1024];
  size_t small_used_ = 0;
  uint64_t memory_bytes_ = 0;
  bool bad_handle_ = false, too_much_ = false, bad_value_ = false;
  CUresult no_stream_ = CUDA_ERROR_INVALID_HANDLE;  // why the thread has none
};

using Serve = CUresult (*)(Invocation&);

/// The generated decoder of a symbol; null where there is none.
Serve generatedService(size_t function);
/// The arguments on which a symbol's order among other calls depends, as places in the record
/// behind its head; -1: there is none.
struct CalledWith {
  int16_t stream = -1;
  bool per_thread = false;      // the default stream is the thread's
  bool default_stream = false;  // it is in that, and names none
  bool gone = false;            // it ends what it names
  bool only_puts = false;       // it puts something in the stream, and brings no more than an error
  bool launches_graph = false;
  bool puts_event_in_graph = false;
  int16_t flags = -1;  // of what names a stream and an event: it may put that in a graph
  std::array<int16_t, 2> events = {-1, -1};
};
/// Generated. Nothing where there is no decoder.
CalledWith calledWith(size_t function);

/// The service that is written by hand for a forward::Operation; null if there is none.
Serve writtenService(size_t operation);

}  // namespace olpager::gpunode
