#include "interpose/local/pinned_users.h"

#include <map>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/hook.h"
#include "interpose/local/ipc_exports.h"
#include "interpose/local/locks.h"
#include "interpose/local/memory_pools.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

// A pin of an object's: Pool::pin.
struct Pin {
  CUdeviceptr address;
  uint64_t pinned;
};

// An allocation that is pinned as long as it lives. At its base another may lie by now: its context
// went, or a graph's memory.
struct ForLife {
  uint64_t buffer_id = 0;
  uint64_t pinned = 0;  // 0 while it is being pinned
};

struct PinnedUsers {
  base::RankedMutex mutex{kPinnedUsersMutex};
  std::map<CUdeviceptr, ForLife> for_life;  // by base
  std::map<unsigned long long, std::vector<Pin>> objects;
};

PinnedUsers& pinnedUsers() {
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
    std::lock_guard lock(pinnedUsers().mutex);
    ForLife& entry = pinnedUsers().for_life[info.base];
    if (entry.buffer_id == info.buffer_id) return CUDA_SUCCESS;
    entry = {info.buffer_id, 0};
  }
  RelaxedCapture relaxed;
  uint64_t pinned = 0;
  const CUresult result = running->pin(info.base, &pinned);
  std::lock_guard lock(pinnedUsers().mutex);
  const auto found = pinnedUsers().for_life.find(info.base);
  if (found == pinnedUsers().for_life.end() || found->second.buffer_id != info.buffer_id)
    return result;  // freed meanwhile
  if (result == CUDA_SUCCESS) {
    found->second.pinned = pinned;
  } else {
    pinnedUsers().for_life.erase(found);
  }
  return result;
}

void forgetPointerState(CUdeviceptr base) {
  ipcExportGone(base);
  uint64_t pinned = 0;
  {
    std::lock_guard lock(pinnedUsers().mutex);
    if (const auto found = pinnedUsers().for_life.find(base);
        found != pinnedUsers().for_life.end()) {
      pinned = found->second.pinned;
      pinnedUsers().for_life.erase(found);
    }
  }
  forgetFromPool(base);
  if (pager::Pool* running = pool(); running != nullptr && pinned != 0)
    (void)running->unpin(base, pinned);
}

void pinForObject(unsigned long long object, CUdeviceptr address, uint64_t pinned) {
  std::lock_guard lock(pinnedUsers().mutex);
  pinnedUsers().objects[object].push_back({address, pinned});
}

void objectGone(unsigned long long object) {
  std::vector<Pin> pinned;
  {
    std::lock_guard lock(pinnedUsers().mutex);
    const auto found = pinnedUsers().objects.find(object);
    if (found == pinnedUsers().objects.end()) return;
    pinned = std::move(found->second);
    pinnedUsers().objects.erase(found);
  }
  pager::Pool* running = pool();
  for (const Pin& pin : pinned)
    if (running != nullptr) (void)running->unpin(pin.address, pin.pinned);
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
  uint64_t pinned = 0;
  if (const CUresult there = running->pin(address, &pinned); there != CUDA_SUCCESS) return there;
  const CUresult result = create(key);
  if (result != CUDA_SUCCESS) {
    (void)running->unpin(address, pinned);
    return result;
  }
  pinForObject(*key, address, pinned);
  return result;
}

// A texture reference keeps its memory until it is bound anew: there is no call that ends it.
template <typename Native>
CUresult bindPinned(CUtexref reference, CUdeviceptr address, Native native) {
  pager::Pool* running = pool();
  if (running == nullptr) return native();
  const unsigned long long key = ~reinterpret_cast<unsigned long long>(reference);
  RelaxedCapture relaxed;
  uint64_t pinned = 0;
  if (running->contains(address)) {
    if (const CUresult there = running->pin(address, &pinned); there != CUDA_SUCCESS) return there;
  }
  const CUresult result = native();
  if (result == CUDA_SUCCESS) objectGone(key);
  if (!running->contains(address)) return result;
  if (result == CUDA_SUCCESS) {
    pinForObject(key, address, pinned);
  } else {
    (void)running->unpin(address, pinned);
  }
  return result;
}

}  // namespace
}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

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

OLPAGER_HOOK(cuTexRefSetAddress_v2)
(size_t* offset, CUtexref reference, CUdeviceptr address, size_t bytes) {
  return bindPinned(reference, address, [&] {
    return driver().cuTexRefSetAddress_v2(offset, reference, address, bytes);
  });
}

OLPAGER_HOOK(cuTexRefSetAddress2D_v3)
(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* descriptor, CUdeviceptr address, size_t pitch) {
  return bindPinned(reference, address, [&] {
    return driver().cuTexRefSetAddress2D_v3(reference, descriptor, address, pitch);
  });
}

OLPAGER_HOOK(cuTexRefSetAddress2D_v2)
(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR* descriptor, CUdeviceptr address, size_t pitch) {
  return bindPinned(reference, address, [&] {
    return driver().cuTexRefSetAddress2D_v2(reference, descriptor, address, pitch);
  });
}
