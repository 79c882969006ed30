#include "interpose/local/context.h"

#include "interpose/local/green_contexts.h"

namespace olpager::local {

namespace {

// Thread-locals of the initial-exec model: found without a call. The few bytes fit the loader's
// reserve also when this library is opened at run time.
#define OLPAGER_THREAD __attribute__((tls_model("initial-exec"))) thread_local

struct RememberedDevice {
  CUcontext context = nullptr;
  CUdevice device = 0;
  uint64_t generation = 0;
};

OLPAGER_THREAD RememberedDevice t_device;
OLPAGER_THREAD uint64_t t_identity = 0;

std::atomic<uint64_t> g_generation{1};
std::atomic<uint64_t> g_last_identity{0};

// A program with one context, as nearly all are, needs no question about a stream's context.
std::atomic<CUcontext> g_first_context{nullptr};
std::atomic<bool> g_several_contexts{false};

bool isDefaultStream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

uint64_t threadIdentity() {
  if (t_identity == 0) t_identity = g_last_identity.fetch_add(1, std::memory_order_relaxed) + 1;
  return t_identity;
}

CUresult deviceOf(CUcontext context, CUdevice* device) {
  const uint64_t generation = g_generation.load(std::memory_order_acquire);
  RememberedDevice& remembered = t_device;
  if (remembered.context == context && remembered.generation == generation) {
    *device = remembered.device;
    return CUDA_SUCCESS;
  }
  CUdevice found = 0;
  const Within within(context);
  CUresult result = within.result();
  if (result == CUDA_SUCCESS) result = driver().cuCtxGetDevice(&found);
  if (result != CUDA_SUCCESS) return result;
  remembered = {context, found, generation};
  *device = found;
  return CUDA_SUCCESS;
}

CUresult currentPlace(Place* place) {
  place->context = memoryOwner(currentContext());
  if (place->context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return deviceOf(place->context, &place->device);
}

void noteContext(CUcontext context) {
  CUcontext first = g_first_context.load(std::memory_order_relaxed);
  if (first == context) return;
  if (first == nullptr &&
      g_first_context.compare_exchange_strong(first, context, std::memory_order_relaxed)) {
    return;
  }
  if (first != context) g_several_contexts.store(true, std::memory_order_relaxed);
}

void thereAreSeveralContexts() { g_several_contexts.store(true, std::memory_order_relaxed); }

CUcontext memoryContext() { return memoryOwner(currentContext()); }

void forgetContexts() { g_generation.fetch_add(1, std::memory_order_acq_rel); }

// The context is the stream's own where it can differ from the current one. A default stream
// without a context has none, and the driver refuses the call by itself.
pager::StreamKey streamKey(CUstream stream, bool per_thread_default) noexcept {
  pager::StreamKey key;
  key.context = currentContext();
  if (key.context != nullptr) noteContext(key.context);
  key.stream =
      stream != nullptr ? stream : (per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY);
  if (key.stream == CU_STREAM_PER_THREAD) {
    key.thread = threadIdentity();
  } else if (!isDefaultStream(stream) &&
             (key.context == nullptr || g_several_contexts.load(std::memory_order_relaxed))) {
    CUcontext own = nullptr;
    if (driver().cuStreamGetCtx(stream, &own) == CUDA_SUCCESS && own != nullptr) key.context = own;
  }
  return key;
}

}  // namespace olpager::local
