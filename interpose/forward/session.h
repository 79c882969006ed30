// A session with a worker: calls go out in one order, whoever waits for an answer receives by
// itself.
//
// Thread-safety: everything from any thread. Made by sessions.h, one for each gpunode, never
// destroyed. Errors: one line on standard error when the session is lost, then results of CUDA.
//
// Locks: Session::waits_mutex_ (who waits, who receives), with the channel's own below it; that of
// the attendant, a leaf. What else a session has has locks of its own (locks.h). No lock is held
// while a callback runs.
#pragma once

#include <cuda.h>

#include <atomic>
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
#include "forwarding/wire/wire.h"
#include "interpose/api/driver_symbols.h"

namespace olpager::forward {

class AnswerCache;
class Arrivals;
class HostFunctions;
struct SessionParts;

/// A thread that waits for an answer.
struct Wait {
  uint32_t number = 0;
  uint16_t function = 0;
  bool done = false;
  CUresult result = CUDA_SUCCESS;
  bool answered = false;
  std::vector<std::byte> record;  // the whole answer, its head in front
};

class Session {
 public:
  /// With the gpunode at `gpunode`: the program's session number `slot` of `slots`.
  Session(const base::Settings& settings, std::string gpunode, unsigned slot, unsigned slots);
  /// Gets a session of the gpunode and connects to its worker. Then start() asks who it is; nothing
  /// else before. Once each.
  Status open();
  Status start();

  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  unsigned slot() const { return slot_; }
  /// In the numbers of its primary contexts.
  unsigned handleSlot() const { return unified_ ? kCommonSlot : slot_; }
  const std::string& gpunode() const { return gpunode_; }
  const Description& description() const { return description_; }
  bool offers(size_t symbol) const {
    return symbol < offered_.size() && offered_[symbol] != std::byte{0};
  }

  /// Sends a call and waits for its answer. `record` begins with a CallHead whose reply is filled
  /// in here.
  CUresult call(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait);
  /// The same in two steps: several may be under way.
  bool begin(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait,
             bool flush);
  CUresult finish(Wait& wait);
  /// Instead of finish(): nobody comes back for the answer.
  void leave(const Wait& wait);
  /// Sends a call that nobody waits for; at the latest with the next that is flushed.
  CUresult post(std::vector<std::byte>& record, std::span<const std::byte> bulk = {},
                bool flush = false);

  /// Memory that the worker is to read or write by itself is registered here. In place over lost
  /// links.
  const transport::DomainPtr& domain() const;
  /// Whether the worker is on this host and maps memory that has a descriptor.
  bool sharesMemory() const;
  /// What the worker of the program's session in `slot` needs to connect to this one's worker.
  void nameToPeer(unsigned slot, struct PeerLinkHead* head, std::string* address) const;

  uint64_t newNumber() { return newNumbers(1); }
  /// The first of so many.
  uint64_t newNumbers(uint64_t count) {
    return numbers_.fetch_add(count, std::memory_order_relaxed);
  }
  /// Whether what a call's answer tells of is numbered here as well.
  bool namesAnswers() const { return unified_; }

  /// What the client knows of the session's objects.
  SessionParts& parts() const { return *parts_; }
  AnswerCache& answers() const { return *answers_; }
  /// What comes without anybody who waits for it: for the program's memory, and of places in
  /// streams.
  Arrivals& arrivals() const { return *arrivals_; }
  HostFunctions& functions() const { return *functions_; }

  /// A stream that waits at the gate goes on.
  void openGate(uint32_t number);
  /// A host function has been called.
  void functionDone(uint32_t number);
  /// What was exported under this number nobody can import any more.
  void exportGone(uint32_t number);
  /// From now on calls in the context that wait return this.
  void breakContext(uint64_t context, CUresult why);
  /// Something will come that nobody waits for: receives also when no thread does. It has come, or
  /// does not any more: nothingComes().
  void somethingComes();
  void nothingComes(uint32_t count = 1) { attendant_.comes.fetch_sub(count); }
  /// somethingComes(), behind a call that is posted next: that wakes who receives.
  void somethingComesBehindCall() { attendant_.comes.fetch_add(1); }
  /// Sends what was posted.
  void flush() { (void)channel_.flush(); }

  /// What is to be told of the calls in the current context that nobody waited for: by every call
  /// what broke the context; by one that `tells` what one of this thread has failed with, else one
  /// of another thread, once each.
  CUresult takeFailure(bool tells);

  /// What a kernel has done to the context, once the worker has told of it: calls that nobody waits
  /// for fail with it as well.
  CUresult faultOf(uint64_t context);

  bool initialized() const { return initialized_.load(std::memory_order_acquire); }
  void setInitialized() { initialized_.store(true, std::memory_order_release); }
  /// Whether other calls than this thread's may end what this thread waits for.
  bool othersCall() const;
  void atExit();
  bool ended() const { return ended_.load(); }

 private:
  void resume();
  void say(Operation operation, uint32_t number);
  void lost(const std::string& why);
  void dispatch(std::vector<std::byte>& record);
  void noteReceived();
  void receiveFor(Wait& wait);
  void attend();

  const std::string gpunode_;
  const unsigned slot_, slots_;
  const bool unified_;
  calls::Channel channel_;
  std::unique_ptr<class Connection> connection_;
  Description description_{};
  std::vector<std::byte> offered_;
  const std::unique_ptr<SessionParts> parts_;
  const std::unique_ptr<AnswerCache> answers_;
  const std::unique_ptr<Arrivals> arrivals_;
  const std::unique_ptr<HostFunctions> functions_;
  std::atomic<uint64_t> own_numbers_;
  std::atomic<uint64_t>& numbers_;  // those, or the program's
  std::atomic<bool> initialized_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> leaving_{false};  // goodbye is being said

  std::mutex waits_mutex_;
  std::condition_variable turn_;
  bool receiving_ = false;
  uint32_t waiting_threads_ = 0;
  uint32_t next_wait_ = 1;
  std::unordered_map<uint32_t, Wait*> waits_;
  uint64_t received_ = 0;  // records
  std::string why_lost_;

  // The thread that flushes what nobody waits for, and receives when nobody else does.
  struct Attendant {
    std::mutex mutex;
    std::condition_variable due;
    std::atomic<bool> sleeps{false};
    std::atomic<uint64_t> posts{0};
    std::atomic<uint32_t> comes{0};  // answers that nobody waits for
  };
  Attendant attendant_;
};

}  // namespace olpager::forward
