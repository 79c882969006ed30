// Shared by the generated residency wrappers and the launches: residency before the driver's call,
// bookkeeping after.
#include "interpose/local/runtime.h"

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/foreign_maps.h"
#include "interpose/local/local_runtime.h"
#include "interpose/local/locks.h"
#include "interpose/local/lost_memory.h"
#include "interpose/local/root.h"
#include "pager/launch/external_operation.h"

namespace olpager::local {

namespace {

// Memory held for the one call of the driver that this thread is about to make, when the call's own
// access can't be: it would record on a capturing stream, or names addresses that are the driver's
// besides the pager's. A launch on several devices may have one of each.
struct Held {
  Held(pager::Pool& pool, const pager::StreamKey& key) : access(pool, key) {}
  pager::Access access;
  Held* next = nullptr;
};
// A plain pointer, so that launches read it without a guard.
__attribute__((tls_model("initial-exec"))) thread_local Held* t_held = nullptr;

// Streams on which nothing ever runs, one for each context: what was held for a captured call ends
// there.
struct HoldStreams {
  base::RankedMutex mutex{kHoldStreamsMutex};
  std::map<CUcontext, CUstream> streams;
};

HoldStreams& holdStreams() {
  static auto* instance = new HoldStreams;
  return *instance;
}

// Holds all that `access` names, on `key`.
CUresult hold(const pager::Access& access, const pager::StreamKey& key) {
  pager::ReachSet reach;
  access.collect(reach);
  auto held = std::make_unique<Held>(*pool(), key);
  held->access.addReach(reach);
  const CUresult result = held->access.acquire();
  if (result != CUDA_SUCCESS) return result;
  held->next = t_held;
  t_held = held.release();
  return result;
}

// The driver looks at the addresses of a copy when it is captured: they have to be mapped for that
// moment. That they can't be is no reason to refuse: the copy runs later.
void holdForCapture(const pager::Access& access, const pager::StreamKey& stream) {
  RelaxedCapture relaxed;
  const CUstream apart = holdStream(stream.context);
  if (apart != nullptr) (void)hold(access, {stream.context, apart, 0});
}

CUresult acquire(pager::Access& access, const pager::StreamKey& stream) {
  if (const CUresult lost = lostIn(stream.context); lost != CUDA_SUCCESS) return lost;
  CUresult result = access.acquire(true);
  if (result == CUDA_SUCCESS) [[likely]]
    return result;
  if (result == pager::kSuspended) return result;
  if (access.mustBeInParts()) return result;
  // Ranges that the driver maps are unknown to the pager; the rest of the operation is the pager's
  // all the same.
  if (anyForeignMap()) result = hold(access, stream);
  if (result == CUDA_ERROR_ECC_UNCORRECTABLE) memoryLostIn(stream.context);
  return result;
}

}  // namespace

CUstream holdStream(CUcontext context) {
  HoldStreams& all = holdStreams();
  {
    std::lock_guard lock(all.mutex);
    const auto found = all.streams.find(context);
    if (found != all.streams.end()) return found->second;
  }
  CUstream stream = nullptr;
  {
    const Within within(context);
    if (within.result() != CUDA_SUCCESS ||
        driver().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS)
      return nullptr;
  }
  std::lock_guard lock(all.mutex);
  return all.streams.emplace(context, stream).first->second;
}

// A kernel that names nothing may still follow pointers that lie in its module's variables: the
// pager is always asked. A captured operation does not run now: its memory joins the capture's
// reach and is made resident when the graph runs.
CUresult enterLaunch(pager::Access& access, const pager::StreamKey& stream) {
  if (stream.context == nullptr) return CUDA_SUCCESS;
  if (!anyCapture()) return acquire(access, stream);
  if (const uint64_t id = captureOf(stream)) {
    if (id == kInvalidatedCapture) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    captureAdd(id, access);
    return CUDA_SUCCESS;
  }
  RelaxedCapture relaxed;
  return acquire(access, stream);
}

namespace {

// Beyond this the pager does not look anyway, and drivers differ in what they take at once.
constexpr uint64_t kTakenAtOnce = 64 << 10;

// GPUs that read any host memory by themselves may do so later.
bool devicesReadPageable() {
  static const bool any = [] {
    int count = 0;
    if (driver().cuDeviceGetCount(&count) != CUDA_SUCCESS) return true;
    for (int device = 0; device < count; ++device) {
      int reads = 1;
      if (driver().cuDeviceGetAttribute(&reads, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                                        device) != CUDA_SUCCESS ||
          reads != 0)
        return true;
    }
    return false;
  }();
  return any;
}

}  // namespace

bool readableNow(const void* host, uint64_t bytes, HostRead read) noexcept {
  if (read == HostRead::kElsewhere || bytes > kTakenAtOnce) return false;
  unsigned type = 0;
  const CUresult known = driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                        reinterpret_cast<CUdeviceptr>(host));
  if (known == CUDA_SUCCESS) return type == CU_MEMORYTYPE_HOST && read == HostRead::kNow;
  return known == CUDA_ERROR_INVALID_VALUE && (read == HostRead::kNow || !devicesReadPageable());
}

bool waitsInDriver(uint64_t address, uint64_t bytes, bool source, bool sync) noexcept {
  if (bytes == 0) return false;
  unsigned type = 0;
  const CUresult known =
      driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  if (known == CUDA_SUCCESS) return type == CU_MEMORYTYPE_HOST && sync;
  return known == CUDA_ERROR_INVALID_VALUE && (sync || !source || bytes > kTakenAtOnce);
}

bool contextsEnded() noexcept { return anyLost(); }
CUresult endedIn(const pager::StreamKey& stream) noexcept { return lostIn(stream.context); }

bool runsNow(const pager::StreamKey& stream) { return !anyCapture() || captureOf(stream) == 0; }

CUresult enter(pager::Access& access, const pager::StreamKey& stream) {
  if (stream.context == nullptr) return CUDA_SUCCESS;
  if (!anyCapture()) return acquire(access, stream);
  if (const uint64_t id = captureOf(stream)) {
    if (id == kInvalidatedCapture) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    captureAdd(id, access);
    holdForCapture(access, stream);
    return CUDA_SUCCESS;
  }
  RelaxedCapture relaxed;
  return acquire(access, stream);
}

void leave(pager::Access& access, const pager::StreamKey& stream, CUresult result) {
  if (stream.context == nullptr) return;
  while (t_held != nullptr) {
    const std::unique_ptr<Held> held(std::exchange(t_held, t_held->next));
    held->access.submitted(result);
  }
  if (anyCapture() && captureOf(stream) != 0) return;
  access.submitted(result);
}

CUresult failed(const char* function, const std::exception& error) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    base::logError("%s is refused: the system gives no more memory", function);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (dynamic_cast<const std::system_error*>(&error) != nullptr) {
    base::logError("%s is refused: %s (no more threads? see ulimit -u and the cgroup's pids.max)",
                   function, error.what());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  base::logError("%s is refused: %s", function, error.what());
  return CUDA_ERROR_UNKNOWN;
}

CUstream holdStreamGone(CUcontext context) {
  HoldStreams& all = holdStreams();
  std::lock_guard lock(all.mutex);
  const auto taken = all.streams.extract(context);
  return taken.empty() ? nullptr : taken.mapped();
}

}  // namespace olpager::local
