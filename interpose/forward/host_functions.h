// Places in streams at which a session's worker calls back: functions of the program's, and notices
// for this library. And gates, at which a stream waits until this process opens them. Each has a
// number of one count.
//
// Functions run on a thread of their own, one after the other; notices are taken by the thread that
// receives. Thread-safety: any thread. Lock: one of its own, a leaf; none is held while a function
// or a notice runs.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace olpager::forward {

class Session;

/// A function of the program's that a worker calls.
enum class FunctionKind : uint8_t {
  kHost,      // once, and never where the stream does not come to it
  kCallback,  // once, also where the stream never comes to it
  kInGraph,   // with each launch of its graph
};

class HostFunctions {
 public:
  explicit HostFunctions(Session& session) : session_(session) {}

  /// A function that the worker calls in stream order. `run` gets the stream's state.
  uint32_t expect(std::function<void(CUresult)> run, FunctionKind kind);
  /// The call that enqueues it was not sent, or refused. False: the session was lost meanwhile,
  /// which has called a callback all the same.
  bool doesNotCome(uint32_t number);
  /// A place in a stream that the worker gives notice of by this number when the stream comes to
  /// it. `told` is called once, by a thread that receives, and must not wait: with CUDA_SUCCESS, or
  /// with why the stream will never come there. 0: the session has ended.
  uint32_t expectNotice(std::function<void(CUresult status)> told);
  bool forgetNotice(uint32_t number);  // false: it has been told
  /// The number of a place in a stream that waits until Session::openGate().
  uint32_t newGate();
  /// A graph is about to be launched, which may have host functions in it: the number of the notice
  /// that has to be asked for behind it. Until it comes functions are outstanding. 0: no graph has
  /// any.
  uint32_t expectGraphEnd();
  void graphDoesNotEnd(uint32_t number);  // it was not launched, or the notice not asked for

  /// True if there ever were any: other calls than a thread's own may end what it waits for.
  bool everAny() const { return ever_any_.load(); }
  /// True if graphs may have host functions in them.
  bool inGraphs() const { return in_graphs_.load(); }
  /// True if a host function may still be to run that may change what this thread is about to read.
  /// False in a host function itself.
  bool outstanding() const;

  /// By the receiver: the stream has come to the place, or never will.
  void come(uint32_t number, int32_t status);
  /// No more comes: the functions that the worker has called are called. For functions not called
  /// yet CUDA calls callbacks behind a failure, with its error, and no host functions; with
  /// `leaving` none.
  void lost(bool leaving);
  /// The thread that calls them.
  void run();

 private:
  struct Function {
    std::function<void(CUresult)> run;
    FunctionKind kind;
  };
  void endAll();

  Session& session_;
  std::mutex mutex_;
  std::condition_variable due_condition_;
  std::unordered_map<uint32_t, Function> functions_;
  std::unordered_map<uint32_t, std::function<void(CUresult)>> notices_;
  std::vector<std::pair<uint32_t, CUresult>> due_;
  bool ended_ = false;  // nothing becomes due any more
  uint32_t next_ = 1;
  std::atomic<bool> ever_any_{false};
  std::atomic<bool> in_graphs_{false};
  std::atomic<uint32_t> outstanding_{0};         // those that run once
  std::atomic<uint32_t> graphs_outstanding_{0};  // launches of graphs that may call functions
};

}  // namespace olpager::forward
