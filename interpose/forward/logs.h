// Delivers the logs of the workers' drivers to functions that the program has registered
// (cuLogsRegisterCallback). Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>

#include "interpose/forward/program.h"

namespace olpager::forward {

/// The listeners, and the workers that know of them.
struct LogListeners {
  struct Listener {
    CUlogsCallback function;
    void* data;
  };
  std::mutex registering;
  std::array<bool, kMostSessions> listens{};  // by slot: the worker sends what its driver logs
  std::mutex mutex;
  std::condition_variable ended;  // one that was called has returned
  std::map<uint64_t, Listener> of;
  uint64_t next = 1;
  uint64_t called = 0;  // who runs now; 0: nobody
};

/// By the receiver: a line of a worker's driver, of a CUlogLevel.
void driverLogged(uint32_t level, std::string_view line);

}  // namespace olpager::forward
