#include "interpose/local/pinned_users.h"

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/hook.h"
#include "interpose/local/ipc_exports.h"
#include "interpose/local/memory_pools.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

// What an object pins. The allocation may be freed before the object is destroyed, and its address given out again.
struct Pin {
  CUdeviceptr address;
  uint64_t buffer_id;
};

struct PinnedUsers {
  std::mutex mutex;
  std::set<CUdeviceptr> for_life;  // bases
  std::map<unsigned long long, std::vector<Pin>> objects;
};

PinnedUsers& state() {
  static auto* instance = new PinnedUsers;
  return *instance;
}

// The address that a texture or surface reads directly, 0 when it lies in an array.
CUdeviceptr linearMemory(const CUDA_RESOURCE_DESC* resource) {
  if (resource == nullptr) return 0;
  if (resource->resType == CU_RESOURCE_TYPE_LINEAR) return resource->res.linear.devPtr;
  if (resource->resType == CU_RESOURCE_TYPE_PITCH2D) return resource->res.pitch2D.devPtr;
  return 0;
}

}  // namespace

CUresult pinForLife(CUdeviceptr address) {
  pager::Pool* running = pool();
  pager::AllocationInfo info;
  if (running == nullptr || !running->describe(address, &info)) return CUDA_ERROR_INVALID_VALUE;
  {
    std::lock_guard lock(state().mutex);
    if (!state().for_life.insert(info.base).second) return CUDA_SUCCESS;
  }
  RelaxedCapture relaxed;
  const CUresult result = running->pin(info.base);
  if (result != CUDA_SUCCESS) {
    std::lock_guard lock(state().mutex);
    state().for_life.erase(info.base);
  }
  return result;
}

void forgetPointerState(CUdeviceptr base) {
  ipcExportGone(base);
  pager::Pool* running = pool();
  pager::AllocationInfo info;
  const bool known = running != nullptr && running->describe(base, &info);
  std::vector<CUdeviceptr> pinned;
  {
    std::lock_guard lock(state().mutex);
    if (state().for_life.erase(base) != 0) pinned.push_back(base);
    for (auto& [object, pins] : state().objects) {
      std::erase_if(pins, [&](const Pin& pin) {
        if (!known || pin.buffer_id != info.buffer_id) return false;
        pinned.push_back(pin.address);
        return true;
      });
    }
  }
  forgetFromPool(base);
  for (const CUdeviceptr address : pinned)
    if (running != nullptr) (void)running->unpin(address);
}

void pinForObject(unsigned long long object, CUdeviceptr address) {
  pager::Pool* running = pool();
  pager::AllocationInfo info;
  if (running == nullptr || !running->describe(address, &info)) return;
  std::lock_guard lock(state().mutex);
  state().objects[object].push_back({address, info.buffer_id});
}

void objectGone(unsigned long long object) {
  std::vector<Pin> pinned;
  {
    std::lock_guard lock(state().mutex);
    const auto found = state().objects.find(object);
    if (found == state().objects.end()) return;
    pinned = std::move(found->second);
    state().objects.erase(found);
  }
  pager::Pool* running = pool();
  for (const Pin& pin : pinned) {
    pager::AllocationInfo info;
    if (running != nullptr && running->describe(pin.address, &info) && info.buffer_id == pin.buffer_id)
      (void)running->unpin(pin.address);
  }
}

namespace {

// Textures and surfaces take numbers of one space each; they are told apart by the lowest bit.
constexpr unsigned long long textureKey(CUtexObject object) { return object * 2; }
constexpr unsigned long long surfaceKey(CUsurfObject object) { return object * 2 + 1; }

// Pins before the driver sees the address; the object's number is known after.
template <typename Create>
CUresult createPinned(const CUDA_RESOURCE_DESC* resource, Create create, unsigned long long* key) {
  pager::Pool* running = pool();
  const CUdeviceptr address = linearMemory(resource);
  if (running == nullptr || !running->contains(address)) return create(key);
  RelaxedCapture relaxed;
  const CUresult pinned = running->pin(address);
  if (pinned != CUDA_SUCCESS) return pinned;
  const CUresult result = create(key);
  if (result != CUDA_SUCCESS) {
    (void)running->unpin(address);
    return result;
  }
  pinForObject(*key, address);
  return result;
}

// A texture reference keeps its memory until it is bound anew: there is no call that ends it.
template <typename Native>
CUresult bindPinned(CUtexref reference, CUdeviceptr address, Native native) {
  pager::Pool* running = pool();
  if (running == nullptr) return native();
  const unsigned long long key = ~reinterpret_cast<unsigned long long>(reference);
  RelaxedCapture relaxed;
  if (running->contains(address)) {
    const CUresult pinned = running->pin(address);
    if (pinned != CUDA_SUCCESS) return pinned;
  }
  const CUresult result = native();
  if (result == CUDA_SUCCESS) objectGone(key);
  if (!running->contains(address)) return result;
  if (result == CUDA_SUCCESS) {
    pinForObject(key, address);
  } else {
    (void)running->unpin(address);
  }
  return result;
}

}  // namespace
}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C functions

OLPAGER_HOOK(cuTexObjectCreate)
(CUtexObject* out, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* texture,
 const CUDA_RESOURCE_VIEW_DESC* view) {
  unsigned long long key = 0;
  return createPinned(
      resource,
      [&](unsigned long long* made) {
        const CUresult result = driver().cuTexObjectCreate(out, resource, texture, view);
        if (result == CUDA_SUCCESS) *made = textureKey(*out);
        return result;
      },
      &key);
}

OLPAGER_HOOK(cuTexObjectDestroy)(CUtexObject object) {
  const CUresult result = driver().cuTexObjectDestroy(object);
  if (result == CUDA_SUCCESS) objectGone(textureKey(object));
  return result;
}

OLPAGER_HOOK(cuSurfObjectCreate)(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  unsigned long long key = 0;
  return createPinned(
      resource,
      [&](unsigned long long* made) {
        const CUresult result = driver().cuSurfObjectCreate(out, resource);
        if (result == CUDA_SUCCESS) *made = surfaceKey(*out);
        return result;
      },
      &key);
}

OLPAGER_HOOK(cuSurfObjectDestroy)(CUsurfObject object) {
  const CUresult result = driver().cuSurfObjectDestroy(object);
  if (result == CUDA_SUCCESS) objectGone(surfaceKey(object));
  return result;
}

OLPAGER_HOOK(cuTexRefSetAddress_v2)(size_t* offset, CUtexref reference, CUdeviceptr address, size_t bytes) {
  return bindPinned(reference, address,
                    [&] { return driver().cuTexRefSetAddress_v2(offset, reference, address, bytes); });
}

OLPAGER_HOOK(cuTexRefSetAddress2D_v3)
(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* descriptor, CUdeviceptr address, size_t pitch) {
  return bindPinned(reference, address,
                    [&] { return driver().cuTexRefSetAddress2D_v3(reference, descriptor, address, pitch); });
}

OLPAGER_HOOK(cuTexRefSetAddress2D_v2)
(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* descriptor, CUdeviceptr address, size_t pitch) {
  return bindPinned(reference, address,
                    [&] { return driver().cuTexRefSetAddress2D_v2(reference, descriptor, address, pitch); });
}
