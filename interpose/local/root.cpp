// States of the root, moved under Root::init_mutex:
//
//   fresh      nothing loaded                      -> loaded | driverless | forwarded
//                                                  (ensureDriver)
//   forwarded  the settings name a gpunode; final  interpose/forward has the program, nothing here
//                                                  does
//   driverless the driver can't be had; final      cuInit answers CUDA_ERROR_NO_DEVICE or
//                                                  CUDA_ERROR_INVALID_VALUE
//   loaded     the driver's functions are known    -> running | refused     (initialize)
//   refused    settings or range are wrong; final  cuInit answers what went wrong; all else passes
//                                                  to the driver
//   running    the pool exists
//   child      forked while running; final         the gate is empty, all passes to the driver
//
// Readers look at two atomics only: whether the driver was loaded, and the gate.
#include "interpose/local/root.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/process.h"
#include "base/settings.h"
#include "coherence/calls/digest.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/core/own_descriptors.h"
#include "coherence/transport/from_settings.h"
#include "disk/open.h"
#include "interpose/api/local_functions.h"
#include "interpose/forward/counted_links.h"
#include "interpose/forward/sessions.h"
#include "interpose/local/driver_loader.h"
#include "interpose/local/ipc_exports.h"
#include "interpose/local/locks.h"
#include "interpose/unified/view.h"
#include "memserver/tier/connect.h"
#include "pager/counters/counters.h"
#include "pager/driver_api.h"
#include "pager/residency/direct_memory.h"
#include "pager/tiers/lower_tier.h"
#include "pager/tiers/two_tiers.h"

namespace olpager::local {

namespace detail {
Gate g_gate;
api::DriverTable g_driver;
const Runtime g_without_pool{&g_driver, nullptr};
}  // namespace detail

namespace {

// The oldest driver that can name a kernel's parameters (cuFuncGetParamInfo).
constexpr int kOldestDriver = 12040;

struct Root {
  base::RankedMutex init_mutex{kInitMutex};
  base::Settings settings;
  LoadedDriver driver;
  bool driver_tried = false;
  bool initialized = false;             // initialize() ran to its end
  CUresult init_result = CUDA_SUCCESS;  // what it answered
};

// Made at first need and never destroyed.
Root& root() {
  static Root* instance = new Root;
  return *instance;
}

std::atomic<bool> g_driver_ready{false};
std::atomic<bool> g_forwarded{false};  // final
// The pool as the parent made it; the child finds it here after the gate was wiped.
std::atomic<pager::Pool*> g_made{nullptr};
std::atomic<bool> g_forked{false};

void childAfterFork() {
  detail::g_gate.running.store(nullptr, std::memory_order_release);
  pager::Pool* made = g_made.load(std::memory_order_acquire);
  if (made == nullptr) return;
  ipcForked();
  transport::closeInForkedChild();  // memservers would take the child for its parent
  g_forked.store(true, std::memory_order_release);
  made->forked();
}

void atExit() {
  if (pager::Pool* running = pool()) running->stop();
}

// At the end of the process that olrun became, where it was told to log that much (OL_PROGRAM): a
// user that expected paging is to know that there was none. Not where the driver was asked for
// anything, also if it refused; not in other processes of the program.
__attribute__((destructor)) void sayUnused() {
  const char* const program = std::getenv(base::kProgramVariable);
  if (program == nullptr || std::to_string(getpid()) != program) return;
  const std::unique_lock lock(root().init_mutex, std::try_to_lock);
  if (!lock || root().driver_tried) return;  // a thread may still be at it
  if (!base::logs(base::LogLevel::kInfo))
    base::setLogLevel(base::LogLevel::kInfo);  // the settings were not read
  base::logInfo(
      "%s has ended and used no CUDA, so nothing was paged; if it should have: is its build one "
      "with CUDA, and "
      "does it let its child processes keep LD_PRELOAD?",
      program_invocation_short_name);
}

pager::PoolOptions optionsFrom(const base::Settings& settings) {
  pager::PoolOptions options;
  options.va_base = settings.va_base;
  options.va_size = settings.va_size;
  options.vram = settings.vram;
  options.host = settings.host;
  switch (settings.reach) {
    case base::ReachSetting::kTraced:
      options.reach = pager::Reach::kTraced;
      break;
    case base::ReachSetting::kAll:
      options.reach = pager::Reach::kAll;
      break;
    case base::ReachSetting::kLearned:
      options.reach = pager::Reach::kLearned;
      break;
  }
  options.report =
      settings.report == base::ReportSetting::kPool ? pager::Report::kPool : pager::Report::kNode;
  options.packing.on = settings.pack;
  options.stream_arenas = settings.stream_arenas;
  options.require_direct = settings.require_gpudirect;
  return options;
}

using TierResult = Result<std::unique_ptr<pager::LowerTier>>;

TierResult memserversFrom(const base::Settings& settings) {
  memserver::TierOptions options;
  options.memservers = settings.memservers;
  options.replicas = settings.replicas;
  options.label = program_invocation_short_name;
  auto network = transport::optionsFrom(settings);
  if (!network.ok()) return network.error();
  options.transport = std::move(network).value();
  return memserver::connectTier(options);
}

TierResult disksFrom(const base::Settings& settings) {
  disk::TierOptions options;
  for (const base::DiskSetting& one : settings.disks)
    options.folders.push_back({one.folder, one.bytes});
  options.encrypt = settings.disk_encrypt;
  return disk::openTier(options);
}

// The tier below host RAM, where the settings name any. The Error says what can't be reached,
// trusted or written.
Result<std::shared_ptr<pager::LowerTier>> lowerTierFrom(const base::Settings& settings) {
  const bool remote = !settings.memservers.empty(), disks = !settings.disks.empty();
  if (!remote && !disks) return std::shared_ptr<pager::LowerTier>();
  auto upper = remote ? memserversFrom(settings) : disksFrom(settings);
  if (!upper.ok()) return upper.error();
  if (!remote || !disks) return std::shared_ptr<pager::LowerTier>(std::move(upper).value());
  auto lower = disksFrom(settings);
  if (!lower.ok()) return lower.error();
  return std::shared_ptr<pager::LowerTier>(
      new pager::TwoTiers(std::move(upper).value(), std::move(lower).value()));
}

// The reason against require = gpudirect, as far as it can be told before there is a context. An
// engine tries it with a chunk (DirectMoves::start).
std::string whyNotDirect(const pager::DriverApi& driver, const pager::LowerTier& tier) {
  int devices = 0;
  if (driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS) devices = 0;
  for (int device = 0; device < devices; ++device)
    if (std::string why = pager::whyNoDmaBufs(driver, device); !why.empty()) return why;
  return tier.whyNotDirect();
}

void* resolveInDriver(void* handle, const char* name) { return dlsym(handle, name); }

// Says why there is no start. Always shown: the program only sees a number.
void complain(const std::string& message) {
  if (base::logLevel() == base::LogLevel::kOff) return;
  base::logError("%s", message.c_str());
}

// Under init_mutex. Exceptions of the parsers end here.
CUresult loadUnderLock(Root& state) {
  state.driver_tried = true;
  Result<base::Settings> settings = base::loadSettings();
  if (!settings.ok()) {
    complain(settings.error().message);
    return CUDA_ERROR_INVALID_VALUE;
  }
  state.settings = std::move(settings).value();
  base::setLogLevel(state.settings.log);
  for (const std::string& warning : state.settings.warnings) base::logWarn("%s", warning.c_str());
  if (auto started = base::checkLocalStarted(state.settings); !started.ok()) {
    complain(started.error().message);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!state.settings.gpunodes.empty()) {
    forward::countLinks([]() -> status::LinksCounters& { return pager::counters().links; });
    if (state.settings.view == base::ViewSetting::kUnified) {
      unified::configure(state.settings,
                         []() -> status::UnifiedCounters& { return pager::counters().unified; });
    } else {
      forward::configureSessions(state.settings);
    }
    g_forwarded.store(true, std::memory_order_release);
    return CUDA_ERROR_NO_DEVICE;
  }
  Result<LoadedDriver> loaded = loadDriver(state.settings.driver);
  if (!loaded.ok()) {
    complain(loaded.error().message);
    return CUDA_ERROR_NO_DEVICE;
  }
  state.driver = std::move(loaded).value();
  api::loadDriverTable(detail::g_driver, resolveInDriver, state.driver.handle);
  // A broken or foreign library: what the functions of ours call without asking has to be there.
  if (driver().cuInit == nullptr || driver().cuCtxGetCurrent == nullptr ||
      driver().cuDriverGetVersion == nullptr) {
    complain(
        state.driver.path +
        " lacks functions that every CUDA driver has; set OL_DRIVER to the driver's libcuda.so.1");
    return CUDA_ERROR_NO_DEVICE;
  }
  holdSignalsIn(detail::g_driver);
  pthread_atfork(nullptr, nullptr, childAfterFork);
  // Refused for memory that is backed by a file; the handler above then does it for every fork()
  // that libc makes.
  (void)madvise(&detail::g_gate, sizeof(detail::g_gate), MADV_WIPEONFORK);
  g_driver_ready.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult loadOnce(Root& state) {
  if (state.driver_tried)
    return g_driver_ready.load(std::memory_order_acquire) ? CUDA_SUCCESS : state.init_result;
  CUresult result = CUDA_ERROR_NO_DEVICE;
  try {
    result = loadUnderLock(state);
  } catch (const std::exception& error) {
    complain(std::string("the start failed: ") + error.what());
    result = CUDA_ERROR_INVALID_VALUE;
  }
  if (result != CUDA_SUCCESS) state.init_result = result;
  return result;
}

// A part of VRAM is known to be too little only where there is a device. "": it is enough on all of
// them.
std::string tooLittleVram(const base::Budget& budget) {
  int devices = 0;
  if (budget.percent == 0 || driver().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return "";
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    CUdevice device = 0;
    size_t total = 0;
    if (driver().cuDeviceGet(&device, ordinal) != CUDA_SUCCESS ||
        driver().cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS)
      continue;
    if (static_cast<double>(total) * budget.percent / 100 >= static_cast<double>(pager::kPageBytes))
      continue;
    return "OL_VRAM is below one page (" + base::formatSize(pager::kPageBytes) +
           "): " + base::exactBudget(budget) + " of the " + base::formatSize(total) +
           " of device " + std::to_string(ordinal);
  }
  return "";
}

// Under init_mutex, after the driver's own cuInit.
CUresult makePool(Root& state) {
  int version = 0;
  if (driver().cuDriverGetVersion(&version) != CUDA_SUCCESS || version < kOldestDriver ||
      driver().cuFuncGetParamInfo == nullptr || driver().cuKernelGetParamInfo == nullptr) {
    complain("the driver " + state.driver.path + " offers CUDA " + std::to_string(version / 1000) +
             "." + std::to_string(version % 1000 / 10) + "; 12.4 (driver 550) or newer is needed");
    return CUDA_ERROR_NO_DEVICE;
  }
  pager::DriverApi functions;
  const auto resolve = [](const char* name) -> void* {
    if (void* found = driverSymbol(name)) return found;
    // Drivers before CUDA 12.8 have the first version only; what differs does not concern us.
    return std::strcmp(name, "cuEventElapsedTime_v2") == 0 ? driverSymbol("cuEventElapsedTime")
                                                           : nullptr;
  };
  if (const char* missing = pager::loadDriverApi(functions, resolve)) {
    complain("the driver " + state.driver.path + " lacks " + missing +
             "; driver 550 or newer is needed");
    return CUDA_ERROR_NO_DEVICE;
  }
  if (const std::string problem = tooLittleVram(state.settings.vram); !problem.empty()) {
    complain(problem);
    return CUDA_ERROR_INVALID_VALUE;
  }
  pager::PoolOptions options = optionsFrom(state.settings);
  auto remote = lowerTierFrom(state.settings);
  if (!remote.ok()) {
    complain(remote.error().message);
    return CUDA_ERROR_INVALID_VALUE;
  }
  options.lower = std::move(remote).value();
  if (options.require_direct) {
    if (const std::string why = whyNotDirect(functions, *options.lower); !why.empty()) {
      complain(pager::requireDirectError(why));
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  Result<std::unique_ptr<pager::Pool>> made = pager::Pool::create(options, functions);
  if (!made.ok()) {
    complain(made.error().message);
    return CUDA_ERROR_INVALID_VALUE;
  }
  pager::Pool* ready = std::move(made).value().release();
  (void)pager::counters();
  g_made.store(ready, std::memory_order_release);
  detail::g_gate.running.store(new Runtime{&detail::g_driver, ready}, std::memory_order_release);
  std::atexit(atExit);
  base::logInfo("local mode: driver %s (CUDA %d.%d), range 0x%llx-0x%llx, reach %s, report %s",
                state.driver.path.c_str(), version / 1000, version % 1000 / 10,
                static_cast<unsigned long long>(ready->base()),
                static_cast<unsigned long long>(ready->end()),
                base::wordOf(base::kReachWords, state.settings.reach),
                base::wordOf(base::kReportWords, state.settings.report));
  return CUDA_SUCCESS;
}

}  // namespace

const Runtime& localRuntime() noexcept {
  const Runtime* running = detail::g_gate.running.load(std::memory_order_acquire);
  return running != nullptr ? *running : detail::g_without_pool;
}

bool ensureDriver() {
  if (g_driver_ready.load(std::memory_order_acquire)) return true;
  if (forwarded()) return false;
  Root& state = root();
  std::lock_guard lock(state.init_mutex);
  return loadOnce(state) == CUDA_SUCCESS;
}

bool forwarded() { return g_forwarded.load(std::memory_order_acquire); }

bool inForkedChild() {
  return g_forked.load(std::memory_order_acquire) ||
         (g_made.load() != nullptr && pool() == nullptr);
}

CUresult initialize(unsigned int flags) {
  if (pool() != nullptr) return driver().cuInit(flags);
  // The parent's lock may be held by a thread that the child does not have.
  if (inForkedChild()) return driver().cuInit(flags);
  Root& state = root();
  std::lock_guard lock(state.init_mutex);
  const CUresult loaded = loadOnce(state);
  if (loaded != CUDA_SUCCESS) return loaded;
  if (state.initialized && state.init_result != CUDA_SUCCESS) return state.init_result;
  const CUresult native = driver().cuInit(flags);
  if (native != CUDA_SUCCESS || state.initialized) return native;
  state.initialized = true;
  try {
    state.init_result = makePool(state);
  } catch (const std::exception& error) {
    complain(std::string("the start failed: ") + error.what());
    state.init_result = CUDA_ERROR_INVALID_VALUE;
  }
  return state.init_result;
}

base::Budget vramSetting() { return root().settings.vram; }

uint64_t lenders() {
  std::vector<std::string> names = root().settings.memservers;
  if (names.empty()) return 0;
  std::sort(names.begin(), names.end());
  std::string all;
  for (const std::string& name : names) {
    // A name for use within one machine (loopback, unix:) means another memserver on each machine.
    const bool is_here = name.starts_with("127.") || name.starts_with("localhost:") ||
                         name.starts_with("[::1]") || name.starts_with("unix:");
    all += (is_here ? transport::bootId() : "") + name + '\n';
  }
  calls::Digest digest;
  if (!calls::digestOf(std::as_bytes(std::span(all)), digest)) return 0;
  uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof number);
  return number;
}

bool managedIsPagers() { return root().settings.managed == base::ManagedSetting::kPager; }

bool exportableIsDrivers() { return root().settings.exportable != base::ExportableSetting::kPager; }

void* driverSymbol(const char* symbol) {
  // The handle is written before g_driver_ready and never again.
  return g_driver_ready.load(std::memory_order_acquire) ? dlsym(root().driver.handle, symbol)
                                                        : nullptr;
}

}  // namespace olpager::local
