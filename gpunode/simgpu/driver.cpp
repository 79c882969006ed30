#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/logs.h"
#include "gpunode/simgpu/settings.h"

namespace olpager::simgpu {

namespace {

std::atomic<Driver*> g_driver{nullptr};
std::atomic<bool> g_forked{false};
std::mutex g_init_mutex;

std::string uuidText(const Settings& settings, int number) {
  const auto uuid = Device::uuidOf(settings, number);
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                  uuid[i]);
    text += byte;
  }
  return text;
}

// The device that a word of CUDA_VISIBLE_DEVICES names: a number, or a beginning of one UUID. -1:
// none, or several.
int deviceNamed(const Settings& settings, const std::string& word) {
  if (word.empty()) return -1;
  char* end = nullptr;
  const long number = std::strtol(word.c_str(), &end, 10);
  if (*end == '\0') return number >= 0 && number < settings.devices ? static_cast<int>(number) : -1;
  int found = -1;
  for (int i = 0; i < settings.devices && word.size() > 4; ++i) {
    if (uuidText(settings, i).compare(0, word.size(), word) != 0) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

// CUDA_VISIBLE_DEVICES: what it names, in its order. The first word that names no device ends the
// list; a device that is named twice leaves none.
std::vector<int> visibleDevices(const Settings& settings) {
  std::vector<int> visible;
  const char* const wanted = std::getenv("CUDA_VISIBLE_DEVICES");
  if (wanted == nullptr) {
    for (int i = 0; i < settings.devices; ++i) visible.push_back(i);
    return visible;
  }
  std::stringstream words(wanted);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t first = word.find_first_not_of(' '), last = word.find_last_not_of(' ');
    const int device = first != std::string::npos
                           ? deviceNamed(settings, word.substr(first, last - first + 1))
                           : -1;
    if (device < 0) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};
    visible.push_back(device);
  }
  return visible;
}

}  // namespace

Driver::Driver(Settings chosen) : settings(std::move(chosen)) {
  for (const int number : visibleDevices(settings)) {
    auto device = std::make_unique<Device>(static_cast<int>(devices.size()), number, settings);
    const uint64_t handle = newHandleValue(HandleKind::kContext);
    device->primary =
        std::make_shared<Context>(*device, reinterpret_cast<CUcontext>(handle), 0, 0, true);
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
  if (visibleDevices(settings.value()).empty()) return CUDA_ERROR_NO_DEVICE;
  try {
    g_driver.store(new Driver(settings.value()), std::memory_order_release);
  } catch (const std::bad_alloc&) {
    std::fprintf(
        stderr, "olsimcuda: no address space for %d device(s) with %llu bytes of VRAM each\n",
        settings.value().devices, static_cast<unsigned long long>(settings.value().vram_bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // The streams' threads do not exist in a forked child, so nothing of ours can work there: every
  // call says so.
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  return CUDA_SUCCESS;
}

Device* Driver::device(CUdevice ordinal) {
  return ordinal >= 0 && static_cast<size_t>(ordinal) < devices.size() ? devices[ordinal].get()
                                                                       : nullptr;
}

ptx::Executor& Driver::executor() {
  std::call_once(executor_once_, [this] { executor_ = ptx::makeThreadPool(settings.threads); });
  return *executor_;
}

CUresult requireInit() {
  return Driver::initialized() && !g_forked.load(std::memory_order_relaxed)
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult notSupported(const char* function) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const told = new std::set<std::string>;
  {
    std::scoped_lock lock(*mutex);
    if (told->insert(function).second)
      std::fprintf(stderr, "olsimcuda: %s is not supported by the simulated GPU\n", function);
  }
  logMessage(CU_LOG_LEVEL_ERROR, std::string(function) + " is not supported by the simulated GPU");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace olpager::simgpu
