// The queue behind CompletionQueue, and how a waiting thread receives by itself.
//
// A thread in wait() blocks in one epoll set that holds the queue's event and the message
// connections of the links (Pollable). While it is there, the links' I/O threads leave those
// connections to it: a message then wakes the thread that wants it and no other. With many links in
// one queue (kMaxPolled) that would cost more than it saves, and I/O threads do it.
//
// Giving a connection to the waiter and back costs two system calls. A thread that comes back to
// wait at once, time and again (requests and replies), therefore keeps the connections in between,
// as long as no reads or writes are outstanding; a check on an I/O thread, each millisecond or few,
// takes them back when nobody has come (kept_), and ends when one wait takes long.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <mutex>

#include "base/fd.h"
#include "coherence/transport/core/reactor.h"
#include "coherence/transport/transport.h"

namespace olpager::transport {

/// A link's source of messages, as a waiting thread drives it.
class Pollable {
 public:
  virtual ~Pollable() = default;
  virtual int pollFd() const = 0;  // readable: drive() has something to do
  virtual void drive() = 0;        // takes what there is; prepareSleep() or rearm() has to follow
  virtual void leaveToWaiter(
      bool leave) = 0;                    // the I/O thread stops or begins again to look at pollFd
  virtual bool transferring() const = 0;  // reads or writes are outstanding
  virtual Reactor& reactor() const = 0;
  /// Nothing that another thread waits for comes this way: the thread that keeps it may be away for
  /// longer.
  virtual bool onlyMessages() const { return false; }
  virtual bool pending() { return true; }  // drive() may find something
  /// Before sleeping: asks for pollFd to be rung; true when there is something to drive already.
  virtual bool prepareSleep() { return false; }
  /// After driving without going to sleep: as if nobody had been here.
  virtual void rearm() {}
};

class EventQueue final : public CompletionQueue, public std::enable_shared_from_this<EventQueue> {
 public:
  explicit EventQueue(uint32_t spin_us);
  /// The queue behind a handle of makeQueue(), to be held without the handle. Null for a queue of
  /// another kind.
  static std::shared_ptr<EventQueue> of(const QueuePtr& handle);
  ~EventQueue() override;

  size_t poll(std::span<Completion> into) override;
  size_t wait(std::span<Completion> into, std::chrono::microseconds timeout) override;
  int eventFd() override;

  void push(Completion completion);
  void push(std::vector<Completion>& completions);
  /// Nobody will poll any more: waiting completions go, and later ones are dropped. Completions
  /// hold links, and links the queue.
  void abandon();

  void add(const std::shared_ptr<Pollable>& source);
  void remove(Pollable* source);

 private:
  static constexpr size_t kMaxPolled = 4;

  using Sources = std::array<std::shared_ptr<Pollable>, kMaxPolled>;

  void signal();
  Sources sources();
  size_t spin(std::span<Completion> into, const Sources& sources,
              std::chrono::steady_clock::time_point now,
              std::chrono::steady_clock::time_point latest);

  std::mutex mutex_;
  std::deque<Completion> completions_;
  bool abandoned_ = false;
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
  uint32_t waiters_ = 0;   // threads in wait(), under sources_mutex_
  bool kept_ = false;      // nobody waits, and yet the connections are the waiters'
  bool checking_ = false;  // takeBack() is called each millisecond
  uint32_t streak_ = 0;    // waits that began at once after the one before
  uint64_t waits_ = 0, checked_waits_ = 0;
  std::chrono::steady_clock::time_point left_{};
  void enterWait(std::chrono::steady_clock::time_point now);
  void leaveWait(const Sources& driven);
  void keepSources();
  bool onlyMessages() const;
  bool takeBack();  // false: nothing left to check
  void giveBack();
};

}  // namespace olpager::transport
