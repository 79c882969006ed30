// Draws the arguments of a call from an input: handles that the worker knows by now, those that it
// knew, and nonsense; sizes that fit and such that do not; addresses of its memory. The generated
// samples and those in worker_calls.cpp use it.
#pragma once

#include <cuda.h>
#include <cudaProfiler.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "forwarding/wire/wire.h"
#include "gpunode/worker/handles.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/range_extractors.h"

namespace olpager::fuzz {

/// The input; zeros behind its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  uint8_t byte() { return at_ != end_ ? *at_++ : 0; }
  uint64_t bytes(size_t count) {
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

/// The facts that a client would know.
struct Known {
  std::map<gpunode::HandleKind, std::vector<uint64_t>> handles;  // the gone ones stay
  std::vector<uint64_t> addresses;                               // of device memory
  uint64_t next = forward::firstNumber(0);                       // of the client's own count
};

class Sampler {
 public:
  Sampler(Input& input, Known& known) : input_(input), known_(known) {}

  template <typename T>
  T handle() {
    const uint64_t number = drawHandle(gpunode::kKindOf<T>);
    writer_.value(number);
    return gpunode::handleFrom<T>(number);
  }
  template <typename T>
  T value() {
    T drawn{};
    draw(&drawn, sizeof drawn);
    writer_.value(drawn);
    return drawn;
  }
  CUdeviceptr address() {
    const CUdeviceptr drawn = drawAddress();
    writer_.value(drawn);
    return drawn;
  }
  void string() {
    static const char* const kTexts[] = {"add", "counter", "absent", "", "0000:01:00.0"};
    writer_.value(uint8_t{1});
    writer_.text(kTexts[input_.byte() % std::size(kTexts)]);
  }
  template <typename T>
  void number() {
    const uint64_t made = input_.byte() % 16 == 0 ? drawHandle(gpunode::kKindOf<T>) : known_.next++;
    writer_.value(made);
  }
  template <typename T>
  T* array(uint64_t count) {
    auto* const drawn = static_cast<T*>(begin(count, sizeof(T)));
    if (drawn == nullptr) return nullptr;
    for (uint64_t i = 0; i < count; ++i) draw(drawn + i, sizeof(T));
    writer_.raw(drawn, count * sizeof(T));
    return drawn;
  }
  template <typename T>
  T* handles(uint64_t count) {
    auto* const drawn = static_cast<T*>(begin(count, sizeof(T)));
    if (drawn == nullptr) return nullptr;
    for (uint64_t i = 0; i < count; ++i)
      drawn[i] = gpunode::handleFrom<T>(drawHandle(gpunode::kKindOf<T>));
    writer_.raw(drawn, count * sizeof(T));
    return drawn;
  }
  void wants() { writer_.value(static_cast<uint8_t>(input_.byte() % 8 != 0)); }

  // For samples by hand.
  forward::Writer& writer() { return writer_; }
  Input& input() { return input_; }
  Known& known() { return known_; }
  uint64_t drawHandle(gpunode::HandleKind kind) {
    const uint8_t how = input_.byte();
    if (how < 12) return input_.bytes(how % 8);  // nonsense, or none
    if (how < 24) kind = static_cast<gpunode::HandleKind>(input_.byte() % 21);
    const auto found = known_.handles.find(kind);
    if (found == known_.handles.end() || found->second.empty()) return 0;
    // Mostly one of the last.
    const size_t count = found->second.size();
    return found
        ->second[how < 128 ? count - 1 - how % std::min<size_t>(count, 4) : input_.byte() % count];
  }
  uint64_t drawAddress() {
    const uint8_t how = input_.byte();
    if (how < 10 || known_.addresses.empty()) return drawNumber();
    const uint64_t base = known_.addresses[how % known_.addresses.size()];
    return how < 160 ? base : base + drawNumber() % (4 << 20);
  }
  uint64_t drawNumber() {
    static constexpr uint64_t kSmall[] = {0, 1, 2, 3, 4, 8, 16, 64, 256};
    static constexpr uint64_t kLarge[] = {1024,       4096,       65536,      1 << 20,   2 << 20,
                                          1ull << 32, 1ull << 47, UINT32_MAX, UINT64_MAX};
    const uint8_t how = input_.byte();
    if (how < 180) return kSmall[how % std::size(kSmall)];
    if (how < 225) return kLarge[how % std::size(kLarge)];
    return input_.bytes(1 + how % 8);
  }
  void draw(void* into, size_t bytes) {
    if (bytes <= sizeof(uint64_t)) {
      const uint64_t number = drawNumber();
      std::memcpy(into, &number, bytes);
      return;
    }
    // A structure: most of its words are none.
    std::memset(into, 0, bytes);
    for (size_t at = 0; at + 4 <= bytes; at += 4) {
      const uint8_t how = input_.byte();
      if (how % 4 != 0) continue;
      const uint64_t drawn =
          how % 8 == 0 && at % 8 == 0 && at + 8 <= bytes ? drawAddress() : drawNumber();
      std::memcpy(static_cast<std::byte*>(into) + at, &drawn,
                  how % 8 == 0 && at % 8 == 0 && at + 8 <= bytes ? 8 : 4);
    }
  }

 private:
  // Room for an array; null where it is not there, or longer than a client would send (the worker
  // finds it missing).
  void* begin(uint64_t count, size_t element) {
    const uint64_t bytes = api::extract::saturatingProduct(count, element);
    const bool there = input_.byte() % 8 != 0;
    writer_.value(static_cast<uint8_t>(there));
    if (!there || bytes > 65536) return nullptr;
    memory_.push_back(std::make_unique<std::byte[]>(bytes + 8));
    return memory_.back().get();
  }

  Input& input_;
  Known& known_;
  forward::Writer writer_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

using Sample = void (*)(Sampler&);
/// The sample of a symbol's generated encoder; null where there is none.
Sample sampleOf(size_t function);

}  // namespace olpager::fuzz
