#include <pthread.h>

#include <cstdio>
#include <set>

#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/settings.h"

namespace olpager::simgpu {

namespace {

std::atomic<Driver*> g_driver{nullptr};
std::atomic<bool> g_forked{false};
std::mutex g_init_mutex;

}  // namespace

Driver::Driver(Settings chosen) : settings(chosen) {
  for (int i = 0; i < settings.devices; ++i) {
    auto device = std::make_unique<Device>(i, settings);
    const uint64_t handle = newHandleValue(HandleKind::kContext);
    device->primary = std::make_shared<Context>(*device, reinterpret_cast<CUcontext>(handle), 0, 0, true);
    contexts.set(handle, device->primary);
    devices.push_back(std::move(device));
  }
}

Driver& Driver::get() { return *g_driver.load(std::memory_order_acquire); }

bool Driver::initialized() { return g_driver.load(std::memory_order_acquire) != nullptr; }

CUresult Driver::init() {
  if (g_forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (initialized()) return CUDA_SUCCESS;
  std::scoped_lock lock(g_init_mutex);
  if (initialized()) return CUDA_SUCCESS;
  auto settings = readSettings();
  if (!settings) {
    std::fprintf(stderr, "%s\n", settings.error().message.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  try {
    g_driver.store(new Driver(settings.value()), std::memory_order_release);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "olsimcuda: no address space for %d device(s) with %llu bytes of VRAM each\n",
                 settings.value().devices, static_cast<unsigned long long>(settings.value().vram_bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // The streams' threads do not exist in a forked child, so nothing of ours can work there: every call says so.
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  return CUDA_SUCCESS;
}

Device* Driver::device(CUdevice ordinal) {
  return ordinal >= 0 && static_cast<size_t>(ordinal) < devices.size() ? devices[ordinal].get() : nullptr;
}

ptx::Executor& Driver::executor() {
  std::call_once(executor_once_, [this] { executor_ = ptx::makeThreadPool(settings.threads); });
  return *executor_;
}

CUresult requireInit() {
  return Driver::initialized() && !g_forked.load(std::memory_order_relaxed) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult notSupported(const char* function) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const told = new std::set<std::string>;
  std::scoped_lock lock(*mutex);
  if (told->insert(function).second)
    std::fprintf(stderr, "olsimcuda: %s is not supported by the simulated GPU\n", function);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace olpager::simgpu
