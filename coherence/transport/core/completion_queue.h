// The queue behind CompletionQueue, and how a waiting thread receives by itself.
//
// A thread in wait() blocks in one epoll set that holds the queue's event and the message connections of the links
// (Pollable). While it is there, the links' I/O threads leave those connections to it: a message then wakes the thread that
// wants it and no other. With many links in one queue (kMaxPolled) that would cost more than it saves, and I/O threads do it.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <mutex>

#include "base/fd.h"
#include "coherence/transport/transport.h"

namespace olpager::transport {

/// A link's source of messages, as a waiting thread drives it.
class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual int pollFd() const = 0;  // readable: drive() has something to do
  virtual void drive() = 0;            // takes what there is; prepareSleep() or rearm() has to follow
  virtual void leaveToWaiter(bool leave) = 0;  // the I/O thread stops or begins again to look at pollFd
  /// True when a look costs no system call, so that it pays to look a few times before sleeping (rings).
  virtual bool spins() const { return false; }
  virtual bool pending() { return false; }  // there is something to drive (rings)
  /// Before sleeping: asks for pollFd to be rung; true when there is something to drive already.
  virtual bool prepareSleep() { return false; }
  /// After driving without going to sleep: as if nobody had been here.
  virtual void rearm() {}
};

class EventQueue final : public CompletionQueue {
 public:
  explicit EventQueue(uint32_t spin_us);
  ~EventQueue() override;

  size_t poll(std::span<Completion> into) override;
  size_t wait(std::span<Completion> into, std::chrono::microseconds timeout) override;
  int eventFd() override;

  void push(Completion completion);
  void push(std::vector<Completion>& completions);

  void add(const std::shared_ptr<Pollable>& source);
  void remove(Pollable* source);

 private:
  static constexpr size_t kMaxPolled = 4;

  using Sources = std::array<std::shared_ptr<Pollable>, kMaxPolled>;

  void signal();
  Sources sources();
  size_t spin(std::span<Completion> into, const Sources& sources);

  std::mutex mutex_;
  std::deque<Completion> completions_;
  std::atomic<size_t> size_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> event_wanted_{false};
  base::UniqueFd event_;  // for the caller's loop
  base::UniqueFd wake_;   // for sleepers
  base::UniqueFd epoll_;  // wake_ and the sources
  const uint32_t max_spin_us_;
  std::atomic<uint32_t> spin_us_;

  std::mutex sources_mutex_;  // before any link's locks
  std::vector<std::shared_ptr<Pollable>> sources_;
  uint32_t waiters_ = 0;  // threads in wait(), under sources_mutex_
  void enterWait();
  void leaveWait();
};

}  // namespace olpager::transport
