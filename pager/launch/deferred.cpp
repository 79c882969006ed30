#include "pager/launch/deferred.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/launch/acquisition.h"
#include "pager/launch/in_flight.h"
#include "pager/launch/streams.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {

auto find(PoolState& state, uint64_t id) {
  return std::find_if(state.deferred.begin(), state.deferred.end(),
                      [id](const auto& launch) { return launch->id == id; });
}

// Both have been done with it, or it will never run: its mark tells when it is over.
void leave(PoolState& state, DeferredLaunch& launch) {
  if (StreamState* const stream = launch.got.stream; stream != nullptr) {
    raise(stream->last, launch.got.number);
    state.streams.marked(*stream, std::exchange(launch.mark, nullptr), launch.got.number);
    stream->pending.fetch_sub(1, std::memory_order_acq_rel);
  }
  StreamTable::threadEnded(launch.operation.stream.thread);
  if (launch.mark != nullptr) state.streams.giveEvent(launch.stream.context, launch.mark);
  state.deferred.erase(find(state, launch.id));
  state.changed.notify_all();
}

// Behind what the stream has been given; nullptr: it can't be had.
CUevent markBehind(const DriverApi& driver, const StreamKey& key) {
  const base::HeldSignals held;
  const RelaxedThread relaxed(driver);
  const InContext current(driver, key.context);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUevent event = nullptr;
  if (current.result() != CUDA_SUCCESS ||
      driver.cuStreamIsCapturing(key.stream, &status) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_NONE ||
      driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return nullptr;
  if (driver.cuEventRecord(event, key.stream) == CUDA_SUCCESS) return event;
  static_cast<void>(driver.cuEventDestroy_v2(event));
  return nullptr;
}

// The launch was refused, or its context has ended.
bool isDropped(PoolState& state, const DeferredLaunch& launch) {
  return find(state, launch.id) == state.deferred.end();
}

// One attempt. CUDA_SUCCESS: it has its number. Memory that the system does not give may come
// later.
CUresult attempt(PoolState& state, DeferredLaunch& launch, Lock& lock) {
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  try {
    state.streams.find(launch.operation.stream)->device.store(launch.device);
    Acquisition acquisition(state, launch.operation);
    acquisition.followsNobody();
    acquisition.begin(lock);
    while (acquisition.commit(lock, launch.got) == Acquisition::State::kWaiting) {
      state.changed.wait_for(lock, kLook);
      if (isDropped(state, launch)) acquisition.cancel(lock);
      acquisition.ready(lock);
    }
    result = acquisition.result();
  } catch (const std::bad_alloc&) {
    // Here, or after it has got its number.
  }
  if (launch.got.stream == nullptr) return result;
  // Until its driver call has been made as well it counts as pending: nothing else is needed.
  hazards().mine()->leave();
  if (std::exchange(launch.got.holds_signals, false)) base::releaseSignals();
  return CUDA_SUCCESS;
}

void acquire(PoolState& state, DeferredLaunch& launch, Lock& lock) {
  while (!state.stopped && attempt(state, launch, lock) == CUDA_ERROR_OUT_OF_MEMORY &&
         !isDropped(state, launch)) {
    base::warnOnce("deferred room",
                   "a kernel behind a host function waits for room for what it reaches");
    state.changed.wait_for(lock, kLook);
  }
}

}  // namespace

namespace {

struct Turn {
  Streams* streams;
  uint64_t number;  // HostFunctions'
};
void CUDA_CB turnComes(CUstream /*stream*/, CUresult status, void* data) {
  const std::unique_ptr<Turn> turn(static_cast<Turn*>(data));
  turn->streams->hostFunctionEnded(turn->number, status);
}

// False: the driver did not take it.
bool putTurn(PoolState& state, Streams& streams, const StreamKey& key) {
  const base::HeldSignals held;
  const RelaxedThread relaxed(state.driver);
  const InContext current(state.driver, key.context);
  if (current.result() != CUDA_SUCCESS) return false;
  // The legacy default stream waits for the stream, as far as is known here.
  auto turn = std::make_unique<Turn>(Turn{&streams, streams.hostFunctionBegins(key, true)});
  if (turn->number == 0) return false;
  if (state.driver.cuStreamAddCallback(key.stream, turnComes, turn.get(), 0) == CUDA_SUCCESS) {
    (void)turn.release();
    return true;
  }
  streams.hostFunctionEnded(turn->number, CUDA_SUCCESS);
  return false;
}

}  // namespace

bool takeTurn(PoolState& state, Streams& streams, const StreamKey& stream, Lock& lock) {
  // The one before it is in the stream by then: what comes behind the turn never waits for it.
  const auto inStream = [&](bool called) {
    return std::any_of(state.deferred.begin(), state.deferred.end(), [&](const auto& launch) {
      return launch->stream == stream && (called || !launch->called);
    });
  };
  while (inStream(false) && !state.stopped) state.changed.wait_for(lock, kLook);
  if (!inStream(true) || state.stopped) return false;
  lock.unlock();
  const bool put = putTurn(state, streams, stream);
  lock.lock();
  return put;
}

void deferredCalled(PoolState& state, uint64_t id, CUresult result) {
  Lock lock(state.mutex);
  auto found = find(state, id);
  if (found == state.deferred.end()) return;  // its context has ended
  const StreamKey stream = (*found)->stream;
  lock.unlock();
  const CUevent mark = result == CUDA_SUCCESS ? markBehind(state.driver, stream) : nullptr;
  lock.lock();
  found = find(state, id);
  if (found == state.deferred.end()) return;
  DeferredLaunch& launch = **found;
  launch.called = true;
  state.changed.notify_all();
  launch.mark = mark;
  if (launch.served || result != CUDA_SUCCESS) leave(state, launch);
}

void serveDeferred(PoolState& state, uint64_t function, Lock& lock) {
  const base::HeldSignals held;  // a touch of what is claimed waits for this thread
  for (;;) {
    const auto next = std::find_if(
        state.deferred.begin(), state.deferred.end(),
        [function](const auto& launch) { return launch->function == function && !launch->served; });
    if (next == state.deferred.end()) return;
    const std::shared_ptr<DeferredLaunch> launch = *next;
    acquire(state, *launch, lock);
    launch->served = true;
    if (isDropped(state, *launch)) {  // meanwhile
      if (launch->got.stream == nullptr) continue;
      state.deferred.push_back(launch);
      leave(state, *launch);
    } else if (launch->called) {
      leave(state, *launch);
    }
  }
}

void dropDeferred(PoolState& state, CUcontext context) {
  for (;;) {
    const auto found =
        std::find_if(state.deferred.begin(), state.deferred.end(),
                     [context](const auto& launch) { return launch->stream.context == context; });
    if (found == state.deferred.end()) return;
    leave(state, **found);
  }
}

}  // namespace olpager::pager
