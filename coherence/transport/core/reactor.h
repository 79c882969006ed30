// An I/O thread: one epoll set, tasks from other threads, a tick. Links spread their connections
// over several.
//
// Thread-safety: any thread. Callbacks run on the reactor's thread, with no lock of the reactor
// held. All signals are blocked there: it lives inside other people's programs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fd.h"

namespace olpager::transport {

class Reactor {
 public:
  class Source {
   public:
    virtual ~Source() = default;
    virtual void onEvents(uint32_t events) = 0;
  };
  class Ticker {
   public:
    virtual ~Ticker() = default;
    /// About every kTickMs; `late`: this process did not run for a while (stopped, or the machine
    /// slept).
    virtual void onTick(bool late) = 0;
  };
  static constexpr int kTickMs = 50;

  Reactor();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  /// Watches `fd` (level-triggered). The source is held until remove() or the reactor's end.
  void add(int fd, uint32_t events, std::shared_ptr<Source> source);
  void modify(int fd, uint32_t events);
  /// Leaves `fd` to somebody else, or watches it again for `events`. With no events asked for by
  /// modify() a wake-up that does not say what it is for, as a card's event channel gives, would
  /// still wake the thread.
  void leave(int fd, bool leave, uint32_t events);
  /// No callback for it begins after this returned, when called on the reactor's thread; elsewhere
  /// one may be running.
  void remove(int fd);
  void addTicker(std::weak_ptr<Ticker> ticker);
  void post(std::function<void()> task);
  /// About every `ms` milliseconds, until it returns false.
  void every(int ms, std::function<bool()> check);
  bool onThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  struct Entry {
    std::shared_ptr<Source> source;
    std::atomic<bool> dead{false};
    bool left = false;  // leave()
  };
  struct Check {
    int ms = 1;
    int64_t due_ms = 0;
    std::function<bool()> check;
  };
  void run();
  void tick();
  int patience() const;

  base::UniqueFd epoll_;
  base::UniqueFd wake_;
  std::mutex mutex_;
  std::unordered_map<int, std::unique_ptr<Entry>> entries_;
  std::vector<std::unique_ptr<Entry>> removed_;  // events of the present batch may still name them
  std::vector<std::function<void()>> tasks_;
  std::vector<std::weak_ptr<Ticker>> tickers_;
  std::vector<Check> checks_;  // the reactor's thread only
  int64_t last_tick_ms_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

/// Milliseconds of a clock that does not stand still in suspend.
int64_t nowMs();

}  // namespace olpager::transport
