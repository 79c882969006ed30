// The engine of a device, made at its first allocation.
#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/size.h"
#include "pager/pool.h"
#include "pager/pool_state.h"

namespace olpager::pager {

CUresult engineFor(PoolState& state, CUcontext context, CUdevice device, Lock& lock, Engine** out) {
  const auto beingMade = [&] {
    return std::find(state.devices.starting.begin(), state.devices.starting.end(), device) !=
           state.devices.starting.end();
  };
  while (beingMade()) state.changed.wait_for(lock, std::chrono::milliseconds(10));
  if (Engine* engine = state.devices.engineOf(device); engine != nullptr) {
    *out = engine;
    return CUDA_SUCCESS;
  }
  if (state.devices.refused.contains(device)) return CUDA_ERROR_NOT_SUPPORTED;
  if (state.stopped) return CUDA_ERROR_DEINITIALIZED;
  state.devices.starting.reserve(state.devices.starting.size() + 1);
  state.devices.engines.reserve(state.devices.engines.size() + state.devices.starting.size() + 1);
  state.devices.starting.push_back(device);
  // The engine's end takes the mutex: the engine must not go while that is held, so whatever may
  // throw is inside, and what follows does not.
  std::shared_ptr<Engine> engine;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  try {
    lock.unlock();
    int numa = 0;
    if (state.driver.cuDeviceGetAttribute(&numa, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) !=
        CUDA_SUCCESS)
      numa = 0;
    const auto [vram, host] = [&] {
      const InContext current(state.driver, context);  // the caller's may be another device's
      return budgetsOf(state, device);
    }();
    lock.lock();
    engine = std::make_shared<Engine>(state, device, context);
    result = engine->start(vram, numa, lock);
    if (result == CUDA_SUCCESS && state.stopped) result = CUDA_ERROR_DEINITIALIZED;
    if (result == CUDA_ERROR_NOT_SUPPORTED && state.options.require_direct)
      state.devices.refused.insert(device);  // said once: it will not change
    const bool in_place = engine->chunks().hostMappable();
    if (result == CUDA_SUCCESS && state.options.reach == Reach::kAll && !in_place) {
      state.devices.refused.insert(device);  // said once: the machine will not change
      result = CUDA_ERROR_NOT_SUPPORTED;
      base::logError(
          "device %d: reach = all needs host memory that the GPU can use in place, which this "
          "machine refuses (in a "
          "container it may need CAP_SYS_NICE): run with reach = traced",
          device);
    }
    if (result == CUDA_SUCCESS)
      base::logInfo("device %d: local mode, VRAM budget %s, host tier %s%s", device,
                    base::formatSize(vram).c_str(), base::formatSize(host).c_str(),
                    in_place ? ""
                             : "; host memory can't be mapped in place here: what a launch reaches "
                               "has to fit VRAM");
  } catch (const std::exception& failure) {  // no memory, no thread
    if (!lock.owns_lock()) lock.lock();
    result = CUDA_ERROR_OUT_OF_MEMORY;
    base::logError("device %d: the pager could not start: %s", device, failure.what());
  }
  std::erase(state.devices.starting, device);
  state.changed.notify_all();
  if (result != CUDA_SUCCESS) {
    if (engine != nullptr) {
      lock.unlock();
      engine->stop();
      engine->releaseAll();
      engine.reset();
      lock.lock();
    }
    // A context that is gone is the caller's matter. The context is asked for again with each call:
    // the next one may be another.
    const bool gone =
        result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!state.devices.refused.contains(device) && !gone)
      base::logError("device %d: the pager could not start (CUDA error %d)", device,
                     static_cast<int>(result));
    return result;
  }
  for (const auto& [accessing, owner] : state.devices.peers)
    if (owner == device) static_cast<void>(engine->chunks().addPeer(accessing));
  *out = engine.get();
  state.devices.add(std::move(engine));
  tellRoom(state);
  return CUDA_SUCCESS;
}

}  // namespace olpager::pager
