// The path of a launch while everything is in VRAM (`slow` is false): no lock, no system call. Else
// acquire.cpp.
#include <algorithm>
#include <cstring>
#include <utility>

#include "pager/counters/trace.h"
#include "pager/pool.h"
#include "pager/pool_state.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

Access::Access(Pool& pool, const StreamKey& stream) : pool_(pool), operation_(stream) {}

Access::~Access() {
  if (submission_.stream != nullptr || submission_.number != 0) submitted(CUDA_ERROR_UNKNOWN);
}

Uses::Use& Uses::pushMore() {
  ++count_;
  return more_.emplace_back();
}

void Access::addOutside(uint64_t word) {
  if (pool_.state_->reach.roots.span().contains(word)) operation_.outside_words.push_back(word);
}

inline void Access::addWord(uint64_t word) {
  if (pool_.contains(word))
    operation_.uses.push() = {word, 0, Mode::kReadWrite};
  else
    addOutside(word);
}

void Access::addParameter(const void* bytes_at, size_t bytes) {
  operation_.follows_pointers = true;
  const char* at = static_cast<const char*>(bytes_at);
  for (size_t offset = 0; offset + sizeof(uint64_t) <= bytes; offset += 4) {
    uint64_t word;
    std::memcpy(&word, at + offset, sizeof(word));
    addWord(word);
  }
}

void Access::addRange(uint64_t address, uint64_t bytes, Mode mode) {
  if (bytes == 0) return;
  if (pool_.contains(address)) {
    operation_.uses.push() = {address, bytes, mode};
  } else if (mode != Mode::kRead && pool_.mayHoldRoot(address, bytes)) {
    operation_.root_writes.push_back({address, bytes, mode});
  }
}

void Access::addHostSource(const void* host, uint64_t bytes, bool stable) {
  // Managed memory is no host memory here: its range is named as well, and the CPU's view of it is
  // gone when the operation goes.
  if (pool_.contains(reinterpret_cast<uint64_t>(host))) return;
  operation_.host_source = host;
  operation_.host_bytes = bytes;
  operation_.host_stable = stable;
}

void Access::addReach(const ReachSet& set) {
  operation_.follows_pointers = true;
  operation_.reaches_everything |= set.everything;
  operation_.graph = &set;
  for (const uint64_t address : set.addresses) addWord(address);
}

void Access::collect(ReachSet& into) const {
  if (pool_.state_->forked.load(std::memory_order_relaxed)) return;
  into.everything |= operation_.reaches_everything;
  if (operation_.name != nullptr) into.addKernel(operation_.name);
  for (const uint64_t word : operation_.outside_words) into.add(word);
  // A value is known now; what a copy from the host brings in each time that the graph runs, nobody
  // has seen by then.
  uint64_t value = 0;
  if (operation_.host_source != nullptr && operation_.host_stable &&
      operation_.host_bytes <= sizeof(value)) {
    std::memcpy(&value, operation_.host_source, operation_.host_bytes);
    if (pool_.contains(value)) into.add(value);
  } else if (operation_.host_source != nullptr) {
    into.everything = true;
  }
  bool reads = operation_.host_source != nullptr;
  for (unsigned i = 0; i < operation_.uses.count(); ++i)
    reads |= operation_.uses[i].mode == Mode::kRead;
  for (unsigned i = 0; i < operation_.uses.count(); ++i) {
    const Region* region = pool_.state_->book.find(operation_.uses[i].address);
    if (region == nullptr) continue;
    if (operation_.uses[i].bytes != 0)
      into.addRange({operation_.uses[i].address, operation_.uses[i].bytes, !reads});
    if (region->divisible)
      into.addInPage(operation_.uses[i].address);
    else
      into.add(region->base);
  }
}

bool Access::namesManaged() const {
  if (!pool_.hasManaged()) return false;
  for (unsigned i = 0; i < operation_.uses.count(); ++i) {
    const Region* const region = pool_.state_->book.find(operation_.uses[i].address);
    if (region != nullptr && region->managed != nullptr) return true;
  }
  return false;
}

CUresult Access::acquire(bool suspends) {
  PoolState& state = *pool_.state_;
  if (operation_.usesNothing()) return CUDA_SUCCESS;
  if (state.forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  HazardSlot* slot = hazards().mine();
  StreamState* stream = state.streams.find(operation_.stream);
  if (stream->device.load(std::memory_order_relaxed) < 0) findDevice(*stream);
  // A suspended operation holds memory until it is committed.
  const bool resumes = suspends && ExternalOperation::current() != nullptr &&
                       ExternalOperation::current()->kept != nullptr;
  if (!state.slow.load(std::memory_order_relaxed) && !resumes) {
    slot->enter();
    if (!state.slow.load(std::memory_order_seq_cst)) {
      stream->pending.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t number = state.launch_number.fetch_add(1, std::memory_order_acq_rel) + 1;
      bool clear = true;
      Region* last = nullptr;
      for (unsigned i = 0; i < operation_.uses.count() && clear; ++i) {
        const Uses::Use& named = operation_.uses[i];
        Region* region = state.book.find(named.address);
        if (region == nullptr ||
            (named.bytes != 0 && !holds(*region, named.address, named.bytes))) {
          clear = named.bytes == 0;  // a range that is not ours to give: the slow path says so
          continue;
        }
        if (region == last) continue;
        clear = region->blocked.load(std::memory_order_seq_cst) == 0 &&
                (named.bytes == 0 || !crosses(*stream, *region));
        raise(region->stamp, number);
        last = region;
      }
      if (clear) {
        submission_.number = number;
        submission_.stream = stream;
        if (last != nullptr && last->engine != nullptr) {
          DeviceCounters& figures = last->engine->figures();
          add(operation_.follows_pointers ? figures.launches : figures.copies);
          if (operation_.follows_pointers) add(figures.launches_resident);
          submission_.traced = traceBegins(figures);
        }
        return CUDA_SUCCESS;
      }
      stream->pending.fetch_sub(1, std::memory_order_acq_rel);
    }
    slot->leave();
  }
  if (state.has_managed.load(std::memory_order_relaxed)) state.streams.markManaged(stream);
  reachAcross(*stream);
  return acquireSlow(suspends);
}

// True if a copy meets memory of another device that this one has not been given access to. Native
// copies can; kernels need what the program asks for by cuCtxEnablePeerAccess.
bool Access::crosses(const StreamState& stream, const Region& region) const {
  const CUdevice device = stream.device.load(std::memory_order_relaxed);
  return region.engine != nullptr && region.device != device &&
         !region.engine->chunks().hasPeer(device);
}

void Access::findDevice(StreamState& stream) const {
  const DriverApi& driver = pool_.state_->driver;
  CUdevice device = 0;
  if (const InContext current(driver, operation_.stream.context);
      current.result() == CUDA_SUCCESS && driver.cuCtxGetDevice(&device) == CUDA_SUCCESS)
    stream.device.store(device, std::memory_order_relaxed);
}

// Gives the device of a copy access to the memory of others that it names, where the hardware can.
// Else the driver answers.
void Access::reachAcross(StreamState& stream) {
  PoolState& state = *pool_.state_;
  const DriverApi& driver = state.driver;
  const CUdevice device = stream.device.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < operation_.uses.count(); ++i) {
    const Region* region =
        operation_.uses[i].bytes != 0 ? state.book.find(operation_.uses[i].address) : nullptr;
    if (region == nullptr || region->device == device) continue;
    Lock lock(state.mutex);
    if (region->dead || !crosses(stream, *region)) continue;
    const CUdevice owner = region->device;
    lock.unlock();
    int can = 0;
    if (driver.cuDeviceCanAccessPeer(&can, device, owner) != CUDA_SUCCESS || can == 0) continue;
    static_cast<void>(pool_.peerEnabled(device, owner));
  }
}

void Access::submitted(CUresult result) {
  if (submission_.stream == nullptr) {
    if (submission_.number == 0) return;
    deferredCalled(*pool_.state_, std::exchange(submission_.number, 0), result);
    return pool_.answered(operation_.stream.context, result);
  }
  if (submission_.timed != nullptr)
    submission_.timed->finish(pool_.state_->driver, operation_.stream.stream);
  submission_.timed = nullptr;
  if (submission_.traced != 0) {
    traced(operation_.follows_pointers ? TraceKind::kLaunch : TraceKind::kCopy,
           static_cast<unsigned>(submission_.stream->device.load(std::memory_order_relaxed)),
           submission_.traced, nowNs(),
           operation_.uses.count() != 0 ? operation_.uses[0].address : 0, 0, submission_.number);
    submission_.traced = 0;
  }
  raise(submission_.stream->last, submission_.number);
  submission_.stream->pending.fetch_sub(1, std::memory_order_acq_rel);
  hazards().mine()->leave();
  PoolState& state = *pool_.state_;
  // No other thread can name a per-thread default stream.
  if (operation_.stream.thread != 0 && state.slow.load(std::memory_order_relaxed))
    state.streams.markOwn(submission_.stream);
  // The stream's next work may be behind a host function, and a later mark with it.
  else if (state.anyHostFunction())
    state.streams.markNow(submission_.stream);
  submission_.stream = nullptr;
  submission_.number = 0;
  if (std::exchange(submission_.holds_signals, false)) base::releaseSignals();
  pool_.answered(operation_.stream.context, result);
}

void ReachSet::add(uint64_t address) {
  const auto it = std::lower_bound(addresses.begin(), addresses.end(), address);
  if (it == addresses.end() || *it != address) addresses.insert(it, address);
}

void ReachSet::addInPage(uint64_t address) {
  const uint64_t page = address / kPageBytes;
  const auto it = std::lower_bound(addresses.begin(), addresses.end(), page * kPageBytes);
  if (it == addresses.end() || *it / kPageBytes != page) addresses.insert(it, address);
}

void ReachSet::addRange(const Range& range) {
  const auto it = std::lower_bound(ranges.begin(), ranges.end(), range);
  if (it == ranges.end() || *it != range) ranges.insert(it, range);
}

void ReachSet::add(const ReachSet& other) {
  everything |= other.everything;
  for (const Range& range : other.ranges) addRange(range);
  for (const uint64_t address : other.addresses) add(address);
  for (const char* name : other.kernels)
    if (name != nullptr) addKernel(name);
}

void ReachSet::addKernel(const char* name) {
  for (const char*& place : kernels) {
    if (place == name) return;
    if (place != nullptr) continue;
    place = name;
    return;
  }
}

}  // namespace olpager::pager
