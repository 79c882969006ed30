// An executor: one worker of a gpunode, and the way to it. Records go out in one order; a thread
// that waits for an answer receives by itself. The program's objects belong to the session
// (session.h): an executor knows no handle, no stream and no memory, only records and waits.
//
// States: made -> up (open, start) -> ended (lost, or the program's end); final. Over links that
// are lost and had again it stays up (connection.h). Transitions are made by the thread that opens
// the session; by a receiver that finds the link gone; by atExit.
//
// Owner: its session, for the life of the process. Threads: the caller's, and one of its own, the
// attendant, which flushes records that nobody waits for and receives when nobody else does.
// Thread-safety: everything from any thread, but open() and start(). Errors: one line on standard
// error when the executor is lost, by the session; then results of CUDA.
//
// Locks: Executor::waits_mutex_ (who waits, who receives) and counting_, each with the channel's
// below it; that of the attendant, a leaf. None is held while the session hears of a record, and
// none of two executors at once.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/settings.h"
#include "coherence/calls/channel.h"
#include "forwarding/page_route.h"
#include "forwarding/wire/wire.h"
#include "interpose/forward/sites.h"

namespace olpager::forward {

class Session;

/// A thread that waits for an answer of one executor's.
struct Wait {
  uint32_t number = 0;
  uint16_t function = 0;
  bool done = false;
  CUresult result = CUDA_SUCCESS;
  bool answered = false;
  std::vector<std::byte> record;  // the whole answer, its head in front
};

class Executor {
 public:
  /// At `site`, whose gpunode is told that it is number `slot` of the `slots` workers that the
  /// program has. Records that come unasked go to `session`.
  Executor(const base::Settings& settings, const Site& site, unsigned slot, unsigned slots,
           Session& session);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Gets a worker of the gpunode and connects to it. Then start() asks who it is; nothing else
  /// before. Once each.
  Status open();
  Status start();

  /// The name of its site.
  const std::string& name() const { return name_; }
  /// The number of the worker among the program's.
  unsigned slot() const { return slot_; }
  const Description& description() const { return description_; }
  bool offers(size_t symbol) const {
    return symbol < offered_.size() && offered_[symbol] != std::byte{0};
  }
  /// True if the worker is on this host and maps memory that has a descriptor.
  bool sharesMemory() const;
  /// The data that the program's worker in `slot` needs to connect to this one.
  void nameToPeer(unsigned slot, struct PeerLinkHead* head, std::string* address) const;

  /// How the worker is reached for the pages of a unified view. Once it is open.
  PageRoute pageRoute() const;

  /// Sends a call and waits for its answer. `record` begins with a CallHead whose reply is filled
  /// in here.
  CUresult call(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait);
  /// The same in two steps: several may be under way.
  bool begin(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait,
             bool flush);
  CUresult finish(Wait& wait);
  /// The same for so long at most. False: the answer is still to come.
  bool finishWithin(Wait& wait, std::chrono::milliseconds time);
  /// Instead of finish(): nobody comes back for the answer.
  void leave(const Wait& wait);
  /// Sends a call that nobody waits for; at the latest with the next that is flushed.
  CUresult post(std::vector<std::byte>& record, std::span<const std::byte> bulk = {},
                bool flush = false);
  /// Sends an operation with one number, of none of the program's threads, now.
  void say(Operation operation, uint32_t number);
  /// Sends the posted records.
  void flush() { (void)channel_.flush(); }
  /// Something comes that nobody waits for (Session::comes): the attendant looks.
  void wake();

  /// The session has ended with another executor: no link is made again, and waiters give up.
  /// False: it has ended already.
  bool end(const std::string& why);
  /// The program ends, and waits until the worker has heard so.
  void sayGoodbye();

 private:
  void resume();
  void lost(const std::string& why);
  void dispatch(std::vector<std::byte>& record);
  void noteReceived();
  void count();
  bool receiveFor(Wait& wait, std::chrono::steady_clock::time_point until);
  void attend();

  const std::string name_;
  const unsigned slot_;
  Session& session_;
  calls::Channel channel_;
  std::unique_ptr<class Connection> connection_;
  Description description_{};
  std::vector<std::byte> offered_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> leaving_{false};  // goodbye is being said

  std::mutex counting_;  // what the link has carried
  std::mutex waits_mutex_;
  std::condition_variable turn_;
  bool receiving_ = false;
  uint32_t waiting_threads_ = 0;
  uint32_t next_wait_ = 1;
  std::unordered_map<uint32_t, Wait*> waits_;
  uint64_t received_ = 0;  // records
  std::string why_lost_;

  // The thread that flushes records that nobody waits for, and receives when nobody else does.
  struct Attendant {
    std::mutex mutex;
    std::condition_variable due;
    std::atomic<bool> sleeps{false};
    std::atomic<uint64_t> posts{0};
  };
  Attendant attendant_;
};

}  // namespace olpager::forward
