// Detects a host at the other end of a connection that no longer acknowledges. TCP_USER_TIMEOUT
// would tell as well, but it also ends a connection whose peer acknowledges and takes nothing: a
// program that is stopped while its window is full.
//
// Thread-safety: none; the owner's lock.
#pragma once

#include <cstdint>

namespace olpager::transport {

class AckWatch {
 public:
  /// To be called now and then (`now_ms`: nowMs()): for how many milliseconds at least something on
  /// its way (bytes, or a question whether there is room again) has waited for an acknowledgement
  /// and none has come. 0 when nothing waits, or when `fd` is no TCP socket. `late`: this process
  /// did not run for a while; it counts from now.
  int64_t unansweredMs(int fd, int64_t now_ms, bool late);

 private:
  int64_t since_ms_ = 0;  // 0: nothing waits
};

}  // namespace olpager::transport
