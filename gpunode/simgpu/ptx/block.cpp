// Blocks and clusters: their memory, their barriers, and the turns of their warps.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(2);
// Turns that a warp with lanes both at a barrier and parked waits before the parked ones are let
// go.
constexpr std::uint32_t kStuckTurns = 64;

std::byte* align64(std::byte* p) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(p) + 63) &
                                      ~std::uintptr_t{63});
}

}  // namespace

Block::~Block() {
  if (stacks != nullptr) munmap(stacks, stacks_bytes);
}

Frame* Block::newFrame(const CodeFunction& function) {
  auto& spare = spare_frames[function.index];
  if (!spare.empty()) {
    Frame* const frame = spare.back();
    spare.pop_back();
    return frame;
  }
  auto fresh = std::make_unique<Frame>();
  const std::size_t registers = (std::size_t{function.frame_bytes} + 63) / 64 * 64;
  fresh->function = &function;
  const std::size_t params = std::size_t{kWarpSize} * function.param_bytes;
  const std::size_t allocated = function.uses_alloca ? kWarpSize * sizeof(std::uint32_t) : 0;
  fresh->storage = std::make_unique<std::byte[]>(registers + params + allocated + 128);
  fresh->registers = align64(fresh->storage.get());
  fresh->params = fresh->registers + registers;
  if (allocated != 0) fresh->allocated = reinterpret_cast<std::uint32_t*>(fresh->params + params);
  frames.push_back(std::move(fresh));
  return frames.back().get();
}

void Block::deleteFrame(Frame* frame) { spare_frames[frame->function->index].push_back(frame); }

void Block::wait(std::uint32_t id, BarrierWait wait, std::uint32_t needed) {
  Barrier& barrier = barriers[id];
  const std::uint32_t lanes = wait.split.mask;
  barrier.needed = needed;
  barrier.lanes += countLanes(lanes);
  wait.warp->at_barrier |= lanes;
  barrier.waiting.push_back(wait);
  checkBarrier(barrier);
}

void Block::arriveOnly(std::uint32_t id, const Warp& warp, std::uint32_t needed) {
  Barrier& barrier = barriers[id];
  barrier.needed = needed;
  barrier.arrivals += warp.full() ? kWarpSize : countLanes(warp.mask);
  checkBarrier(barrier);
}

void Block::checkBarrier(Barrier& barrier) {
  if (barrier.lanes == 0 && barrier.arrivals == 0) return;
  if (barrier.needed == 0) {
    if (barrier.lanes + barrier.arrivals < live) return;
  } else if (barrier.lanes + barrier.arrivals < barrier.needed) {
    // A count is in whole warps: lanes that have exited, or never were, count with those of their
    // warp.
    std::uint32_t total = barrier.arrivals;
    std::uint32_t seen_warps[32] = {};
    for (const BarrierWait& w : barrier.waiting) {
      std::uint32_t& lanes = seen_warps[w.warp->id % 32];
      if (lanes == 0) lanes = w.warp->dead;
      lanes |= w.split.mask;
    }
    for (const std::uint32_t lanes : seen_warps) total += countLanes(lanes);
    if (total < barrier.needed) return;
  }
  std::uint32_t result = 0;
  switch (barrier.reduction) {
    case Reduction::kNone:
      break;
    case Reduction::kPopc:
      result = barrier.count_true;
      break;
    case Reduction::kAnd:
      result = barrier.count_true == barrier.lanes ? kFullMask : 0;
      break;
    case Reduction::kOr:
      result = barrier.count_true != 0 ? kFullMask : 0;
      break;
  }
  const Reduction reduction = barrier.reduction;
  std::vector<BarrierWait> waiting = std::move(barrier.waiting);
  barrier = Barrier{};
  for (BarrierWait& w : waiting) {
    if (w.result != kNoTarget) {
      std::byte* const at = w.split.frame->registers + w.result;
      if (reduction == Reduction::kPopc) {
        for (std::uint32_t left = w.split.mask; left != 0; left &= left - 1) {
          reinterpret_cast<std::uint32_t*>(at)[std::countr_zero(left)] = result;
        }
      } else {
        auto& word = *reinterpret_cast<std::uint32_t*>(at);
        word = (word & ~w.split.mask) | (result & w.split.mask);
      }
    }
    w.warp->at_barrier &= ~w.split.mask;
    w.warp->stuck = 0;
    w.warp->ready.push_back(w.split);
  }
  waiting.clear();
  if (barrier.waiting.capacity() == 0) barrier.waiting = std::move(waiting);  // keep the memory
}

void Block::threadsExited(std::uint32_t count) {
  live -= count;
  for (Barrier& barrier : barriers) checkBarrier(barrier);
  if (cluster->blocks.size() > 1) cluster->checkPhase();
}

void Cluster::arrive(Warp& warp) {
  arrived += countLanes(warp.mask);
  warp.cluster_phase = phase;
  checkPhase();
}

void Cluster::checkPhase() {
  std::uint32_t live = 0;
  for (const auto& block : blocks) live += block->live;
  if (arrived < live || arrived == 0) return;
  arrived = 0;
  ++phase;
  for (BarrierWait& w : waiting) {
    w.warp->at_barrier &= ~w.split.mask;
    w.warp->ready.push_back(w.split);
  }
  waiting.clear();
}

void Cluster::start(Worker& worker, std::uint64_t number) {
  Launch& launch = worker.launch;
  const LaunchConfig& config = *launch.config;
  const Dim3 grid{config.grid.x / config.cluster.x, config.grid.y / config.cluster.y,
                  config.grid.z / config.cluster.z};
  index.x = static_cast<std::uint32_t>(number % grid.x);
  index.y = static_cast<std::uint32_t>(number / grid.x % grid.y);
  index.z = static_cast<std::uint32_t>(number / grid.x / grid.y);
  waiting.clear();
  arrived = 0;
  phase = 0;
  const std::size_t count = std::size_t{config.cluster.x} * config.cluster.y * config.cluster.z;
  const std::uint32_t threads = launch.threads_per_block;
  const std::uint32_t warps = (threads + kWarpSize - 1) / kWarpSize;
  while (blocks.size() < count) blocks.push_back(std::make_unique<Block>());
  for (std::size_t rank = 0; rank < count; ++rank) {
    Block& block = *blocks[rank];
    const auto r = static_cast<std::uint32_t>(rank);
    block.rank = r;
    block.cluster = this;
    block.index = {index.x * config.cluster.x + r % config.cluster.x,
                   index.y * config.cluster.y + r / config.cluster.x % config.cluster.y,
                   index.z * config.cluster.z + r / config.cluster.x / config.cluster.y};
    block.live = threads;
    block.finished_warps = 0;
    for (Barrier& barrier : block.barriers) barrier = Barrier{};
    if (block.launch == nullptr) {
      block.launch = &launch;
      block.spare_frames.resize(launch.program->functions.size());
      block.dynamic_offset = launch.entry->dynamic_shared_offset;
      block.shared_size = std::uint64_t{block.dynamic_offset} + config.dynamic_shared_bytes;
      if (launch.entry->uses_reserved_shared)
        block.shared_size = (block.shared_size + 127) / 128 * 128 + kReservedSharedBytes;
      block.shared = std::make_unique<std::byte[]>(block.shared_size + 1024);
      // 1024-byte alignment: as much as any shared variable may ask for.
      block.shared_data = reinterpret_cast<std::byte*>(
          (reinterpret_cast<std::uintptr_t>(block.shared.get()) + 1023) & ~std::uintptr_t{1023});
      block.stack_bytes = launch.stack_bytes;
      if (block.stack_bytes != 0) {
        block.stacks_bytes = std::size_t{block.stack_bytes} * kWarpSize * warps;
        void* const p = mmap(nullptr, block.stacks_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        block.stacks = static_cast<std::byte*>(p);
      }
      for (std::uint32_t i = 0; i < warps; ++i) {
        auto warp = std::make_unique<Warp>();
        warp->id = i;
        warp->block = &block;
        warp->base[1] = reinterpret_cast<std::byte*>(
            const_cast<std::uint64_t*>(launch.program->constants.data()));
        warp->local = block.stacks + std::size_t{i} * kWarpSize * block.stack_bytes;
        warp->root = block.newFrame(*launch.entry);
        for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
          const std::uint32_t t = i * kWarpSize + lane;
          warp->tid[0][lane] = t % config.block.x;
          warp->tid[1][lane] = t / config.block.x % config.block.y;
          warp->tid[2][lane] = t / config.block.x / config.block.y;
        }
        block.warps.push_back(std::move(warp));
      }
    }
    for (std::uint32_t i = 0; i < warps; ++i) {
      Warp& warp = *block.warps[i];
      const std::uint32_t left = threads - i * kWarpSize;
      warp.reset();
      warp.start(left >= kWarpSize ? kFullMask : (1U << left) - 1);
    }
  }
}

Progress Cluster::runSlice(Worker& worker) {
  const auto end = std::chrono::steady_clock::now() + kSlice;
  while (true) {
    bool any = false;
    bool finished = true;
    bool waits = true;  // every warp that ran only spun
    for (const auto& block : blocks) {
      for (const auto& warp : block->warps) {
        if (warp->finished()) continue;
        finished = false;
        if (!warp->running && warp->ready.empty()) {
          const bool patient = warp->at_barrier != 0 && ++warp->stuck < kStuckTurns;
          if (patient || !warp->unblock()) continue;
        }
        any = true;
        warp->worker = &worker;
        warp->budget = kTurn;
        const bool good = warp->run();
        waits = waits && warp->strong_accesses * kStrongCost >= kTurn / 2;
        warp->strong_accesses = 0;
        worker.instructions += warp->instructions;
        warp->instructions = 0;
        if (!good) {
          // The thread of the fault, for the report.
          const std::uint32_t lane = warp->fault.lane % kWarpSize;
          Launch& launch = worker.launch;
          const std::lock_guard lock(launch.mutex);
          LaunchResult& result = launch.result;
          if (result.status == LaunchStatus::kOk) {
            const Op* const op = warp->pc - 1;
            result.status = warp->fault.status;
            result.address = warp->fault.address;
            result.write = warp->fault.write;
            result.message = warp->fault.message;
            result.pc = static_cast<std::uint32_t>(op - warp->frame->function->ops.data());
            result.line = op->line;
            result.block = block->index;
            result.thread = {warp->tid[0][lane], warp->tid[1][lane], warp->tid[2][lane]};
          }
          launch.stop.store(true, std::memory_order_relaxed);
          return Progress::kFault;
        }
      }
    }
    if (finished) return Progress::kFinished;
    if (!any) {
      bool unblocked = false;
      for (const auto& block : blocks) {
        for (const auto& warp : block->warps) unblocked |= !warp->finished() && warp->unblock();
      }
      if (!unblocked) return Progress::kDeadlock;
    }
    if (waits || std::chrono::steady_clock::now() >= end) return Progress::kMore;
    if (worker.launch.stop.load(std::memory_order_relaxed) ||
        worker.launch.cancel->load(std::memory_order_relaxed)) {
      return Progress::kMore;
    }
  }
}

}  // namespace olpager::simgpu::ptx
