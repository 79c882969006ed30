// Streams, captures and contexts: what goes with each when it goes.
#include "pager/launch/streams.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/launch/access.h"
#include "pager/pool_state.h"

namespace olpager::pager {

void Streams::streamDestroyed(const StreamKey& stream) {
  if (state_->forked.load()) return;
  // Deferred launches have states and marks of their own: they need the stream no more.
  state_->streams.streamDestroyed(stream);
  if (!state_->anyHostFunction()) return;
  Lock lock(state_->mutex);
  state_->host_functions.streamGone(stream);
}
void Streams::captureBegins(CUcontext context) { state_->streams.captureBegins(context); }
void Streams::captureBegan(bool begun) { state_->streams.captureBegan(begun); }
void Streams::captureEnded() { state_->streams.captureEnded(); }
bool Streams::capturing() const { return state_->streams.capturing(); }
void Streams::streamMayJoin(CUcontext context) { state_->streams.holdMarks(context); }
void Streams::streamJoined() { state_->streams.releaseMarks(); }

uint64_t Streams::hostFunctionBegins(const StreamKey& stream, bool blocking) {
  PoolState& state = *state_;
  if (state.forked.load() || !state.heedsHostFunctions()) return 0;
  uint64_t number = 0;
  {
    Lock lock(state.mutex);
    number = state.host_functions.begins(stream, blocking);
  }
  // The function may wait for launches before it to be over: a mark behind it would come too late.
  // Launches that are being made see that a function has begun, and mark themselves, or are over
  // with their driver call before the marks below.
  settleFloor(state);
  state.streams.markAll();
  return number;
}

namespace {

// The driver says that nothing runs in the context any more: no function is called there that was
// not called yet, and nothing runs that is deferred.
void contextEnded(PoolState& state, CUcontext context) {
  dropDeferred(state, context);
  state.host_functions.contextGone(context);
  state.changed.notify_all();
}

}  // namespace

void lookForEnded(PoolState& state, Lock& lock) {
  lock.unlock();
  state.streams.poll();
  lock.lock();
  for (const CUcontext context : state.streams.endedContexts()) contextEnded(state, context);
}

void Streams::hostFunctionEnded(uint64_t number, CUresult status) {
  if (state_->forked.load()) return;
  Lock lock(state_->mutex);
  HostFunctions& functions = state_->host_functions;
  const CUcontext context = functions.contextOf(number);
  if (!endsContext(status)) {
    functions.returned(number);
    state_->changed.notify_all();
    serveDeferred(*state_, number, lock);
  } else if (context != nullptr) {
    contextEnded(*state_, context);
  }
  functions.ended(number);
  state_->changed.notify_all();
}

bool Streams::runs(CUdevice device) {
  if (state_->forked.load()) return false;
  state_->streams.poll();
  return state_->anyHostFunction() || state_->streams.underWay(device) != 0;
}

namespace {

// Paces looks at work that is not over: often at first, so that what ends soon is seen soon.
class Looks {
 public:
  void rest() {
    std::this_thread::sleep_for(std::chrono::microseconds(looks_ < 50 ? 20 : 500));
    ++looks_;
  }

 private:
  unsigned looks_ = 0;
};

}  // namespace

CUresult Streams::finishWork() {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  constexpr CUresult kCaptures = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Looks looks;
  uint64_t number = 0;
  Hazards::Snapshot launching;
  {
    // A kernel that is deferred gets its number when the function before it is over.
    Lock lock(state.mutex);
    const uint64_t function = state.host_functions.last(), deferred = state.last_deferred;
    const auto someWait = [&] {
      return state.host_functions.anyUpTo(function) ||
             std::any_of(state.deferred.begin(), state.deferred.end(),
                         [&](const auto& launch) { return launch->id <= deferred; });
    };
    while (!state.stopped && someWait()) {
      lock.unlock();
      if (state.streams.capturing()) return kCaptures;
      looks.rest();
      lock.lock();
      lookForEnded(state, lock);
    }
    number = state.launch_number.load();
    hazards().snapshot(launching);
  }
  // Every launch up to `number` is submitted then.
  while (!Hazards::passed(launching)) std::this_thread::yield();
  state.streams.markAll();
  const std::vector<StreamPoint> last = state.streams.lastLaunches();
  const auto allOver = [&] {
    return std::all_of(last.begin(), last.end(), [](const auto& one) { return one.isOver(); });
  };
  while (!allOver()) {
    state.streams.poll();
    if (allOver()) break;
    // Nothing is known of unmarked work before the capture ends.
    if (state.streams.capturing()) return kCaptures;
    drainUnmarked(state, number);
    looks.rest();
  }
  return CUDA_SUCCESS;
}

void Streams::awaitHostFunctions(const StreamKey& stream) {
  PoolState& state = *state_;
  if (state.forked.load() || !state.anyHostFunction()) return;
  const uint64_t until = nowNs() + HostFunctions::kPatienceNs;
  Lock lock(state.mutex);
  // Deferred launches need calls of the driver to get their memory, and wait for nobody's function
  // any more.
  HostFunctions& functions = state.host_functions;
  while (!state.stopped &&
         (functions.areServedBefore(stream) || (functions.areBefore(stream) && nowNs() < until)))
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
}

void Streams::awaitHostFunctionsIn(CUcontext context, bool as_long_as_it_takes) {
  PoolState& state = *state_;
  if (state.forked.load() || !state.anyHostFunction()) return;
  Lock lock(state.mutex);
  const HostFunctions& functions = state.host_functions;
  const uint64_t upto = functions.last();
  const auto waits = [&] {
    const uint64_t now = as_long_as_it_takes ? 0 : nowNs();
    return functions.mayTouch(context, upto, now) && !state.stopped;
  };
  if (!waits()) return;
  // A touch may be a call of the same session.
  lock.unlock();
  tellOfWait();
  lock.lock();
  while (waits()) {
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
    if (as_long_as_it_takes) lookForEnded(state, lock);
  }
}

void Streams::markManaged(const StreamKey& stream) {
  if (state_->forked.load() || !state_->has_managed.load()) return;
  state_->streams.markManaged(state_->streams.find(stream));
}

void Streams::streamWaits(const StreamKey& stream) {
  markManaged(stream);
  if (state_->forked.load() || !state_->anyHostFunction()) return;
  Lock lock(state_->mutex);
  state_->host_functions.waits(stream);
}

namespace {

// Waits for the work of a context that is about to go, and forgets its streams. `events_stay`: as
// StreamTable::contextGone().
void endStreams(PoolState& state, CUcontext context, bool events_stay = false) {
  if (const InContext current(state.driver, context); current.result() == CUDA_SUCCESS) {
    const RelaxedThread relaxed(state.driver);
    // Beside a capture the driver may refuse to wait for all of a context.
    if (const CUresult result = state.driver.cuCtxSynchronize();
        result != CUDA_SUCCESS && !endsContext(result))
      state.streams.synchronizeEach(context);
  }
  {
    Lock lock(state.mutex);
    dropDeferred(state, context);
  }
  state.streams.contextGone(context, events_stay);
  if (!state.heedsHostFunctions()) return;
  Lock lock(state.mutex);
  state.host_functions.contextGone(context);
  state.changed.notify_all();
}

// Memory of the engine's that is on its way back by other threads is back before it goes. (An
// executor of the unified view hears of frees by a thread of its own.)
void awaitDrops(PoolState& state, const Engine& engine, Lock& lock) {
  const auto dropped = [&] {
    for (uint32_t id = 1; id < state.book.regions.end(); ++id) {
      const Region* region = state.book.regions.at(id);
      if (region->dead && region->engine == &engine && !region->extents.empty()) return true;
    }
    return false;
  };
  while (dropped() && !state.stopped) state.changed.wait_for(lock, std::chrono::milliseconds(1));
}

}  // namespace

void Streams::greenContextGone(CUcontext context) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  endStreams(state, context, true);
  Lock lock(state.mutex);
  if (state.stopped) return;
  state.frees.awaitAsking(state.changed, lock);
  // The work that frees on the context's streams waited for is over.
  const std::vector<DeferredFrees::Entry> freed = state.frees.takeStreamsOf(context);
  lock.unlock();
  for (const DeferredFrees::Entry& entry : freed) state.driver.cuEventDestroy_v2(entry.event);
  lock.lock();
  for (const DeferredFrees::Entry& entry : freed) {
    state.frees.forget(entry.address);
    freeQuiet(state, entry.address, lock);  // releases the mutex
  }
}

void Streams::contextGone(CUcontext context) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  {
    Lock lock(state.mutex);
    if (state.stopped) return;
  }
  // Nothing may be unmapped under a running kernel, not even now: that would be an error of the
  // program's.
  endStreams(state, context);
  Lock lock(state.mutex);
  state.lost.forget(context);
  state.frees.awaitAsking(state.changed, lock);
  const std::vector<CUevent> events = state.frees.takeMemory(context, [&](CUdeviceptr address) {
    const Region* region = state.book.find(address);
    return region != nullptr && region->context == context;
  });
  lock.unlock();
  for (const CUevent event : events) state.driver.cuEventDestroy_v2(event);
  lock.lock();
  for (const auto& [address, small] : state.book.small.slots) {
    const Region* slab = small.context == context ? state.book.find(address) : nullptr;
    if (slab == nullptr || slab->engine == nullptr) continue;
    subtract(slab->engine->figures().allocated_bytes, small.bytes);
    subtract(slab->engine->figures().allocations, 1);
  }
  for (uint32_t id = 1; id < state.book.regions.end(); ++id) {
    Region* region = state.book.regions.at(id);
    if (region->dead || region->context != context) continue;
    if (region->kind == RegionKind::kReservation) continue;  // addresses outlive contexts
    if (region->kind == RegionKind::kAllocation) {
      subtract(region->engine->figures().allocated_bytes, region->requested_bytes);
      subtract(region->engine->figures().allocations, 1);
    }
    dropRegion(state, region, lock);
  }
  std::erase_if(state.book.small.slots,
                [&](const auto& slot) { return slot.second.context == context; });
  std::erase_if(state.book.small.slabs, [&](auto& entry) {
    if (entry.first.context != context) return false;
    entry.second->forgetAll();
    return true;
  });
  std::vector<Region*> gone;
  state.reach.roots.dropContext(context, gone);
  for (Region* region : gone) dropRoot(state, *region, lock);
  state.reach.unknown_variables.forget(context);
  // The engine that lived in the context moves to another one with memory of its device. With none
  // left it goes; the next allocation starts another.
  Engine* const engine = state.devices.engineIn(context);
  if (engine == nullptr) return;
  CUcontext other = nullptr;
  for (uint32_t id = 1; id < state.book.regions.end() && other == nullptr; ++id) {
    const Region* region = state.book.regions.at(id);
    if (!region->dead && region->engine == engine && region->context != context)
      other = region->context;
  }
  for (const auto& [id, handle] : state.programs.handles)
    if (handle->engine == engine && handle->context != context) other = handle->context;
  if (other != nullptr && engine->moveTo(other, lock)) return;
  if (other != nullptr && !engine->broken() && !state.stopped)
    base::logError(
        "device %d: the context that is destroyed holds what the pager keeps in host memory, which "
        "can't be mapped in "
        "place here: memory of other contexts of the device is lost with it",
        engine->device());
  dropHandles(state, *engine, lock);
  for (uint32_t id = 1; id < state.book.regions.end(); ++id) {  // of an engine that could not move
    Region* region = state.book.regions.at(id);
    if (!region->dead && region->engine == engine && region->kind != RegionKind::kReservation)
      dropRegion(state, region, lock);
  }
  awaitDrops(state, *engine, lock);
  const std::shared_ptr<Engine> going = state.devices.take(engine);
  state.reach.forgetKeeper(engine);
  lock.unlock();
  if (going == nullptr) return;
  going->stop();
  going->releaseAll();
}

CUresult Streams::peerEnabled(CUdevice accessing, CUdevice owner) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  Lock lock(state.mutex);
  const std::pair pair{accessing, owner};
  if (std::find(state.devices.peers.begin(), state.devices.peers.end(), pair) ==
      state.devices.peers.end())
    state.devices.peers.push_back(pair);
  Engine* engine = state.devices.engineOf(owner);
  if (engine == nullptr) return CUDA_SUCCESS;  // its engine will know from the start
  return engine->addPeer(accessing, lock);
}

}  // namespace olpager::pager
