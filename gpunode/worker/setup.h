// What a supervisor says to a worker that it starts, over the socket that the worker inherits as descriptor kSetupFd, and back: one
// message each way. Settings of the driver and of the pager come by the environment.
#pragma once

#include <cstdint>

namespace olpager::gpunode {

inline constexpr int kSetupFd = 3;

struct WorkerSetup {
  uint64_t session = 0;
  uint8_t key[32] = {};    // the session's
  uint32_t transport = 0;  // transport::Choice
  uint32_t tls = 0;        // transport::Tls
  uint32_t grace_ms = 0;   // without a link
  uint32_t reserved = 0;
  char listen[128] = {};   // host:port
  char library[512] = {};  // libolpager.so
};

struct WorkerReady {
  uint32_t failed = 0;  // 1: `text` says why; else it is the address
  char text[252] = {};
};

}  // namespace olpager::gpunode
