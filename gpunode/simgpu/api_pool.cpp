#include "gpunode/simgpu/api.h"

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/graphs/graph.h"
#include "gpunode/simgpu/mem_pool.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

CUresult find(CUmemoryPool handle, std::shared_ptr<MemPool>* out) {
  if (const CUresult result = requireInit()) return result;
  *out = Driver::get().pools.find(handle);
  return *out != nullptr && !(*out)->retired() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult deviceOf(CUdevice ordinal, Device** out) {
  if (const CUresult result = requireInit()) return result;
  *out = Driver::get().device(ordinal);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult allocate(CUdeviceptr* out, size_t bytes, CUmemoryPool pool_handle, bool from_pool,
                  CUstream stream_handle, bool per_thread) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireOwnStream(stream_handle, per_thread, &context, &stream))
    return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<MemPool> pool;
  if (from_pool) {
    if (const CUresult result = find(pool_handle, &pool)) return result;
  } else {
    pool = MemPool::currentOf(context->device());
  }
  if (bytes == 0) {
    *out = 0;
    return CUDA_SUCCESS;
  }
  if (stream->inCapture()) {
    AllocNode node;
    node.params.poolProps = pool->properties;
    node.params.bytesize = bytes;
    CUgraphNode made = nullptr;
    if (const CUresult result =
            captureNode(*stream, {CU_GRAPH_NODE_TYPE_MEM_ALLOC, context->handle(), node}, &made))
      return result;
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    const CUresult result = cuGraphMemAllocNodeGetParams(made, &params);
    *out = params.dptr;
    return result;
  }
  if (const CUresult result = unsafeInCapture()) return result;
  return pool->allocate(*context, *stream, bytes, out);
}

CUresult release(CUdeviceptr address, CUstream stream_handle, bool per_thread) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireOwnStream(stream_handle, per_thread, &context, &stream))
    return result;
  if (address == 0) return CUDA_SUCCESS;
  if (stream->inCapture()) {
    if (!GraphMemory::isAt(address)) return CUDA_ERROR_INVALID_VALUE;
    return captureNode(*stream,
                       {CU_GRAPH_NODE_TYPE_MEM_FREE, context->handle(), FreeNode{address}});
  }
  if (const CUresult result = unsafeInCapture()) return result;
  const auto allocation = Driver::get().memory.find(address);
  if (allocation == nullptr || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->kind == AllocationKind::kPool) {
    const auto pool = Driver::get().pools.find(allocation->pool);
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return pool->free(*context, *stream, address);
  }
  if (allocation->kind != AllocationKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<GraphMemory> owner;
  switch (GraphMemory::free(address, &owner)) {
    case GraphMemory::Found::kIdle:
      return CUDA_ERROR_INVALID_VALUE;
    case GraphMemory::Found::kFreed:
      context->submit(*stream,
                      makeOp("stream-ordered free", [owner](Context&) { return CUDA_SUCCESS; }));
      return CUDA_SUCCESS;
    case GraphMemory::Found::kLeft:
    case GraphMemory::Found::kOther:
      break;
  }
  // Memory of cuMemAlloc may be freed in stream order too: when the stream gets there.
  context->submit(*stream, makeOp("stream-ordered free", [address](Context&) {
    return Driver::get().memory.free(address, AllocationKind::kDevice);
  }));
  return CUDA_SUCCESS;
}

CUresult locationPool(CUmemLocation* location, CUmemAllocationType type, Device** device) {
  if (const CUresult result = requireInit()) return result;
  if (location == nullptr || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return deviceOf(location->id, device);
}

}  // namespace

OLSIM_STREAM_FUNCTION(cuMemAllocAsync, _ptsz, (CUdeviceptr * out, size_t bytes, CUstream stream),
                      return allocate(out, bytes, nullptr, false, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemAllocFromPoolAsync, _ptsz,
                      (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),
                      return allocate(out, bytes, pool, true, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemFreeAsync, _ptsz, (CUdeviceptr address, CUstream stream),
                      return release(address, stream, kPerThread);)

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice ordinal) {
  Device* device = nullptr;
  if (const CUresult result = deviceOf(ordinal, &device)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = MemPool::defaultOf(*device)->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* out, CUdevice ordinal) {
  Device* device = nullptr;
  if (const CUresult result = deviceOf(ordinal, &device)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = MemPool::currentOf(*device)->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  Device* device = nullptr;
  if (const CUresult result = deviceOf(ordinal, &device)) return result;
  std::shared_ptr<MemPool> pool;
  if (const CUresult result = find(handle, &pool)) return result;
  if (&pool->device() != device) return CUDA_ERROR_INVALID_VALUE;
  MemPool::setCurrent(*device, std::move(pool));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location,
                                        CUmemAllocationType type) {
  Device* device = nullptr;
  if (const CUresult result = locationPool(location, type, &device)) return result;
  return cuDeviceGetDefaultMemPool(out, device->handle());
}
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location,
                                 CUmemAllocationType type) {
  Device* device = nullptr;
  if (const CUresult result = locationPool(location, type, &device)) return result;
  return cuDeviceGetMemPool(out, device->handle());
}
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                 CUmemoryPool pool) {
  Device* device = nullptr;
  if (const CUresult result = locationPool(location, type, &device)) return result;
  return cuDeviceSetMemPool(device->handle(), pool);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr || properties == nullptr ||
      properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return notSupported("cuMemPoolCreate with an exportable pool");
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return notSupported("cuMemPoolCreate for host memory");
  Device* device = nullptr;
  if (deviceOf(properties->location.id, &device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t handle = newHandleValue(HandleKind::kMemPool);
  *out = reinterpret_cast<CUmemoryPool>(handle);
  Driver::get().pools.set(handle, std::make_shared<MemPool>(*device, *out, *properties));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
  std::shared_ptr<MemPool> pool;
  if (const CUresult result = find(handle, &pool)) return result;
  if (MemPool::defaultOf(pool->device()) == pool) return CUDA_ERROR_INVALID_VALUE;
  if (MemPool::currentOf(pool->device()) == pool) MemPool::setCurrent(pool->device(), nullptr);
  // The pool's memory goes when its last allocation is given back: allocations name the pool by
  // handle until then.
  pool->retire();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  std::shared_ptr<MemPool> pool;
  if (const CUresult result = find(handle, &pool)) return result;
  pool->trim(keep);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
  std::shared_ptr<MemPool> pool;
  if (const CUresult result = find(handle, &pool)) return result;
  return value != nullptr ? pool->attribute(attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                       void* value) {
  std::shared_ptr<MemPool> pool;
  if (const CUresult result = find(handle, &pool)) return result;
  return value != nullptr ? pool->setAttribute(attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* descriptors,
                                    size_t count) {
  std::shared_ptr<MemPool> pool;
  if (const CUresult result = find(handle, &pool)) return result;
  if (descriptors == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (descriptors[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = pool->setAccess(descriptors[i].location.id, descriptors[i].flags))
      return result;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                    CUmemLocation* location) {
  std::shared_ptr<MemPool> pool;
  if (const CUresult result = find(handle, &pool)) return result;
  if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (Driver::get().device(location->id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *flags = pool->access(location->id);
  return CUDA_SUCCESS;
}
