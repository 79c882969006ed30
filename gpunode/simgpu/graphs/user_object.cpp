#include "gpunode/simgpu/api.h"

#include "gpunode/simgpu/graphs/user_object.h"

#include <utility>
#include <vector>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/graphs/graph.h"

namespace olpager::simgpu {

void UserObject::retain(unsigned count) {
  const std::lock_guard lock(mutex_);
  references_ += count;
}

CUresult UserObject::release(unsigned count) {
  {
    const std::lock_guard lock(mutex_);
    if (count > references_) return CUDA_ERROR_INVALID_VALUE;
    references_ -= count;
    if (references_ != 0) return CUDA_SUCCESS;
  }
  const auto self =
      GraphRegistry::get().user_objects.remove(handle);  // keeps it until the destructor has run
  destroy_(pointer_);
  return CUDA_SUCCESS;
}

UserObjectReferences::~UserObjectReferences() {
  for (const auto& [object, count] : counts_) (void)object->release(count);
}

void UserObjectReferences::adopt(const std::shared_ptr<UserObject>& object, unsigned count) {
  const std::lock_guard lock(mutex_);
  counts_[object] += count;
}

CUresult UserObjectReferences::release(const std::shared_ptr<UserObject>& object, unsigned count) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = counts_.find(object);
    if (it == counts_.end() || it->second < count) return CUDA_ERROR_INVALID_VALUE;
    it->second -= count;
    if (it->second == 0) counts_.erase(it);
  }
  return object->release(count);
}

void UserObjectReferences::retainAll(const UserObjectReferences& other) {
  std::vector<std::shared_ptr<UserObject>> objects;
  {
    const std::lock_guard lock(other.mutex_);
    for (const auto& [object, count] : other.counts_) objects.push_back(object);
  }
  for (const auto& object : objects) {
    object->retain(1);
    adopt(object, 1);
  }
}

}  // namespace olpager::simgpu

using namespace olpager::simgpu;

extern "C" {

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* out, void* pointer, CUhostFn destroy,
                                    unsigned references, unsigned flags) {
  if (out == nullptr || destroy == nullptr || references == 0 || references > INT32_MAX ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  auto object = std::make_shared<UserObject>(pointer, destroy, references);
  object->handle = reinterpret_cast<CUuserObject>(GraphRegistry::get().user_objects.add(object));
  *out = object->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject handle, unsigned count) {
  if (count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  const auto object = GraphRegistry::get().user_objects.find(handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  object->retain(count);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject handle, unsigned count) {
  if (count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  const auto object = GraphRegistry::get().user_objects.find(handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return object->release(count);
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                         unsigned flags) {
  if (count == 0 || count > INT32_MAX || flags > CU_GRAPH_USER_OBJECT_MOVE)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  const auto graph = GraphRegistry::get().graphs.find(graph_handle);
  const auto object = GraphRegistry::get().user_objects.find(handle);
  if (graph == nullptr || object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) object->retain(count);
  graph->userObjects().adopt(object, count);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle,
                                          unsigned count) {
  if (count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  const auto graph = GraphRegistry::get().graphs.find(graph_handle);
  const auto object = GraphRegistry::get().user_objects.find(handle);
  if (graph == nullptr || object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return graph->userObjects().release(object, count);
}

}  // extern "C"
