// A real olmemserver of this build for a measurement: started on a loopback port of its own, ended
// with the object. Throws std::runtime_error when it does not start. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace olpager::tools::bench {

class Daemon {
 public:
  /// `transport`: "tcp" or "shm". Donates `memory` bytes, in slabs of `slab` bytes; 0: as it likes.
  Daemon(const std::string& transport, uint64_t memory, uint64_t slab = 0);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  pid_t pid_ = 0;
};

}  // namespace olpager::tools::bench
