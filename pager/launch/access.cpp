// The path of a launch while everything is in VRAM (`slow` is false): no lock, no system call. Else
// acquire.cpp.
#include <algorithm>
#include <cstring>

#include "pager/counters/trace.h"
#include "pager/pool.h"
#include "pager/pool_state.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

Access::Access(Pool& pool, const StreamKey& stream) : pool_(pool), stream_(stream) {}

Access::~Access() {
  if (stream_state_ != nullptr) submitted(CUDA_ERROR_UNKNOWN);
}

Access::Use& Access::pushMore() {
  ++count_;
  return more_.emplace_back();
}

inline Access::Use& Access::push() { return count_ < kInlineUses ? inline_[count_++] : pushMore(); }

void Access::addOutside(uint64_t word) {
  if (pool_.state_->reach.roots.span().contains(word)) outside_words_.push_back(word);
}

inline void Access::addWord(uint64_t word) {
  if (pool_.contains(word))
    push() = {word, 0, Mode::kReadWrite};
  else
    addOutside(word);
}

void Access::addParameter(const void* bytes_at, size_t bytes) {
  follows_pointers_ = true;
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
    push() = {address, bytes, mode};
  } else if (mode != Mode::kRead && pool_.mayHoldRoot(address, bytes)) {
    root_writes_.push_back({address, bytes, mode});
  }
}

void Access::addHostSource(const void* host, uint64_t bytes, bool stable) {
  host_source_ = host;
  host_bytes_ = bytes;
  host_stable_ = stable;
}

void Access::addReach(const ReachSet& set) {
  follows_pointers_ = true;
  reaches_everything_ |= set.everything;
  graph_ = &set;
  for (const uint64_t address : set.addresses) addWord(address);
}

void Access::collect(ReachSet& into) const {
  if (pool_.state_->forked.load(std::memory_order_relaxed)) return;
  into.everything |= reaches_everything_;
  if (name_ != nullptr) into.addKernel(name_);
  for (const uint64_t word : outside_words_) into.add(word);
  // A value is known now; what a copy from the host brings in each time that the graph runs, nobody
  // has seen by then.
  uint64_t value = 0;
  if (host_source_ != nullptr && host_stable_ && host_bytes_ <= sizeof(value)) {
    std::memcpy(&value, host_source_, host_bytes_);
    if (pool_.contains(value)) into.add(value);
  } else if (host_source_ != nullptr) {
    into.everything = true;
  }
  bool reads = host_source_ != nullptr;
  for (unsigned i = 0; i < count_; ++i) reads |= use(i).mode == Mode::kRead;
  for (unsigned i = 0; i < count_; ++i) {
    const Region* region = pool_.state_->book.find(use(i).address);
    if (region == nullptr) continue;
    if (use(i).bytes != 0) into.addRange({use(i).address, use(i).bytes, !reads});
    if (region->divisible)
      into.addInPage(use(i).address);
    else
      into.add(region->base);
  }
}

CUresult Access::acquire() {
  PoolState& state = *pool_.state_;
  // A kernel that names nothing counts as well: a module variable or a texture, which may be gone
  // before it ends, can lead it somewhere.
  if (count_ == 0 && root_writes_.empty() && !follows_pointers_) return CUDA_SUCCESS;
  if (state.forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  HazardSlot* slot = hazards().mine();
  StreamState* stream = state.streams.find(stream_);
  if (stream->device.load(std::memory_order_relaxed) < 0) findDevice(*stream);
  if (!state.slow.load(std::memory_order_relaxed)) {
    slot->enter();
    if (!state.slow.load(std::memory_order_seq_cst)) {
      stream->pending.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t number = state.launch_number.fetch_add(1, std::memory_order_acq_rel) + 1;
      bool clear = true;
      Region* last = nullptr;
      for (unsigned i = 0; i < count_ && clear; ++i) {
        const Use& named = use(i);
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
        number_ = number;
        stream_state_ = stream;
        if (last != nullptr && last->engine != nullptr) {
          DeviceCounters& figures = last->engine->figures();
          add(follows_pointers_ ? figures.launches : figures.copies);
          if (follows_pointers_) add(figures.launches_resident);
          traced_ = traceBegins(figures);
        }
        return CUDA_SUCCESS;
      }
      stream->pending.fetch_sub(1, std::memory_order_acq_rel);
    }
    slot->leave();
  }
  reachAcross(*stream);
  return acquireSlow();
}

// Whether a copy meets memory of another device that this one has not been given access to. Native
// copies can; kernels need what the program asks for by cuCtxEnablePeerAccess.
bool Access::crosses(const StreamState& stream, const Region& region) const {
  const CUdevice device = stream.device.load(std::memory_order_relaxed);
  return region.engine != nullptr && region.device != device &&
         !region.engine->chunks().hasPeer(device);
}

void Access::findDevice(StreamState& stream) const {
  const DriverApi& driver = pool_.state_->driver;
  CUdevice device = 0;
  if (const InContext current(driver, stream_.context);
      current.result() == CUDA_SUCCESS && driver.cuCtxGetDevice(&device) == CUDA_SUCCESS)
    stream.device.store(device, std::memory_order_relaxed);
}

// Gives the device of a copy access to the memory of others that it names, where the hardware can.
// Else the driver answers.
void Access::reachAcross(StreamState& stream) {
  PoolState& state = *pool_.state_;
  const DriverApi& driver = state.driver;
  const CUdevice device = stream.device.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < count_; ++i) {
    const Region* region = use(i).bytes != 0 ? state.book.find(use(i).address) : nullptr;
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
  if (stream_state_ == nullptr) return;
  if (timed_ != nullptr) timed_->finish(pool_.state_->driver, stream_.stream);
  timed_ = nullptr;
  if (traced_ != 0) {
    traced(follows_pointers_ ? TraceKind::kLaunch : TraceKind::kCopy,
           static_cast<unsigned>(stream_state_->device.load(std::memory_order_relaxed)), traced_,
           nowNs(), count_ != 0 ? use(0).address : 0, 0, number_);
    traced_ = 0;
  }
  raise(stream_state_->last, number_);
  stream_state_->pending.fetch_sub(1, std::memory_order_acq_rel);
  hazards().mine()->leave();
  // No other thread can name a per-thread default stream.
  if (stream_.thread != 0 && pool_.state_->slow.load(std::memory_order_relaxed))
    pool_.state_->streams.markOwn(stream_state_);
  stream_state_ = nullptr;
  pool_.answered(stream_.context, result);
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
