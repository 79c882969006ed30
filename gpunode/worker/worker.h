// A session's worker: takes the client's calls in their order and makes them through the driver
// (libolpager.so in local mode).
//
// Threads: one at a time leads (lead.h). Locks: those of its parts; none is held while the driver
// is called, but a linker's (links.h), who listens to the log (logs.h), that of thread_streams.h,
// and hands_ of Exchange and FaultWatch.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "coherence/calls/channel.h"
#include "forwarding/tally.h"
#include "forwarding/wire/wire.h"
#include "gpunode/worker/agent.h"
#include "gpunode/worker/capture_thread.h"
#include "gpunode/worker/client_functions.h"
#include "gpunode/worker/device_resources.h"
#include "gpunode/worker/driver_library.h"
#include "gpunode/worker/exchange.h"
#include "gpunode/worker/exports.h"
#include "gpunode/worker/faults.h"
#include "gpunode/worker/gates.h"
#include "gpunode/worker/handles.h"
#include "gpunode/worker/host_memory.h"
#include "gpunode/worker/lead.h"
#include "gpunode/worker/links.h"
#include "gpunode/worker/logs.h"
#include "gpunode/worker/module_cache.h"
#include "gpunode/worker/operations.h"
#include "gpunode/worker/peers.h"
#include "gpunode/worker/staging.h"
#include "gpunode/worker/stream_queues.h"
#include "gpunode/worker/text.h"
#include "gpunode/worker/thread_streams.h"

namespace olpager::gpunode {

/// A wait for another thread looks this often whether the session has ended.
inline constexpr std::chrono::milliseconds kSlice{500};

struct WorkerOptions {
  std::string library;  // libolpager.so
  uint64_t va_base = 0, va_size = 0;
  unsigned slot = 0;         // of the session among those of its program
  unsigned handle_slot = 0;  // in the numbers of primary contexts
  bool memservers = false;   // it has some
  std::string client;        // its program, as that calls itself
};

// Many members: each part of a session is one object here.
class Worker {
 public:
  explicit Worker(const WorkerOptions& options);

  /// Loads the driver and starts it. The Error is one line.
  Status start();
  /// From now on: ends the process when there was no link for `grace`, whatever the calls that are
  /// under way wait for. Calls queued for a client that does not come back are not made.
  void endWithoutClient(std::chrono::milliseconds grace);
  /// Makes calls until the client says goodbye, sends nonsense, or is gone for longer than the
  /// grace time (`rejoined` waits for it and returns false then). Returns why it ended.
  std::string serve(std::function<bool()> rejoined);
  Lead& lead() { return lead_; }
  /// The client's process is known to be gone: nobody will come back. Ends the process as soon as
  /// there is no link.
  void clientIsDead() { client_dead_.store(true); }
  bool clientDead() const { return client_dead_.load(); }
  /// Tells the client that the session ends, and why, and ends the process when it has heard or has
  /// had its time. `lost_executor`: one more than the executor whose link is lost, if that is
  /// why.
  [[noreturn]] void endNow(const std::string& why, uint32_t lost_executor = 0);
  /// leave() begins with `call`, on whichever thread: the call must not wait. Before serve().
  void atLeave(std::function<void()> call) { at_leave_ = std::move(call); }
  /// Ends the process, whatever its threads are in: memory goes with it. Memservers are told first,
  /// as far as that takes no longer than a moment. Any thread; the second one waits for the end.
  [[noreturn]] void leave(int status);

  calls::Channel& channel() { return channel_; }
  const api::DriverTable& driver() const { return library_.table(); }
  HandleTable& handles() { return handles_; }
  DeviceResources& resources() { return resources_; }
  HostMemory& hostMemory() { return host_memory_; }
  ModuleCache& moduleCache() { return module_cache_; }
  Links& links() { return links_; }
  Staging& staging() { return staging_; }
  Gates& gates() { return gates_; }
  Peers& peers() { return peers_; }
  Agent& agent() { return agent_; }
  const OperationFunctions& operations() const { return operations_; }
  Exports& exports() { return exports_; }
  Exchange& exchange() { return exchange_; }
  FaultWatch& faults() { return faults_; }
  LogListener& logListener() { return log_listener_; }
  const WorkerOptions& options() const { return options_; }
  const DriverLibrary& library() const { return library_; }
  /// Calls made so far, and bytes of them and of their answers.
  uint64_t calls() const { return made_.calls.load(std::memory_order_relaxed); }
  uint64_t moved() const { return made_.moved.load(std::memory_order_relaxed); }

  /// Adds what the links of the session carry to the process's counters. One thread at a time.
  void countLinks();

  /// Makes a context current in the calling thread, if it is not.
  void setCurrent(CUcontext context);
  /// The one that is.
  static CUcontext current();
  /// The context that a stream is in: of a default stream the current one.
  CUcontext contextOf(CUstream stream) const;

  /// The stream that stands for a client thread's default stream.
  ThreadStreams& threadStreams() { return thread_streams_; }
  /// The context is gone, and the driver has taken the streams in it with it. `context`: the
  /// client's number, `known_as` the driver's handle.
  void contextGone(uint64_t context, CUcontext known_as);

  /// Waits until the transfer is over, over as many links as it takes; false: it has failed, or the
  /// session has ended.
  bool arrived(const calls::Transfer& transfer);

  /// Sends what has been printed so far on its way to the client.
  void drainText();
  /// Something for the client that nobody waits for.
  void tell(forward::Answer kind, uint32_t number, CUresult result,
            std::span<const std::byte> bytes, bool flush);
  ClientFunctions& clientFunctions() { return client_functions_; }
  /// True if a stream waits, or will wait, for the client, which may wait for another call
  /// (client_functions.h).
  bool streamsWaitForClient() { return client_functions_.areAhead() || gates_.closed() != 0; }
  /// True if a call of the driver may wait for a stream and let no other call be answered
  /// meanwhile. Never for an executor of a unified view: a host function that comes into that
  /// stream at any moment may touch managed memory, which takes other calls.
  bool driverMayWait() { return !agent_.started() && !streamsWaitForClient(); }

  /// Makes one call. `operation`: in its name, which may be suspended (isSuspended()): nothing has
  /// been done then, and the call is to be made again. nullptr: the thread waits for memory.
  void make(const std::vector<std::byte>& record, PagerOperation* operation);
  /// The same, and notes how long it takes where somebody wants to know.
  void makeTimed(const std::vector<std::byte>& record, PagerOperation* operation = nullptr);
  /// Makes one that needs no driver, beside the leader.
  void makeAhead(const std::vector<std::byte>& record);
  bool ended() const { return lead_.ended(); }
  /// Answers a call that somebody waits for and that brings nothing.
  void answer(const forward::CallHead& head, CUresult result);
  /// The call that this thread makes is answered with success before it is made.
  void answerEarly(const forward::CallHead& head);
  StreamQueues& queues() { return queues_; }

 private:
  void count(const std::vector<std::byte>& record);
  PagerOperation& ownOperation() const;
  bool isStillThere(const forward::CallHead& head, forward::Reader arguments) const;

  struct Made {
    std::atomic<uint64_t> calls{0}, moved{0};
    forward::Tally times;  // with OL_LOG=debug
  };

  const WorkerOptions options_;
  calls::Channel channel_;
  DriverLibrary library_;
  OperationFunctions operations_;
  HandleTable handles_;
  DeviceResources resources_;
  HostMemory host_memory_;
  ModuleCache module_cache_;
  Links links_;
  Exchange exchange_{*this};
  FaultWatch faults_{*this};
  Staging staging_;
  CaptureThread capture_thread_;
  Gates gates_;
  Peers peers_;
  Agent agent_{*this};
  LogListener log_listener_;
  Exports exports_;
  ThreadStreams thread_streams_{*this};
  ClientFunctions client_functions_{*this};
  std::function<void()> at_leave_;
  Text text_{STDOUT_FILENO};
  Text errors_{STDERR_FILENO};
  Made made_;
  StreamQueues queues_{*this};
  Lead lead_{*this};
  std::atomic<bool> client_dead_{false};
  std::mutex counting_;                             // over the channels' and the peers'
  status::LinksCounters* links_counted_ = nullptr;  // of the library's; null: it has none
};

}  // namespace olpager::gpunode
