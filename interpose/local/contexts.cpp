// Contexts come and go: what the pager keeps for one goes with it, before the driver takes it away.
//
// A primary context is counted as the program retains and releases it: the pager has to go first,
// and the driver does not say beforehand whether a release is the last.
#include <algorithm>
#include <map>
#include <mutex>

#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/contexts.h"
#include "interpose/local/green_contexts.h"
#include "interpose/local/hook.h"
#include "interpose/local/host_memory.h"
#include "interpose/local/locks.h"
#include "interpose/local/lost_memory.h"
#include "interpose/local/memory_pools.h"
#include "interpose/local/modules.h"
#include "interpose/local/param_layout.h"
#include "interpose/local/relief.h"
#include "interpose/local/root.h"
#include "interpose/local/runtime.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

namespace {

struct PrimaryContexts {
  struct Entry {
    CUcontext context = nullptr;
    unsigned retained = 0;
    bool gone = false;  // reset, or released to the end, since it was last retained
  };
  olpager::base::RankedMutex mutex{kPrimaryContextsMutex};
  std::map<CUdevice, Entry> devices;
};

PrimaryContexts& primaries() {
  static auto* instance = new PrimaryContexts;
  return *instance;
}

void goes(CUcontext context) {
  olpager::pager::Pool* running = pool();
  if (running == nullptr || context == nullptr) return;
  modulesOfContextGone(context);
  static_cast<void>(holdStreamGone(context));  // goes with it
  running->contextGone(context);
  hostMemoryOfContextGone(context);
  forgetFromPools();
  lostContextGone(context);
  capturesOfContextGone(context);
  loansOfContextGone(context);
  invalidateParamLayouts();
  forgetContexts();
}

// The primary context that this release would end, or nullptr.
CUcontext endedByRelease(CUdevice device) {
  const bool held = greenContextsOf(device) != 0;
  PrimaryContexts& all = primaries();
  std::lock_guard lock(all.mutex);
  const auto found = all.devices.find(device);
  if (found == all.devices.end() || found->second.retained == 0) return nullptr;
  if (--found->second.retained != 0 || held) return nullptr;
  found->second.gone = true;
  return found->second.context;
}

// The driver refuses to destroy a primary context.
bool isPrimary(CUcontext context) {
  PrimaryContexts& all = primaries();
  std::lock_guard lock(all.mutex);
  return std::any_of(all.devices.begin(), all.devices.end(), [&](const auto& entry) {
    return entry.second.context == context && entry.second.retained != 0;
  });
}

CUresult created(const CUcontext* out, CUresult result) {
  if (result == CUDA_SUCCESS) noteContext(*out);
  return result;
}

CUcontext resetPrimary(CUdevice device) {
  PrimaryContexts& all = primaries();
  std::lock_guard lock(all.mutex);
  const auto found = all.devices.find(device);
  if (found == all.devices.end()) return nullptr;
  found->second.gone = true;
  return found->second.context;
}

}  // namespace

namespace olpager::local {

bool primaryIsGone(const Place& place) {
  {
    PrimaryContexts& all = primaries();
    std::lock_guard lock(all.mutex);
    const auto found = all.devices.find(place.device);
    if (found == all.devices.end() || !found->second.gone || found->second.context != place.context)
      return false;
  }
  // Somebody may have made it live again in a way that does not pass here.
  unsigned flags = 0;
  int active = 0;
  return driver().cuDevicePrimaryCtxGetState(place.device, &flags, &active) == CUDA_SUCCESS &&
         active == 0;
}

void primaryIsThere(CUdevice device, CUcontext primary) {
  PrimaryContexts& all = primaries();
  std::lock_guard lock(all.mutex);
  PrimaryContexts::Entry& entry = all.devices[device];
  entry.context = primary;
  entry.gone = false;
}

void primaryMayBeGone(CUdevice device) {
  if (greenContextsOf(device) != 0) return;
  CUcontext primary = nullptr;
  {
    PrimaryContexts& all = primaries();
    std::lock_guard lock(all.mutex);
    PrimaryContexts::Entry& entry = all.devices[device];  // there since primaryIsThere()
    if (entry.retained != 0 || entry.gone) return;
    entry.gone = true;
    primary = entry.context;
  }
  goes(primary);
}

CUcontext retainedPrimary(CUdevice device) {
  PrimaryContexts& all = primaries();
  std::lock_guard lock(all.mutex);
  const auto found = all.devices.find(device);
  return found != all.devices.end() && found->second.retained != 0 ? found->second.context
                                                                   : nullptr;
}

}  // namespace olpager::local

OLPAGER_HOOK(cuCtxCreate)(CUcontext* out, unsigned int flags, CUdevice device) {
  return created(out, driver().cuCtxCreate(out, flags, device));
}
OLPAGER_HOOK(cuCtxCreate_v2)(CUcontext* out, unsigned int flags, CUdevice device) {
  return created(out, driver().cuCtxCreate_v2(out, flags, device));
}
OLPAGER_HOOK(cuCtxCreate_v3)
(CUcontext* out, CUexecAffinityParam* affinities, int count, unsigned int flags, CUdevice device) {
  return created(out, driver().cuCtxCreate_v3(out, affinities, count, flags, device));
}
OLPAGER_HOOK(cuCtxCreate_v4)
(CUcontext* out, CUctxCreateParams* parameters, unsigned int flags, CUdevice device) {
  return created(out, driver().cuCtxCreate_v4(out, parameters, flags, device));
}

OLPAGER_HOOK(cuDevicePrimaryCtxRetain)(CUcontext* out, CUdevice device) {
  const CUresult result = driver().cuDevicePrimaryCtxRetain(out, device);
  if (result != CUDA_SUCCESS || pool() == nullptr) return result;
  noteContext(*out);
  PrimaryContexts& all = primaries();
  std::lock_guard lock(all.mutex);
  PrimaryContexts::Entry& entry = all.devices[device];
  entry.context = *out;
  ++entry.retained;
  entry.gone = false;
  return CUDA_SUCCESS;
}

OLPAGER_HOOK(cuDevicePrimaryCtxRelease_v2)(CUdevice device) {
  if (pool() != nullptr) goes(endedByRelease(device));
  return driver().cuDevicePrimaryCtxRelease_v2(device);
}

OLPAGER_HOOK(cuDevicePrimaryCtxRelease)(CUdevice device) {
  if (pool() != nullptr) goes(endedByRelease(device));
  return driver().cuDevicePrimaryCtxRelease(device);
}

// A reset takes away what is in the context; those who retained it still have it.
OLPAGER_HOOK(cuDevicePrimaryCtxReset_v2)(CUdevice device) {
  if (pool() != nullptr) goes(resetPrimary(device));
  return driver().cuDevicePrimaryCtxReset_v2(device);
}

OLPAGER_HOOK(cuDevicePrimaryCtxReset)(CUdevice device) {
  if (pool() != nullptr) goes(resetPrimary(device));
  return driver().cuDevicePrimaryCtxReset(device);
}

OLPAGER_HOOK(cuCtxDestroy_v2)(CUcontext context) {
  if (!isPrimary(context)) goes(context);
  return driver().cuCtxDestroy_v2(context);
}

OLPAGER_HOOK(cuCtxDestroy)(CUcontext context) {
  if (!isPrimary(context)) goes(context);
  return driver().cuCtxDestroy(context);
}

// Releases a use that cuCtxAttach or cuCtxCreate took. Attached contexts are counted by the driver
// alone: the context may live on, so the pager keeps what it has unless it is really gone.
OLPAGER_HOOK(cuCtxDetach)(CUcontext context) {
  const CUresult result = driver().cuCtxDetach(context);
  if (result != CUDA_SUCCESS || pool() == nullptr) return result;
  unsigned version = 0;
  if (driver().cuCtxGetApiVersion(context, &version) != CUDA_SUCCESS) goes(context);
  return result;
}

OLPAGER_HOOK(cuCtxEnablePeerAccess)(CUcontext peer, unsigned int flags) {
  const CUresult result = driver().cuCtxEnablePeerAccess(peer, flags);
  olpager::pager::Pool* running = pool();
  if (running == nullptr ||
      (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED))
    return result;
  Place place;
  CUdevice owner = 0;
  if (currentPlace(&place) != CUDA_SUCCESS || deviceOf(peer, &owner) != CUDA_SUCCESS) return result;
  const CUresult mapped = running->peerEnabled(place.device, owner);
  return mapped != CUDA_SUCCESS ? mapped : result;
}
