// A launch: checks, then workers that take clusters in order and time-slice those that do not
// finish.
//
// Clusters are started in the order of their numbers. One that has used up its slice goes to the
// back of the queue if another can run; a new one is started before a queued one goes on, until
// `resident` clusters are unfinished. So a block that spins on what another does gets its answer as
// long as both can be resident, as on hardware.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <new>
#include <utility>

#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

std::uint64_t volume(const Dim3& d) { return std::uint64_t{d.x} * d.y * d.z; }

class Scheduler {
 public:
  Scheduler(Launch& launch, std::uint64_t clusters, std::uint64_t resident)
      : launch_(launch), clusters_(clusters), resident_(resident) {}

  /// Runs clusters until none is left; on any worker thread, from which no exception may escape.
  void work(unsigned id) {
    try {
      workUntilDone(id);
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(launch_.mutex);
      if (launch_.result.status == LaunchStatus::kOk) {
        launch_.result.status = LaunchStatus::kInvalidConfig;
        launch_.result.message =
            "no host memory for the registers, stacks and shared memory of its blocks";
      }
      launch_.stop.store(true);
    }
  }

  std::uint64_t instructions() const { return instructions_; }

 private:
  void workUntilDone(unsigned id) {
    Worker worker(launch_);
    worker.id = id;
    std::unique_ptr<Cluster> spare;
    std::unique_ptr<Cluster> current;
    while (!stopped()) {
      if (!current && !take(worker, current, spare)) break;
      launch_.memory->enterSlice();
      const Progress progress = current->runSlice(worker);
      launch_.memory->leaveSlice();
      switch (progress) {
        case Progress::kFinished: {
          spare = std::exchange(current, nullptr);
          const std::lock_guard lock(mutex_);
          --unfinished_;
          break;
        }
        case Progress::kMore: {
          const std::lock_guard lock(mutex_);
          if (!queue_.empty() || (next_ < clusters_ && unfinished_ < resident_))
            queue_.push_back(std::exchange(current, nullptr));
          break;
        }
        case Progress::kDeadlock: {
          const std::lock_guard lock(launch_.mutex);
          if (launch_.result.status == LaunchStatus::kOk) {
            launch_.result.status = LaunchStatus::kDeadlock;
            launch_.result.block = current->blocks.front()->index;
            launch_.result.message =
                "all threads of the block wait at barriers that none of them can complete";
          }
          launch_.stop.store(true);
          break;
        }
        case Progress::kFault:
          break;
      }
    }
    const std::lock_guard lock(mutex_);
    instructions_ += worker.instructions;
  }

  bool stopped() const {
    return launch_.stop.load(std::memory_order_relaxed) ||
           launch_.cancel->load(std::memory_order_relaxed);
  }

  bool take(Worker& worker, std::unique_ptr<Cluster>& current, std::unique_ptr<Cluster>& spare) {
    std::uint64_t number;
    {
      const std::lock_guard lock(mutex_);
      if (next_ < clusters_ && (unfinished_ < resident_ || queue_.empty())) {
        number = next_++;
        ++unfinished_;
      } else if (!queue_.empty()) {
        current = std::move(queue_.front());
        queue_.pop_front();
        return true;
      } else {
        return false;
      }
    }
    current = spare ? std::move(spare) : std::make_unique<Cluster>();
    current->start(worker, number);
    return true;
  }

  Launch& launch_;
  const std::uint64_t clusters_;
  const std::uint64_t resident_;
  std::mutex mutex_;  ///< guards all below
  std::uint64_t next_ = 0;
  std::uint64_t unfinished_ = 0;
  std::deque<std::unique_ptr<Cluster>> queue_;
  std::uint64_t instructions_ = 0;
};

std::string describe(const LaunchResult& result, const Kernel& kernel) {
  const auto triple = [](const Dim3& d) {
    char text[48];
    std::snprintf(text, sizeof text, "(%u,%u,%u)", d.x, d.y, d.z);
    return std::string(text);
  };
  char address[32];
  std::snprintf(address, sizeof address, "0x%llx", static_cast<unsigned long long>(result.address));
  std::string what;
  switch (result.status) {
    case LaunchStatus::kIllegalAddress:
      what = std::string("illegal ") + (result.write ? "store to " : "load from ") + address;
      break;
    case LaunchStatus::kMisaligned:
      what = std::string("misaligned ") + (result.write ? "store to " : "load from ") + address;
      break;
    case LaunchStatus::kTrap:
      what = result.message.empty() ? "trap" : "trap: " + result.message;
      break;
    case LaunchStatus::kAssert:
      what = "assertion failed";
      break;
    case LaunchStatus::kStackOverflow:
      what = "stack overflow: " + result.message;
      break;
    case LaunchStatus::kIllegalInstruction:
      what = "illegal instruction: " + result.message;
      break;
    case LaunchStatus::kDeadlock:
      what = "deadlock: " + result.message;
      break;
    case LaunchStatus::kCancelled:
      return "kernel '" + kernel.info().name + "': cancelled";
    default:
      what = result.message;
      break;
  }
  return "kernel '" + kernel.info().name + "', PTX line " + std::to_string(result.line) +
         ", block " + triple(result.block) + ", thread " + triple(result.thread) + ": " + what;
}

}  // namespace

LaunchResult run(const Module& module, const Kernel& kernel, const LaunchConfig& requested,
                 AddressSpace& memory, Executor& executor, PrintfSink& sink,
                 const std::atomic<bool>& cancel) {
  const Program& program = module.program();
  LaunchConfig config = requested;
  // A kernel compiled for clusters is launched in them unless the launch names others.
  if (const auto& cluster = kernel.info().reqnctapercluster;
      cluster[0] != 0 && volume(config.cluster) == 1) {
    config.cluster = Dim3{cluster[0], cluster[1], cluster[2]};
  }
  const auto refuse = [&](const std::string& why) {
    LaunchResult result;
    result.status = LaunchStatus::kInvalidConfig;
    result.kernel = kernel.info().name;
    result.message = "kernel '" + kernel.info().name + "': " + why;
    return result;
  };
  if (!module.linked()) return refuse("its module is not linked");
  const CodeFunction& entry = program.functions[kernel.functionIndex()];
  const std::uint64_t threads = volume(config.block);
  if (threads == 0 || volume(config.grid) == 0) return refuse("a grid or block dimension is zero");
  if (threads > 1024) return refuse("more than 1024 threads in a block");
  if (threads > kernel.info().max_threads)
    return refuse("more threads in a block than its launch bounds allow");
  const auto& required = kernel.info().reqntid;
  if (required[0] != 0 && (required[0] != config.block.x || required[1] != config.block.y ||
                           required[2] != config.block.z)) {
    return refuse("block dimensions are not those of .reqntid");
  }
  if (config.params.size() < kernel.info().param_bytes) return refuse("parameter buffer too small");
  if (volume(config.cluster) == 0 || config.grid.x % config.cluster.x != 0 ||
      config.grid.y % config.cluster.y != 0 || config.grid.z % config.cluster.z != 0) {
    return refuse("the cluster does not divide the grid");
  }
  if (volume(config.cluster) > 16) return refuse("more than 16 blocks in a cluster");
  if (std::uint64_t{entry.dynamic_shared_offset} + config.dynamic_shared_bytes > 0x1000000) {
    return refuse("more than 16 MiB of shared memory");
  }

  Launch launch;
  launch.module = &module;
  launch.program = &program;
  launch.kernel = &kernel;
  launch.entry = &entry;
  launch.config = &config;
  launch.memory = &memory;
  launch.sink = &sink;
  launch.cancel = &cancel;
  launch.threads_per_block = static_cast<std::uint32_t>(threads);
  const std::uint32_t stack =
      entry.bounded_stack ? entry.stack_bytes : std::max(entry.stack_bytes, config.stack_bytes);
  launch.stack_bytes = (stack + 15) & ~15U;
  launch.result.kernel = kernel.info().name;

  const std::uint64_t clusters = volume(config.grid) / volume(config.cluster);
  std::uint64_t resident =
      std::max<std::uint64_t>(1, config.resident_blocks / volume(config.cluster));
  if (config.cooperative) resident = clusters;
  Scheduler scheduler(launch, clusters, resident);
  const auto workers =
      static_cast<unsigned>(std::min<std::uint64_t>(clusters, executor.concurrency()));
  executor.run(workers, [&](unsigned id) { scheduler.work(id); });

  LaunchResult result = std::move(launch.result);
  result.thread_instructions = scheduler.instructions();
  if (result.status == LaunchStatus::kOk && cancel.load(std::memory_order_relaxed))
    result.status = LaunchStatus::kCancelled;
  if (!result.ok()) result.message = describe(result, kernel);
  return result;
}

}  // namespace olpager::simgpu::ptx
