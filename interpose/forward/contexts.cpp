// Contexts as a client knows them: which there are, of which device, and each thread's stack of
// current ones. Contexts are made and destroyed at the worker; what is current never leaves the
// client, but travels with each call.
#include "interpose/forward/contexts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/couriers.h"
#include "interpose/forward/device_memory.h"
#include "interpose/forward/memory.h"
#include "interpose/forward/per_thread.h"
#include "interpose/forward/streams.h"
#include "interpose/forward/symbols.h"
#include "interpose/forward/variables.h"

namespace olpager::forward {
namespace {

struct Contexts {
  std::mutex mutex;
  std::map<uint64_t, CUdevice>
      device_of;  // made by the program; primary ones are known by their number
  // By slot, those that are known to be there, the newest last: where a call is to be made that is
  // not of the current context's session.
  std::array<std::vector<uint64_t>, kMostSessions> alive;
  std::map<uint64_t, unsigned> retained;  // primary ones: how often
  struct Green {
    CUdevice device = 0;
    uint64_t context = 0;  // that stands for it; 0: nobody has asked for it
  };
  std::map<uint64_t, Green> green;
  std::atomic<size_t> greens{0};  // in `green`; asked without the mutex

  void note(uint64_t context) {
    auto& all = alive[slotOf(context)];
    std::erase(all, context);
    all.push_back(context);
  }
  void forget(uint64_t context) { std::erase(alive[slotOf(context)], context); }
};
Contexts& contexts() {
  static auto* instance = new Contexts;
  return *instance;
}

// The calling thread's contexts, the current one last.
std::vector<uint64_t>& stack() {
  struct Tag;
  return PerThread<std::vector<uint64_t>, Tag>::get();
}

CUcontext handleOf(uint64_t number) { return reinterpret_cast<CUcontext>(number); }
uint64_t numberOf(CUcontext context) { return reinterpret_cast<uint64_t>(context); }

// Of a device's primary context, which exists or not; 0: there is no such device.
uint64_t primaryOf(CUdevice device) {
  Session* session = nullptr;
  CUdevice at_worker = 0;
  return placeOf(device, &session, &at_worker) ? primaryHandle(session->slot(), at_worker) : 0;
}

// What every runtime asks of every device when it starts, in one go: a round trip in place of some
// hundred. Said as the generated encoders say it, so that these find the answers.
void askAhead(Session* session) {
  std::vector<std::unique_ptr<Call>> calls;
  const auto ask = [&](api::Symbol symbol, auto... values) {
    auto call = std::make_unique<Call>(symbol, session);
    call->needsNoContext();
    (call->value(values), ...);
    call->wants(call.get());
    if (call->begin(false) == CUDA_SUCCESS) calls.push_back(std::move(call));
  };
  for (CUdevice device = 0; device < session->description().devices; ++device) {
    for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; ++attribute)
      ask(api::Symbol::kCuDeviceGetAttribute, static_cast<CUdevice_attribute>(attribute), device);
    ask(api::Symbol::kCuDeviceGetUuid, device);
    ask(api::Symbol::kCuDeviceGetUuid_v2, device);
    ask(api::Symbol::kCuDeviceGet, int{device});
  }
  ask(api::Symbol::kCuDeviceGetCount);
  ask(api::Symbol::kCuModuleGetLoadingMode);
  for (auto& call : calls) call->finishAhead();
}

CUresult create(CUcontext* out, unsigned flags, CUdevice device) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kContextCreate, Route().device(device));
  call.value(flags);
  call.devices(device);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  const auto made = call.reply().value<uint64_t>();
  {
    Contexts& all = contexts();
    std::lock_guard lock(all.mutex);
    all.device_of[made] = device;
    all.note(made);
  }
  stack().push_back(made);
  mapPinned(call.session(), made);
  *out = handleOf(made);
  return result;
}

void destroyed(uint64_t context) {
  {
    Contexts& all = contexts();
    std::lock_guard lock(all.mutex);
    all.device_of.erase(context);
    all.forget(context);
  }
  forgetStreamsIn(context);
  if (!stack().empty() && stack().back() == context) stack().pop_back();
  if (Session* const session = sessionOfHandle(context); session != nullptr)
    session->contextGone(context);
}

// A green context is no context, but has one that stands for it: this can be current, and goes with
// it.
CUresult contextOfGreen(CUcontext* out, CUgreenCtx green) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t number = reinterpret_cast<uint64_t>(green);
  Call call(Operation::kGreenContext, Route().handle(green));
  call.handle(green);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  const auto made = call.reply().value<uint64_t>();
  {
    Contexts& all = contexts();
    std::lock_guard lock(all.mutex);
    const auto found = all.green.find(number);
    if (found == all.green.end()) return CUDA_ERROR_INVALID_HANDLE;  // destroyed meanwhile
    found->second.context = made;
    all.device_of[made] = found->second.device;
  }
  mapPinned(call.session(), made);
  *out = handleOf(made);
  return result;
}

// Of a primary context, whose number stays.
void primaryEnded(uint64_t primary) {
  Session* const session = sessionOfHandle(primary);
  if (session == nullptr) return;
  session->contextGone(primary);
  forgetStreamsIn(primary);
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  all.forget(primary);
}

// A primary context that may have ended, with all that was made in it: nobody has retained it here,
// and no green context keeps it.
void endPrimaryIfGone(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  if (ol_forward_generated_cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
      active == 0)
    primaryEnded(primaryOf(device));
}

CUresult destroyGreen(CUgreenCtx green) {
  const uint64_t number = reinterpret_cast<uint64_t>(green);
  Contexts& all = contexts();
  uint64_t context = 0;
  CUdevice device = CU_DEVICE_INVALID;
  bool last = false;  // that keeps its device's primary context
  {
    std::lock_guard lock(all.mutex);
    if (const auto found = all.green.find(number); found != all.green.end()) {
      context = found->second.context;
      device = found->second.device;
      last = all.retained[primaryOf(device)] == 0 &&
             std::none_of(all.green.begin(), all.green.end(), [&](const auto& one) {
               return one.first != number && one.second.device == device;
             });
    }
  }
  if (context != 0) {
    contextGone(handleOf(context));
    variablesGone(context);
  }
  if (last) variablesGone(primaryOf(device));
  Call call(Operation::kGreenDestroy, Route().handle(green));
  call.handle(green);
  call.forgetsAnswers();
  call.mayWait();   // for what is in its streams
  call.ofOurOwn();  // as in release()
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) return result;
  {
    std::lock_guard lock(all.mutex);
    all.green.erase(number);
    all.greens.store(all.green.size());
  }
  if (context != 0) destroyed(context);
  if (last) endPrimaryIfGone(device);
  return result;
}

CUresult release(CUdevice device, bool reset, api::Symbol symbol) {
  const uint64_t context = primaryOf(device);
  Call call(symbol, Route().device(device));
  call.devices(device);
  call.needsNoContext();
  call.forgetsAnswers();
  call.mayWait();   // for what is in its streams
  call.ofOurOwn();  // what has failed in them is no reason to keep what is gone there
  // What libraries attached to it goes first, as the driver does it.
  if (reset) contextGone(handleOf(context));
  const bool last = [&] {
    Contexts& all = contexts();
    std::lock_guard lock(all.mutex);
    unsigned& count = all.retained[context];
    count -= count != 0 && !reset ? 1 : 0;
    return reset || count == 0;
  }();
  if (last) variablesGone(context);
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) return result;
  // Others may have retained it too: then it stays, with its memory.
  unsigned flags = 0;
  int active = 0;
  const bool stays = !last || (!reset && hasDeviceMemory(context) &&
                               ol_forward_generated_cuDevicePrimaryCtxGetState(
                                   device, &flags, &active) == CUDA_SUCCESS &&
                               active != 0);
  if (!stays) primaryEnded(context);
  return result;
}

}  // namespace

uint64_t currentContext() {
  const auto& all = stack();
  return all.empty() ? 0 : all.back();
}

uint64_t contextIn(const Session* session) {
  const uint64_t current = currentContext();
  if (session == nullptr || !severalSessions() || (current == 0 && !isCourier()) ||
      (current != 0 && slotOf(current) == session->slot()))
    return current;
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  const auto& alive = all.alive[session->slot()];
  return alive.empty() ? 0 : alive.back();
}

std::vector<uint64_t> contextsOf(const Session& session) {
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  return all.alive[session.slot()];
}

uint64_t memoryOwner(uint64_t context) {
  Contexts& all = contexts();
  if (all.greens.load(std::memory_order_relaxed) == 0) return context;
  std::lock_guard lock(all.mutex);
  for (const auto& [number, green] : all.green)
    if (green.context == context) return primaryOf(green.device);
  return context;
}

uint64_t memoryOwner(CUstream stream) {
  const uint64_t current = currentContext();
  const Session* const session = sessionOfHandle(reinterpret_cast<uint64_t>(stream));
  if (session == nullptr) return memoryOwner(current);  // a default stream
  {
    Contexts& all = contexts();
    std::lock_guard lock(all.mutex);
    const auto& alive = all.alive[session->slot()];
    if (alive.size() == 1 && all.green.empty()) return alive.back();
  }
  CUcontext own = nullptr;
  if (ol_forward_generated_cuStreamGetCtx(stream, &own) != CUDA_SUCCESS)
    return memoryOwner(current);
  CUdevice device = 0;
  if (deviceOf(numberOf(own), &device)) return memoryOwner(numberOf(own));
  // It stands for a green context, and the program has not asked for it.
  return ol_forward_generated_cuStreamGetDevice(stream, &device) == CUDA_SUCCESS ? primaryOf(device)
                                                                                 : numberOf(own);
}

WithContext::WithContext(uint64_t context) : pushed_(context != 0) {
  if (pushed_) stack().push_back(context);
}
WithContext::~WithContext() {
  if (pushed_) stack().pop_back();
}

bool deviceOf(uint64_t context, CUdevice* device) {
  if (const Session* const session = sessionOfHandle(context); session != nullptr) {
    const uint64_t first = primaryHandle(session->slot(), 0);
    if (context - first < static_cast<uint64_t>(session->description().devices)) {
      *device = deviceOf(*session, static_cast<CUdevice>(context - first));
      return *device != CU_DEVICE_INVALID;
    }
  }
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  const auto found = all.device_of.find(context);
  if (found == all.device_of.end()) return false;
  *device = found->second;
  return true;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (inForkedChild()) return CUDA_ERROR_NOT_INITIALIZED;
  const auto all = sessions();
  if (all.empty()) return CUDA_ERROR_NO_DEVICE;
  static std::once_flag asked;
  std::call_once(asked, [&] {
    for (Session* const session : all) askAhead(session);
  });
  for (Session* const session : all) session->setInitialized();
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuCtxGetCurrent(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const Session* session = existingSession(); session == nullptr || !session->initialized())
    return CUDA_ERROR_NOT_INITIALIZED;
  *context = handleOf(currentContext());
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuCtxSetCurrent(CUcontext context) {
  CUdevice device = 0;
  if (context != nullptr && !deviceOf(numberOf(context), &device))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack().empty()) stack().pop_back();
  if (context != nullptr) stack().push_back(numberOf(context));
  return CUDA_SUCCESS;
}

CUresult ol_forward_cuCtxPushCurrent_v2(CUcontext context) {
  CUdevice device = 0;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!deviceOf(numberOf(context), &device)) return CUDA_ERROR_INVALID_CONTEXT;
  stack().push_back(numberOf(context));
  return CUDA_SUCCESS;
}
CUresult ol_forward_cuCtxPushCurrent(CUcontext context) {
  return ol_forward_cuCtxPushCurrent_v2(context);
}

CUresult ol_forward_cuCtxPopCurrent_v2(CUcontext* context) {
  if (stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = handleOf(stack().back());
  stack().pop_back();
  return CUDA_SUCCESS;
}
CUresult ol_forward_cuCtxPopCurrent(CUcontext* context) {
  return ol_forward_cuCtxPopCurrent_v2(context);
}

CUresult ol_forward_cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t number = context != nullptr ? numberOf(context) : currentContext();
  return number != 0 && deviceOf(number, device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult ol_forward_cuCtxGetDevice(CUdevice* device) {
  return ol_forward_cuCtxGetDevice_v2(device, nullptr);
}

CUresult ol_forward_cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
  return create(context, flags, device);
}
CUresult ol_forward_cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return create(context, flags, device);
}
CUresult ol_forward_cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int count,
                                   unsigned flags, CUdevice device) {
  if (params != nullptr && count != 0)
    return refused("cuCtxCreate with an execution affinity", false);
  return create(context, flags, device);
}
CUresult ol_forward_cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags,
                                   CUdevice device) {
  if (params != nullptr && (params->numExecAffinityParams != 0 || params->cigParams != nullptr))
    return refused("cuCtxCreate with parameters", false);
  return create(context, flags, device);
}

CUresult ol_forward_cuCtxDestroy_v2(CUcontext context) {
  CUdevice device = 0;
  if (context == nullptr || !deviceOf(numberOf(context), &device))
    return CUDA_ERROR_INVALID_CONTEXT;
  contextGone(context);
  variablesGone(numberOf(context));
  Call call(olpager::api::Symbol::kCuCtxDestroy_v2, Route().handle(context));
  call.handle(context);
  call.forgetsAnswers();
  call.mayWait();   // for what is in its streams
  call.ofOurOwn();  // as in release()
  const CUresult result = call.sync();
  if (result == CUDA_SUCCESS) destroyed(numberOf(context));
  return result;
}
CUresult ol_forward_cuCtxDestroy(CUcontext context) { return ol_forward_cuCtxDestroy_v2(context); }

CUresult ol_forward_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kPrimaryRetain, Route().device(device));
  call.needsNoContext();
  call.devices(device);
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) return result;
  call.session()->forgetAnswersOf(olpager::api::Symbol::kCuDevicePrimaryCtxGetState);
  const uint64_t retained = primaryOf(device);
  {
    Contexts& all = contexts();
    std::lock_guard lock(all.mutex);
    all.note(retained);
    ++all.retained[retained];
  }
  mapPinned(call.session(), retained);
  *context = handleOf(retained);
  return result;
}

CUresult ol_forward_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release(device, false, olpager::api::Symbol::kCuDevicePrimaryCtxRelease_v2);
}
CUresult ol_forward_cuDevicePrimaryCtxRelease(CUdevice device) {
  return release(device, false, olpager::api::Symbol::kCuDevicePrimaryCtxRelease_v2);
}
CUresult ol_forward_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return release(device, true, olpager::api::Symbol::kCuDevicePrimaryCtxReset_v2);
}
CUresult ol_forward_cuDevicePrimaryCtxReset(CUdevice device) {
  return release(device, true, olpager::api::Symbol::kCuDevicePrimaryCtxReset_v2);
}

CUresult ol_forward_cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc description,
                                     CUdevice device, unsigned flags) {
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = ol_forward_generated_cuGreenCtxCreate(green, description, device, flags);
  if (result != CUDA_SUCCESS) return result;
  Contexts& all = contexts();
  std::lock_guard lock(all.mutex);
  all.green[reinterpret_cast<uint64_t>(*green)] = {device, 0};
  all.greens.store(all.green.size());
  return result;
}
CUresult ol_forward_cuGreenCtxDestroy(CUgreenCtx green) { return destroyGreen(green); }
CUresult ol_forward_cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  return contextOfGreen(context, green);
}

}  // extern "C"
