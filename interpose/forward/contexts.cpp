// The program's calls about contexts, and each thread's stack of current ones; session_contexts.h
// has the contexts themselves. Contexts are made and destroyed at the worker; what is current never
// leaves the client, but travels with each call.
#include "interpose/forward/contexts.h"

#include <memory>
#include <mutex>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/allocation_book.h"
#include "interpose/forward/answer_cache.h"
#include "interpose/forward/call.h"
#include "interpose/forward/couriers.h"
#include "interpose/forward/device_memory.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/per_thread.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/streams.h"
#include "interpose/forward/symbols.h"
#include "interpose/forward/variables.h"

namespace olpager::forward {
namespace {

// The calling thread's contexts, the current one last.
std::vector<uint64_t>& stack() {
  struct Tag;
  return PerThread<std::vector<uint64_t>, Tag>::get();
}

CUcontext handleOf(uint64_t number) { return reinterpret_cast<CUcontext>(number); }
uint64_t numberOf(CUcontext context) { return reinterpret_cast<uint64_t>(context); }

// The number of a device's primary context, which exists or not; 0: there is no such device.
uint64_t primaryOf(CUdevice device) {
  Session* session = nullptr;
  CUdevice at_worker = 0;
  return placeOf(device, &session, &at_worker) ? primaryHandle(session->handleSlot(), at_worker)
                                               : 0;
}

// Asks ahead, in one go, what every runtime asks of every device when it starts: a round trip in
// place of some hundred. Said as the generated encoders say it, so that these find the answers.
void askAhead(Session* session) {
  std::vector<std::unique_ptr<Call>> calls;
  const auto ask = [&](api::Symbol symbol, auto... values) {
    auto call = std::make_unique<Call>(symbol, session);
    call->needsNoContext();
    (call->value(values), ...);
    call->wants(call.get());
    if (call->begin(false) == CUDA_SUCCESS) calls.push_back(std::move(call));
  };
  for (CUdevice device = 0; device < session->executor().description().devices; ++device) {
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
  call.names(1);
  call.value(flags);
  call.devices(device);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  const auto made = call.takeHandle<uint64_t>();
  if (!isMarked(made)) call.reply().fail();
  if (!call.reply().ok()) return call.taken(result);
  call.session()->parts().contexts->made(made, device);
  stack().push_back(made);
  mapPinned(call.session(), made);
  *out = handleOf(made);
  return result;
}

void gone(uint64_t context) {
  if (const Session* const session = sessionOfHandle(context); session != nullptr)
    session->parts().contexts->gone(context);
}

void destroyed(uint64_t context) {
  if (!stack().empty() && stack().back() == context) stack().pop_back();
  gone(context);
}

// A green context is no context, but has one that stands for it: this can be current, and goes with
// it.
CUresult contextOfGreen(CUcontext* out, CUgreenCtx green) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t number = reinterpret_cast<uint64_t>(green);
  Call call(Operation::kGreenContext, Route().handle(green));
  call.names(1);
  call.handle(green);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  const auto made = call.takeHandle<uint64_t>();
  if (!isMarked(made)) call.reply().fail();
  if (!call.reply().ok()) return call.taken(result);
  if (!call.session()->parts().contexts->greenStandsFor(number, made))
    return CUDA_ERROR_INVALID_HANDLE;  // destroyed meanwhile
  mapPinned(call.session(), made);
  *out = handleOf(made);
  return result;
}

// Executors that have pages of the context's memory would look in vain for them once it has ended:
// so they hear first that the program has it no more. After all work, as the end itself waits for.
void dropMemoryOf(Session& session, uint64_t context) {
  if (session.group() == nullptr) return;
  (void)finishContext(session, context);
  session.parts().book->dropOf(context);
  session.group()->awaitReleased();
}

// A primary context that may have ended, with all that was made in it: nobody has retained it here,
// and no green context keeps it.
void endPrimaryIfGone(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  if (ol_forward_generated_cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
      active == 0)
    gone(primaryOf(device));
}

CUresult destroyGreen(CUgreenCtx green) {
  const uint64_t number = reinterpret_cast<uint64_t>(green);
  const Session* const session = Route().handle(green).session();
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  SessionContexts& all = *session->parts().contexts;
  SessionContexts::Green found;
  const bool known = all.green(number, &found);
  const auto [device, context] = found;
  // Nothing else keeps its device's primary context.
  const bool last = known && !all.isKept(device, primaryOf(device), number);
  if (context != 0) {
    contextGone(handleOf(context));
    variablesGone(context);
  }
  if (last) variablesGone(primaryOf(device));
  if (last) dropMemoryOf(*Route().handle(green).session(), primaryOf(device));
  Call call(Operation::kGreenDestroy, Route().handle(green));
  call.handle(green);
  call.forgetsAnswers();
  call.mayWait();   // for what is in its streams
  call.ofOurOwn();  // as in release()
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) return result;
  all.greenGone(number);
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
  // Destructors that libraries attached to it run first, as the driver does it.
  if (reset) contextGone(handleOf(context));
  const Session* const session = sessionOfHandle(context);
  const bool last =
      session == nullptr || session->parts().contexts->released(context, reset) || reset;
  if (last) variablesGone(context);
  if (last && session != nullptr) dropMemoryOf(*call.session(), context);
  const CUresult result = call.sync();
  if (result != CUDA_SUCCESS) return result;
  // Others may have retained it too: then it stays, with its memory.
  unsigned flags = 0;
  int active = 0;
  const bool stays = !last || (!reset && hasDeviceMemory(context) &&
                               ol_forward_generated_cuDevicePrimaryCtxGetState(
                                   device, &flags, &active) == CUDA_SUCCESS &&
                               active != 0);
  if (!stays) gone(context);
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
  return session->parts().contexts->newest();
}

std::vector<uint64_t> contextsOf(const Session& session) {
  return session.parts().contexts->alive();
}

uint64_t memoryOwner(uint64_t context) {
  const Session* const session = sessionOfHandle(context);
  if (session == nullptr || !session->parts().contexts->hasGreens()) return context;
  CUdevice device = 0;
  return session->parts().contexts->greenDeviceOf(context, &device) ? primaryOf(device) : context;
}

uint64_t memoryOwner(CUstream stream) {
  const uint64_t current = currentContext();
  const Session* const session = sessionOfHandle(reinterpret_cast<uint64_t>(stream));
  if (session == nullptr) return memoryOwner(current);  // a default stream
  if (const uint64_t only = session->parts().contexts->only(); only != 0) return only;
  CUcontext own = nullptr;
  if (ol_forward_generated_cuStreamGetCtx(stream, &own) != CUDA_SUCCESS)
    return memoryOwner(current);
  CUdevice device = 0;
  if (deviceOf(numberOf(own), &device)) return memoryOwner(numberOf(own));
  // The context stands for a green context, and the program has not asked for it.
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
  const Session* const session = sessionOfHandle(context);
  if (session == nullptr) return false;
  const uint64_t first = primaryHandle(session->handleSlot(), 0);
  if (context - first < static_cast<uint64_t>(session->executor().description().devices)) {
    *device = deviceOf(*session, static_cast<CUdevice>(context - first));
    return *device != CU_DEVICE_INVALID;
  }
  return session->parts().contexts->deviceOf(context, device);
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
  std::call_once(program().parts().connecting->asked_ahead, [&] {
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
  dropMemoryOf(*call.session(), numberOf(context));
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
  call.session()->answers().forgetOf(olpager::api::Symbol::kCuDevicePrimaryCtxGetState);
  const uint64_t retained = primaryOf(device);
  call.session()->parts().contexts->retained(retained);
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
  if (const Session* const session = Route().handle(*green).session(); session != nullptr)
    session->parts().contexts->greenMade(reinterpret_cast<uint64_t>(*green), device);
  return result;
}
CUresult ol_forward_cuGreenCtxDestroy(CUgreenCtx green) { return destroyGreen(green); }
CUresult ol_forward_cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  return contextOfGreen(context, green);
}

}  // extern "C"
