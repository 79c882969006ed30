// Device resources and green contexts. Granularities are those of hardware's compute capabilities.
#include "gpunode/simgpu/api.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/event.h"
#include "gpunode/simgpu/green.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace olpager::simgpu {

HandleTable<ResourceDesc>& resourceDescs() {
  static auto* const all = new HandleTable<ResourceDesc>(HandleKind::kResourceDesc);
  return *all;
}
HandleTable<GreenContext>& greenContexts() {
  static auto* const all = new HandleTable<GreenContext>(HandleKind::kGreenContext);
  return *all;
}

}  // namespace olpager::simgpu

namespace {

constexpr uint64_t kShareMagic = 0x7365'7268'736d'736cull;
constexpr unsigned kMostGroups = 1024;

struct Granularity {
  unsigned least;
  unsigned alignment;
};

Granularity granularityOf(unsigned flags) {
  const int capability = Driver::get().settings.capability;
  if (capability >= 90 && (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) == 0)
    return {8, 8};
  if (capability >= 80 && capability < 90) return {4, 2};
  return {2, 2};
}

CUdevResource resourceOf(const SmShare& share) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  std::memcpy(resource._internal_padding, &share, sizeof share);
  const Granularity granularity = granularityOf(0);
  resource.sm = {share.count, granularity.least, granularity.alignment};
  return resource;
}

CUresult shareOf(const CUdevResource& resource, SmShare* share) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  std::memcpy(share, resource._internal_padding, sizeof *share);
  const bool ours = share->magic == kShareMagic && Driver::get().device(share->device) != nullptr;
  return ours && share->count == resource.sm.smCount ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult wholeOf(const Device& device, CUdevResource* out, CUdevResourceType type) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  int count = 0;
  if (const CUresult result = device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &count))
    return result;
  *out = resourceOf({kShareMagic, device.ordinal, 0, static_cast<uint32_t>(count), 0, 0});
  return CUDA_SUCCESS;
}

CUresult find(CUgreenCtx handle, std::shared_ptr<GreenContext>* out) {
  if (const CUresult result = requireInit()) return result;
  *out = greenContexts().find(handle);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* out,
                                        CUdevResourceType type) {
  if (const CUresult result = requireInit()) return result;
  const Device* const device = Driver::get().device(ordinal);
  return device != nullptr ? wholeOf(*device, out, type) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuCtxGetDevResource(CUcontext handle, CUdevResource* out, CUdevResourceType type) {
  if (const CUresult result = requireInit()) return result;
  const auto context = handle != nullptr ? Driver::get().contexts.find(handle) : currentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->green != nullptr) return cuGreenCtxGetDevResource(context->green, out, type);
  return wholeOf(context->device(), out, type);
}

CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* out,
                                          CUdevResourceType type) {
  std::shared_ptr<GreenContext> green;
  if (const CUresult result = find(handle, &green)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *out = resourceOf(green->share);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups,
                                             const CUdevResource* input, CUdevResource* remaining,
                                             unsigned flags, unsigned least) {
  if (const CUresult ready = requireInit()) return ready;
  constexpr unsigned kFlags = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                              CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
  if (groups == nullptr || input == nullptr || (flags & ~kFlags) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  SmShare whole;
  if (const CUresult known = shareOf(*input, &whole)) return known;
  if (least > whole.count) return CUDA_ERROR_INVALID_VALUE;
  if (whole.split != 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const Granularity granularity = granularityOf(flags);
  const unsigned size = (std::max(least, granularity.least) + granularity.alignment - 1) /
                        granularity.alignment * granularity.alignment;
  const unsigned possible = whole.count / size;
  if (possible == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const unsigned made = result != nullptr ? std::min({*groups, possible, kMostGroups}) : possible;
  static std::atomic<uint64_t> splits{1};
  const uint64_t split = splits.fetch_add(1);
  for (unsigned i = 0; result != nullptr && i < made; ++i)
    result[i] = resourceOf({kShareMagic, whole.device, whole.first + i * size, size, 0, split});
  if (remaining != nullptr) {
    const unsigned left = whole.count - made * size;
    *remaining =
        left != 0
            ? resourceOf({kShareMagic, whole.device, whole.first + made * size, left, 0, split})
            : CUdevResource{};
  }
  *groups = made;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc* out, CUdevResource* resources,
                                           unsigned count) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<SmShare> all(count);
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult known = shareOf(resources[i], &all[i])) return known;
    if (i != 0 &&
        (all[i].device != all[0].device || all[i].split != all[0].split || all[0].split == 0))
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  }
  std::sort(all.begin(), all.end(),
            [](const SmShare& a, const SmShare& b) { return a.first < b.first; });
  for (unsigned i = 1; i < count; ++i)
    if (all[i].first < all[i - 1].first + all[i - 1].count)
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  auto desc = std::make_shared<ResourceDesc>();
  desc->share = all[0];
  for (unsigned i = 1; i < count; ++i) desc->share.count += all[i].count;
  desc->share.split = 0;  // a green context's resources can be split again
  *out = reinterpret_cast<CUdevResourceDesc>(resourceDescs().add(std::move(desc)));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc handle, CUdevice ordinal,
                                  unsigned flags) {
  if (const CUresult result = requireInit()) return result;
  Device* const device = Driver::get().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const auto desc = resourceDescs().find(handle);
  if (out == nullptr || desc == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  if (desc->share.device != device->ordinal) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext primary = nullptr;
  if (const CUresult result = cuDevicePrimaryCtxRetain(&primary, ordinal)) return result;
  auto green = std::make_shared<GreenContext>();
  green->share = desc->share;
  const uint64_t number = newHandleValue(HandleKind::kContext),
                 green_number = newHandleValue(HandleKind::kGreenContext);
  green->context =
      std::make_shared<Context>(*device, reinterpret_cast<CUcontext>(number), 0, 0, false);
  green->context->green = reinterpret_cast<CUgreenCtx>(green_number);
  green->context->activate();
  Driver::get().contexts.set(number, green->context);
  greenContexts().set(green_number, std::move(green));
  *out = reinterpret_cast<CUgreenCtx>(green_number);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle) {
  if (const CUresult result = requireInit()) return result;
  const auto green = greenContexts().remove(handle);
  if (green == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Driver::get().contexts.remove(green->context->handle());
  green->context->teardown();
  return cuDevicePrimaryCtxRelease(green->context->device().handle());
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  std::shared_ptr<GreenContext> green;
  if (const CUresult result = find(handle, &green)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = green->context->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  if (const CUresult result = requireInit()) return result;
  if (const auto current = currentContext(); handle == nullptr && current != nullptr)
    handle = current->green;
  std::shared_ptr<GreenContext> green;
  if (const CUresult result = find(handle, &green)) return result;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = green->context->id();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx handle, unsigned flags,
                                        int priority) {
  std::shared_ptr<GreenContext> green;
  if (const CUresult result = find(handle, &green)) return result;
  if (out == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *out = green->context->createStream(flags, std::clamp(priority, kGreatestPriority, 0))->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
  std::shared_ptr<GreenContext> green;
  if (const CUresult result = find(handle, &green)) return result;
  return cuCtxRecordEvent(green->context->handle(), event);
}

CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
  std::shared_ptr<GreenContext> green;
  if (const CUresult result = find(handle, &green)) return result;
  return cuCtxWaitEvent(green->context->handle(), event);
}
