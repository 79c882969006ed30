#include "gpunode/worker/driver_library.h"

#include <dlfcn.h>

namespace olpager::gpunode {
namespace {

void* resolveIn(void* handle, const char* name) { return dlsym(handle, name); }

}  // namespace

Status DriverLibrary::load(const std::string& path) {
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr)
    return Error{std::string("the worker can't load libolpager.so: ") + dlerror()};
  api::loadDriverTable(table_, resolveIn, library_);
  const CUresult result = table_.cuInit != nullptr ? table_.cuInit(0) : CUDA_ERROR_NOT_INITIALIZED;
  if (result != CUDA_SUCCESS)
    return Error{"the driver at the gpunode can't start (CUDA error " + std::to_string(result) +
                 "); the gpunode's log says why"};
  if (table_.cuDeviceGetCount(&devices_) != CUDA_SUCCESS || devices_ == 0)
    return Error{"the gpunode has no CUDA device"};
  const auto set_placed = reinterpret_cast<forward::SetPlaced>(symbol("olpager_set_placed"));
  if (set_placed != nullptr && set_placed(&placed_.base, &placed_.bytes) == CUDA_SUCCESS)
    placed_.allocateAt = reinterpret_cast<forward::AllocateAt>(symbol("olpager_allocate_at"));
  if (placed_.allocateAt == nullptr) placed_.bytes = 0;
  return {};
}

OlpagerRoom DriverLibrary::room() const {
  OlpagerRoom room{};
  const auto ask = reinterpret_cast<forward::RoomOf>(symbol("olpager_room"));
  if (ask != nullptr && ask(0, &room) == CUDA_SUCCESS) return room;
  // Without a pager the driver's memory is all that there is.
  size_t all = 0;
  if (table_.cuDeviceTotalMem_v2 == nullptr || table_.cuDeviceTotalMem_v2(&all, 0) != CUDA_SUCCESS)
    all = 0;
  return {.vram = all, .told = all, .all = all, .lent = 0, .told_lent = 0, .lenders = 0};
}

void* DriverLibrary::symbol(const char* name) const { return dlsym(library_, name); }

}  // namespace olpager::gpunode
