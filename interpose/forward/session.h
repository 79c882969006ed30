// A session with a worker: calls go out in one order, whoever waits for an answer receives by
// itself.
//
// Thread-safety: everything from any thread. Made by sessions.h, one for each gpunode, never
// destroyed. Errors: one line on standard error when the session is lost, then results of CUDA.
//
// Locks: Session::waits_mutex_ (who waits, who receives), with the channel's own and that of what
// was set of kernels (kernel_attributes.cpp) below it; remembered_mutex_, with that of the known
// kernels below it. No lock is held while a callback runs.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "coherence/calls/channel.h"
#include "forwarding/wire/wire.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/forward/rows.h"

namespace olpager::forward {

/// A thread that waits for an answer.
struct Wait {
  uint32_t number = 0;
  uint16_t function = 0;
  bool done = false;
  CUresult result = CUDA_SUCCESS;
  bool answered = false;
  std::vector<std::byte> record;  // the whole answer, its head in front
};

/// A function of the program's that a worker calls.
enum class FunctionKind : uint8_t {
  kHost,      // once, and never where the stream does not come to it
  kCallback,  // once, also where the stream never comes to it
  kInGraph,   // with each launch of its graph
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

  uint64_t newNumber() { return next_number_.fetch_add(1, std::memory_order_relaxed); }

  /// Bytes that come later, behind a copy in stream order: written to `into`. The number goes with
  /// the copy's call.
  uint32_t expectBytes(void* into, uint64_t bytes) { return expectRows(Rows::linear(into, bytes)); }
  uint32_t expectRows(const Rows& into);  // one behind the other
  void bytesDoNotCome(uint32_t number);   // the copy's call was not sent
  /// Changes of pinned blocks that come later (one of those that an Answer::kHostBytes counts).
  void expectChanges();
  /// The call that was to bring them was not sent.
  void changesDoNotCome();
  /// How many of these there were so far, and whether so many have come.
  uint64_t changesExpected() const { return changes_expected_.load(); }
  bool changesAnswered(uint64_t count) const { return changes_answered_.load() >= count; }
  /// Whether bytes of copies to [address, + bytes) are still to come.
  bool bytesOutstanding(uint64_t address, uint64_t bytes);
  /// Waits until none are: their streams have come to the copies, of whatever context, or will not
  /// any more.
  void awaitBytes(uint64_t address, uint64_t bytes);
  /// Whether bytes are to come for any of the program's memory.
  bool memoryComes() const {
    return bytes_come_.load() != 0 || !changesAnswered(changesExpected());
  }
  /// A function that the worker calls in stream order. `run` gets the stream's state.
  uint32_t expectFunction(std::function<void(CUresult)> run, FunctionKind kind);
  /// The call that enqueues it was not sent, or refused. False: the session was lost meanwhile,
  /// which has called a callback all the same.
  bool functionDoesNotCome(uint32_t number);
  /// A place in a stream that the worker gives notice of by this number when the stream comes to
  /// it. `told` is called once, by a thread that receives, and must not wait: with CUDA_SUCCESS, or
  /// with why the stream will never come there. 0: the session has ended.
  uint32_t expectNotice(std::function<void(CUresult status)> told);
  bool forgetNotice(uint32_t number);  // false: it has been told
  /// The number of a place in a stream that waits until openGate().
  uint32_t newGate();
  void openGate(uint32_t number);
  /// What was exported under this number nobody can import any more.
  void exportGone(uint32_t number);
  /// From now on calls in the context that wait return this.
  void breakContext(uint64_t context, CUresult why);
  /// A graph is about to be launched, which may have host functions in it: the number of the notice
  /// that has to be asked for behind it. Until it comes functions are outstanding. 0: no graph has
  /// any.
  uint32_t expectGraphEnd();
  /// Whether graphs may have host functions in them.
  bool functionsInGraphs() const { return functions_in_graphs_.load(); }
  void graphDoesNotEnd(uint32_t number);  // it was not launched, or the notice not asked for
  /// Whether a host function may still be to run, which may change what this thread is about to
  /// read. False in a host function itself.
  bool functionsOutstanding() const;
  /// Something will come that nobody waits for: receives also when no thread does. It has come, or
  /// does not any more: nothingComes().
  void somethingComes();
  void nothingComes() { comes_.fetch_sub(1); }

  /// Answers that stay the same (class cached). The key is the call's bytes after its reply number.
  bool remembered(const std::vector<std::byte>& record, Wait& wait);
  void remember(const std::vector<std::byte>& record, const Wait& wait);
  void forgetAnswers();
  /// Those of one function.
  void forgetAnswersOf(api::Symbol symbol);
  /// Those that `is` says: it is given the function (a symbol, or an Operation) and the arguments
  /// as they were written.
  void forgetAnswersIf(const std::function<bool(size_t function, std::string_view arguments)>& is);

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
  /// The context is gone, broken or not.
  void contextGone(uint64_t context);

 private:
  void resume();
  void say(Operation operation, uint32_t number);
  void lost(const std::string& why);
  void dispatch(std::vector<std::byte>& record);
  void noteFault(uint64_t context, CUresult fault);
  void receiveFor(Wait& wait);
  void attend();
  bool expects(uint64_t address, uint64_t bytes) const;
  void runFunctions();

  void endFunctions();

  struct Function {
    std::function<void(CUresult)> run;
    FunctionKind kind;
  };

  const std::string gpunode_;
  const unsigned slot_, slots_;
  calls::Channel channel_;
  std::unique_ptr<class Connection> connection_;
  Description description_{};
  std::vector<std::byte> offered_;
  std::atomic<uint64_t> next_number_;
  std::atomic<bool> initialized_{false};
  std::atomic<bool> has_functions_{false};
  std::atomic<uint32_t> functions_outstanding_{0};  // those that run once
  std::atomic<bool> functions_in_graphs_{false};
  std::atomic<uint32_t> graphs_outstanding_{0};  // launches of graphs that may call functions
  std::atomic<bool> ended_{false};
  std::atomic<bool> leaving_{false};  // goodbye is being said

  std::mutex waits_mutex_;
  std::condition_variable turn_;
  std::condition_variable bytes_came_;  // or do not come
  bool receiving_ = false;
  uint32_t waiting_threads_ = 0;
  uint32_t next_wait_ = 1;
  std::unordered_map<uint32_t, Wait*> waits_;
  std::map<std::pair<uint64_t, uint32_t>, CUresult>
      failures_;                                   // by context (0: none was current) and thread
  std::unordered_map<uint64_t, CUresult> broken_;  // by context
  std::atomic<bool> any_failure_{false};           // in either
  std::unordered_map<uint64_t, CUresult> faults_;  // by context
  std::atomic<bool> any_fault_{false};
  std::unordered_map<uint32_t, Rows> expected_;
  std::atomic<uint64_t> changes_expected_{0}, changes_answered_{0};
  std::atomic<uint32_t> bytes_come_{0};  // entries of expected_
  uint32_t next_expected_ = 1;
  uint64_t received_ = 0;  // records
  std::string why_lost_;

  std::mutex remembered_mutex_;
  std::unordered_map<std::string, std::vector<std::byte>> remembered_;

  // The attendant: flushes what nobody waits for, receives when nobody else does.
  std::mutex attend_mutex_;
  std::condition_variable attend_;
  std::atomic<bool> attendant_sleeps_{false};
  std::atomic<uint64_t> posts_{0};
  std::atomic<uint32_t> comes_{0};  // answers that nobody waits for
  // Host functions run on a thread of their own, one after the other.
  std::mutex functions_mutex_;
  std::condition_variable function_due_;
  std::unordered_map<uint32_t, Function> functions_;
  std::unordered_map<uint32_t, std::function<void(CUresult)>> notices_;
  std::vector<std::pair<uint32_t, CUresult>> due_;
  bool functions_ended_ = false;  // nothing becomes due any more
  uint32_t next_function_ = 1;
};

}  // namespace olpager::forward
