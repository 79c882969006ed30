// A session's worker: takes the client's calls in their order and makes them through the driver
// (libolpager.so in local mode).
//
// Threads. One thread at a time leads: it takes records and makes the calls. Before a call that may
// wait (for the GPU, or for the client) it gives the lead away when the client has other threads or
// host functions; when it had none at that moment but the call still waits after a few
// milliseconds, the lead is taken from it. Calls that were taken before are made before: a call of
// the leader's is over, or waits, when the next one is taken.
//
// While host functions run or gates are closed, any call may wait for them: then another thread
// reads on, and makes of what comes only what ends them or opens them.
//
// Locks: lead_mutex_ (who leads); reading_mutex_ (who takes records), before rejoin_mutex_ (who
// waits for the client's next link); the tables' own; none is held while the driver is called, but
// a linker's (links.h), who listens to the log (logs.h), and hands_ of Exchange and FaultWatch.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coherence/calls/channel.h"
#include "forwarding/placing.h"
#include "forwarding/tally.h"
#include "forwarding/wire/wire.h"
#include "gpunode/worker/capture_thread.h"
#include "gpunode/worker/device_resources.h"
#include "gpunode/worker/exchange.h"
#include "gpunode/worker/exports.h"
#include "gpunode/worker/faults.h"
#include "gpunode/worker/gates.h"
#include "gpunode/worker/handles.h"
#include "gpunode/worker/host_memory.h"
#include "gpunode/worker/links.h"
#include "gpunode/worker/logs.h"
#include "gpunode/worker/module_cache.h"
#include "gpunode/worker/peers.h"
#include "gpunode/worker/staging.h"
#include "gpunode/worker/text.h"
#include "interpose/api/driver_table.h"

namespace olpager::gpunode {

struct WorkerOptions {
  std::string library;  // libolpager.so
  uint64_t va_base = 0, va_size = 0;
  unsigned slot = 0;        // of the session among those of its program
  bool memservers = false;  // it has some
};

class Worker {
 public:
  explicit Worker(const WorkerOptions& options);

  /// Loads the driver and starts it. The Error is one line.
  Status start();
  /// From now on: ends the process when there was no link for `grace`, whatever the calls that are
  /// under way wait for. What is queued for a client that does not come back is not made.
  void endWithoutClient(std::chrono::milliseconds grace);
  /// Makes calls until the client says goodbye, sends nonsense, or is gone for longer than the
  /// grace time (`rejoined` waits for it and returns false then). Returns why it ended.
  std::string serve(std::function<bool()> rejoined);
  /// The client's process is known to be gone: nobody will come back. Ends the process as soon as
  /// there is no link.
  void clientIsDead() { client_dead_.store(true); }
  bool clientDead() const { return client_dead_.load(); }
  /// Tells the client that the session ends, and why, and ends the process when it has heard or has
  /// had its time.
  [[noreturn]] void endNow(const std::string& why);
  /// What leave() begins with, on whichever thread: it must not wait. Before serve().
  void atLeave(std::function<void()> call) { at_leave_ = std::move(call); }
  /// Ends the process, whatever its threads are in: memory goes with it. Memservers are told first,
  /// as far as that takes no longer than a moment.
  [[noreturn]] void leave(int status);

  calls::Channel& channel() { return channel_; }
  const api::DriverTable& driver() const { return driver_; }
  HandleTable& handles() { return handles_; }
  DeviceResources& resources() { return resources_; }
  HostMemory& hostMemory() { return host_memory_; }
  ModuleCache& moduleCache() { return module_cache_; }
  Links& links() { return links_; }
  Staging& staging() { return staging_; }
  Gates& gates() { return gates_; }
  Peers& peers() { return peers_; }
  Exports& exports() { return exports_; }
  Exchange& exchange() { return exchange_; }
  FaultWatch& faults() { return faults_; }
  LogListener& logListener() { return log_listener_; }
  const WorkerOptions& options() const { return options_; }
  int devices() const { return devices_; }
  /// The part of the range whose addresses the client gives out; bytes 0: none.
  CUdeviceptr placedBase() const { return placed_base_; }
  uint64_t placedBytes() const { return placed_bytes_; }
  /// Null where there is no such part.
  forward::AllocateAt allocateAt() const { return allocate_at_; }
  bool hasSymbol(const char* name) const;
  /// Something else of libolpager.so; nullptr: it has none of that name.
  void* symbol(const char* name) const;
  /// Calls made so far, and bytes of them and of their answers.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  uint64_t moved() const { return moved_.load(std::memory_order_relaxed); }

  /// Makes a context current in the calling thread, if it is not.
  void setCurrent(CUcontext context);
  /// The one that is.
  static CUcontext current();
  /// The context that a stream is in: of a default stream the current one.
  CUcontext contextOf(CUstream stream) const;

  /// The stream that stands for a client thread's default stream.
  CUresult threadStream(uint32_t thread, uint64_t context, CUstream* stream);
  /// The context is gone, and the driver has taken the streams in it with it. `context`: the
  /// client's number, `known_as` the driver's handle.
  void contextGone(uint64_t context, CUcontext known_as);

  /// Waits until the transfer is over, over as many links as it takes; false: it has failed, or the
  /// session has ended.
  bool arrived(const calls::Transfer& transfer);

  /// What has been printed so far is on its way to the client.
  void drainText();
  /// Something for the client that nobody waits for.
  void tell(forward::Answer kind, uint32_t number, CUresult result,
            std::span<const std::byte> bytes, bool flush);
  /// A host function of the client's: tells it and waits until it is done.
  void callClient(uint32_t number, CUresult status);
  void clientFunctionDone(uint32_t number);
  /// A stream waits for the client from now on: somebody has to hear of it whatever the leader's
  /// calls wait for.
  void gatePut();

  /// Makes one call: the leader's part, public for tests.
  void make(const std::vector<std::byte>& record);
  void nonsense(const forward::CallHead& head);
  bool ended() const { return ended_; }
  void goodbye() { ended_.store(true); }

 private:
  void lead(uint64_t self);
  bool rejoin();
  void makeTimed(const std::vector<std::byte>& record);
  calls::Channel::Read next(std::vector<std::byte>& record, std::chrono::microseconds timeout);
  void readAhead(uint64_t stuck);
  bool opensNow(const std::vector<std::byte>& record);
  void makeAhead(const std::vector<std::byte>& record);
  void count(const std::vector<std::byte>& record);
  bool isStillThere(const forward::CallHead& head, forward::Reader arguments) const;
  void startThread();  // under lead_mutex_
  bool clientEndsSomething() const;
  bool takeLead(std::unique_lock<std::mutex>& lock, uint64_t self);

  const WorkerOptions options_;
  calls::Channel channel_;
  void* library_ = nullptr;
  api::DriverTable driver_{};
  int devices_ = 0;
  CUdeviceptr placed_base_ = 0;
  size_t placed_bytes_ = 0;
  forward::AllocateAt allocate_at_ = nullptr;
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
  LogListener log_listener_;
  Exports exports_;
  std::function<void()> at_leave_;
  Text text_{STDOUT_FILENO};
  Text errors_{STDERR_FILENO};

  std::mutex rejoin_mutex_;  // before the channel's
  std::function<bool()> rejoined_;

  std::mutex streams_mutex_;
  struct ThreadStream {
    CUstream stream = nullptr;
    uint32_t thread = 0;  // whose it is
  };
  std::map<std::pair<uint64_t, uint32_t>, ThreadStream>
      thread_streams_;  // by context and the thread's place

  std::mutex lead_mutex_;
  std::condition_variable lead_free_, threads_gone_;
  uint64_t leader_ = 0;        // 0: nobody
  bool leader_waits_ = false;  // in a call that may wait
  uint64_t waits_ = 0;
  uint32_t followers_ = 0, threads_ = 0;
  uint32_t asleep_ = 0;  // followers that do not look at the clock
  std::atomic<uint64_t> lead_call_{
      0};  // the leader's call that was not expected to wait, by number; 0: it is in none
  uint64_t lead_calls_ = 0;  // of the leader alone
  uint32_t functions_ = 0;   // host functions that the client has not answered
  // Who takes records from the channel, and these. Never with lead_mutex_; before rejoin_mutex_ and
  // the channel's.
  std::mutex reading_mutex_;
  std::deque<std::vector<std::byte>>
      ahead_;  // read while the leader was in a call, to be made by it in their order
  size_t ahead_bytes_ = 0;
  uint64_t next_thread_ = 1;
  std::atomic<bool> ended_{false};
  std::atomic<bool> client_dead_{false};
  std::atomic<uint64_t> calls_{0}, moved_{0};
  forward::Tally made_;  // with OL_LOG=debug
  std::string why_;

  std::mutex client_mutex_;
  std::condition_variable client_done_;
  struct Called {
    uint32_t calls = 0;  // that wait for it
    uint32_t done = 0;   // that the client has said are over, and that nobody has taken yet
  };
  std::map<uint32_t, Called> called_;  // by function
};

}  // namespace olpager::gpunode
