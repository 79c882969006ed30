// Reads and writes of one thread, several at a time: by io_uring, or one after the other by pread
// and pwrite where the system gives no io_uring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "disk/own_file.h"

namespace olpager::disk {

/// One request. Descriptor and memory are the caller's, until the request has ended.
struct Io {
  int fd = -1;
  bool write = false;  // else a read
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  uint32_t bytes = 0;
  uint64_t tag = 0;   // names the request in its end
  FileIdentity file;  // of `fd`: where that stands for another file, the request ends with EBADF.
                      // None: whatever `fd` stands for
};

struct IoEnd {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes, which may be fewer than asked for; or an errno, negative
};

/// Thread-safety: one thread. No request may be under way when it is destroyed.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  /// Begins a request. At most as many at a time as the queue was made for.
  virtual void begin(const Io& io) = 0;
  /// Waits until a request has ended, and appends all that have. Only while some are under way.
  virtual void wait(std::vector<IoEnd>& ended) = 0;
};

/// Makes the queue of a thread, for `depth` requests at a time.
using QueueMaker = std::function<std::unique_ptr<IoQueue>(unsigned depth)>;

/// By io_uring. The Error says why there is none: an older kernel, or a sandbox that refuses it.
/// The ring is closed in a forked child (transport::closeInForkedChild()). A sandbox that refuses
/// io_uring later on, or a program that closes the ring's descriptor, makes requests go one after
/// the other.
Result<std::unique_ptr<IoQueue>> makeUringQueue(unsigned depth);
/// By pread and pwrite: begin() blocks until the request has ended.
std::unique_ptr<IoQueue> makeBlockingQueue(unsigned depth);
/// The first where there is it, else the second, with a line at debug level.
std::unique_ptr<IoQueue> makeQueue(unsigned depth);

}  // namespace olpager::disk
