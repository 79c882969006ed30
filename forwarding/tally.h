// How often each function or operation was called, and how long that took in all: for the tables
// that OL_LOG=debug ends with, at the client (trips.h) and in the worker. Thread-safety: any
// thread, no locks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "interpose/api/driver_symbols.h"

namespace olpager::forward {

class Tally {
 public:
  /// `function`: a symbol, or an Operation.
  void note(uint16_t function, std::chrono::nanoseconds took);
  /// "COUNT WHAT, S s IN ALL", and a line for each of those that took the most together. At level
  /// debug.
  void tell(const char* what, const char* in_all) const;

 private:
  static constexpr size_t kOperations = 64;
  struct One {
    std::atomic<uint64_t> count{0}, nanoseconds{0};
  };
  std::array<One, api::kSymbolCount + kOperations> all_;
};

/// The name of a function or operation.
std::string functionName(size_t function);

}  // namespace olpager::forward
