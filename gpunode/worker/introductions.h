// Connections to the sockets of other workers (named_sockets.h). A confined worker connects to
// nothing: its supervisor does, and hands the connection over. Thread-safety: any thread. Locks:
// asking_, one connection at a time, and below it mutex_.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/fd.h"

namespace olpager::gpunode {

class Introductions {
 public:
  /// From now on the supervisor at this socket connects; before, this process by itself.
  void askSupervisor(int socket);
  /// By who reads that socket: the answer to a question of this number; none: it can't be made.
  void came(uint64_t number, base::UniqueFd connection);

  /// None: it is not there, or the supervisor does not answer for 10 s.
  base::UniqueFd connectTo(std::string_view name);

 private:
  std::mutex asking_;
  std::mutex mutex_;
  std::condition_variable answered_;
  int supervisor_ = -1;
  uint64_t asked_ = 0, answer_ = 0;  // numbers of the last ones
  base::UniqueFd connection_;
};

/// This worker's.
Introductions& introductions();

}  // namespace olpager::gpunode
