#include "disk/io_queue.h"

#include <errno.h>
#include <liburing.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "coherence/transport/core/own_descriptors.h"

namespace olpager::disk {
namespace {

bool isThere(const Io& io) { return io.file.inode == 0 || io.file.isStill(io.fd); }

int64_t runNow(const Io& io) {
  if (!isThere(io)) return -EBADF;
  const auto at = static_cast<off_t>(io.offset);
  const ssize_t moved =
      io.write ? pwrite(io.fd, io.memory, io.bytes, at) : pread(io.fd, io.memory, io.bytes, at);
  return moved < 0 ? -errno : moved;
}

class BlockingQueue final : public IoQueue {
 public:
  explicit BlockingQueue(unsigned depth) { ended_.reserve(depth); }
  void begin(const Io& io) override { ended_.push_back({io.tag, runNow(io)}); }
  void wait(std::vector<IoEnd>& ended) override {
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

 private:
  std::vector<IoEnd> ended_;
};

class UringQueue final : public IoQueue {
 public:
  UringQueue() = default;
  ~UringQueue() override {
    if (!made_) return;
    if (identity_.isStill(ring_.ring_fd)) {
      transport::forgetOwnDescriptor(ring_.ring_fd);
    } else {
      ring_.ring_fd = -1;  // somebody else's number
    }
    io_uring_queue_exit(&ring_);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  Status open(unsigned depth) {
    if (const int result = io_uring_queue_init(depth, &ring_, 0); result < 0)
      return Error{base::format("io_uring_setup: {}", std::strerror(-result))};
    made_ = true;
    identity_ = FileIdentity::of(ring_.ring_fd);
    waiting_.reserve(depth);
    ended_.reserve(depth);
    transport::noteOwnDescriptor(ring_.ring_fd);
    (void)io_uring_ring_dontfork(&ring_);
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool reads = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    if (probe != nullptr) io_uring_free_probe(probe);
    return reads ? Status{} : Error{"this kernel's io_uring has no plain reads and writes"};
  }

  void begin(const Io& io) override {
    io_uring_sqe* const entry = refused_ ? nullptr : io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      ended_.push_back({io.tag, runNow(io)});
      return;
    }
    if (io.write) {
      io_uring_prep_write(entry, io.fd, io.memory, io.bytes, io.offset);
    } else {
      io_uring_prep_read(entry, io.fd, io.memory, io.bytes, io.offset);
    }
    io_uring_sqe_set_data64(entry, io.tag);
    waiting_.push_back({io, entry});
    submit(0);
  }

  void wait(std::vector<IoEnd>& ended) override {
    for (;;) {
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring_, &entry) == 0 && entry != nullptr) {
        ended_.push_back({io_uring_cqe_get_data64(entry), entry->res});
        io_uring_cqe_seen(&ring_, entry);
      }
      if (!ended_.empty()) break;
      if (refused_) {
        pause();  // what the kernel has taken ends without being asked for
      } else {
        submit(1);
      }
    }
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

 private:
  static void pause() {
    constexpr timespec kPause{0, 100'000};
    (void)nanosleep(&kPause, nullptr);
  }

  // Requests that were begun go to the kernel; returns when `least` have ended, or earlier.
  void submit(unsigned least) {
    // Kernels before 5.12 have one inode for all rings, and a program's ring looks like this one.
    if (!identity_.isStill(ring_.ring_fd)) return refuse("its descriptor was closed");
    for (const Waiting& one : waiting_)
      if (!isThere(one.io)) one.entry->fd = -1;  // ends with EBADF
    const int result = io_uring_submit_and_wait(&ring_, least);
    if (result >= 0) {
      const auto taken = static_cast<std::ptrdiff_t>(result);
      waiting_.erase(waiting_.begin(), waiting_.begin() + std::min(taken, std::ssize(waiting_)));
      return;
    }
    // Begun again by the next wait().
    if (result == -EINTR) return;
    if (result == -EAGAIN || result == -EBUSY) return pause();
    refuse(std::strerror(-result));
  }

  void refuse(const char* why) {
    if (base::firstTime("disk io_uring refused"))
      base::logInfo(
          "disk: io_uring is refused now (%s): reads and writes go one after the other in "
          "each thread",
          why);
    refused_ = true;
    for (const Waiting& one : waiting_) ended_.push_back({one.io.tag, runNow(one.io)});
    waiting_.clear();
  }

  struct Waiting {
    Io io;
    io_uring_sqe* entry = nullptr;
  };

  io_uring ring_{};
  FileIdentity identity_;  // the ring's; its mapping keeps its inode
  bool made_ = false;
  bool refused_ = false;          // for good
  std::vector<Waiting> waiting_;  // that the kernel has not taken yet, in order
  std::vector<IoEnd> ended_;      // that wait() has not given out
};

}  // namespace

Result<std::unique_ptr<IoQueue>> makeUringQueue(unsigned depth) {
  auto queue = std::make_unique<UringQueue>();
  if (const Status opened = queue->open(depth); !opened.ok()) return opened.error();
  return std::unique_ptr<IoQueue>(std::move(queue));
}

std::unique_ptr<IoQueue> makeBlockingQueue(unsigned depth) {
  return std::make_unique<BlockingQueue>(depth);
}

std::unique_ptr<IoQueue> makeQueue(unsigned depth) {
  auto ring = makeUringQueue(depth);
  if (ring.ok()) return std::move(ring).value();
  if (base::firstTime("disk no io_uring"))
    base::logDebug("disk: no io_uring (%s): reads and writes go one after the other in each thread",
                   ring.error().message.c_str());
  return makeBlockingQueue(depth);
}

}  // namespace olpager::disk
