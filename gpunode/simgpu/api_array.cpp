// CUDA arrays, and texture and surface objects over them. Kernels with texture instructions are refused when their
// module is loaded; the objects exist so that programs which only make them, or copy through arrays, run.
#include "gpunode/simgpu/api.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "gpunode/simgpu/array.h"
#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {

uint64_t arrayElementBytes(CUarray_format format, unsigned channels) {
  if (channels != 1 && channels != 2 && channels != 4) return 0;
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2ull * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4ull * channels;
    default:
      return 0;
  }
}

}  // namespace olpager::simgpu

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this namespace's face

namespace {

constexpr unsigned kArrayFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                 CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT;

CUresult create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if (const CUresult result = unsafeInCapture()) return result;
  const uint64_t element = arrayElementBytes(descriptor.Format, descriptor.NumChannels);
  if (out == nullptr || descriptor.Width == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((descriptor.Flags & ~kArrayFlags) != 0) return notSupported("cuArray3DCreate with these flags");
  if (element == 0) return notSupported("cuArray3DCreate with this format");
  auto array = std::make_shared<Array>();
  array->descriptor = descriptor;
  array->element_bytes = element;
  array->pitch = descriptor.Width * element;
  array->rows = std::max<uint64_t>(descriptor.Height, 1);
  array->slices = std::max<uint64_t>(descriptor.Depth, 1);
  array->context = context->handle();
  if (const CUresult result = Driver::get().memory.allocate(*context, array->pitch * array->rows * array->slices,
                                                            AllocationKind::kArray, &array->base))
    return result;
  *out = reinterpret_cast<CUarray>(Driver::get().arrays.add(std::move(array)));
  return CUDA_SUCCESS;
}

CUDA_ARRAY3D_DESCRIPTOR general(const CUDA_ARRAY_DESCRIPTOR& flat) {
  CUDA_ARRAY3D_DESCRIPTOR out{};
  out.Width = flat.Width;
  out.Height = flat.Height;
  out.Format = flat.Format;
  out.NumChannels = flat.NumChannels;
  return out;
}

CUresult find(CUarray handle, const void* out, std::shared_ptr<Array>* array) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  *array = Driver::get().arrays.find(handle);
  if (*array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// What a texture or surface object was made from.
struct TextureObject {
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUDA_RESOURCE_VIEW_DESC view{};
};

HandleTable<TextureObject>& textures() {
  static auto* const table = new HandleTable<TextureObject>(HandleKind::kTexture);
  return *table;
}
HandleTable<TextureObject>& surfaces() {
  static auto* const table = new HandleTable<TextureObject>(HandleKind::kSurface);
  return *table;
}

CUresult checkResource(const CUDA_RESOURCE_DESC& resource) {
  CUdevice device = 0;
  if (const CUresult result = cuCtxGetDevice(&device)) return result;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      return Driver::get().arrays.find(resource.res.array.hArray) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_RESOURCE_TYPE_LINEAR:
      return arrayElementBytes(resource.res.linear.format, resource.res.linear.numChannels) != 0 &&
                     Driver::get().memory.known(resource.res.linear.devPtr) && resource.res.linear.devPtr % 512 == 0
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_PITCH2D:
      return arrayElementBytes(resource.res.pitch2D.format, resource.res.pitch2D.numChannels) != 0 &&
                     Driver::get().memory.known(resource.res.pitch2D.devPtr) &&
                     resource.res.pitch2D.pitchInBytes % 32 == 0
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    default:
      return notSupported("texture objects over mipmapped arrays");
  }
}

}  // namespace

CUresult CUDAAPI cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  return descriptor != nullptr ? create(out, general(*descriptor)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return descriptor != nullptr ? create(out, *descriptor) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
  std::shared_ptr<Array> array;
  if (const CUresult result = find(handle, out, &array)) return result;
  out->Width = array->descriptor.Width;
  out->Height = array->descriptor.Height;
  out->Format = array->descriptor.Format;
  out->NumChannels = array->descriptor.NumChannels;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  std::shared_ptr<Array> array;
  if (const CUresult result = find(handle, out, &array)) return result;
  *out = array->descriptor;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle, CUdevice) {
  std::shared_ptr<Array> array;
  if (const CUresult result = find(handle, out, &array)) return result;
  *out = {};
  out->size = array->pitch * array->rows * array->slices;
  out->alignment = 512;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  const auto array = Driver::get().arrays.remove(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  (void)context->synchronize();
  return Driver::get().memory.free(array->base, AllocationKind::kArray);
}

// --- texture and surface objects
// --------------------------------------------------------------------------------------

CUresult CUDAAPI cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                                   const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
  if (out == nullptr || resource == nullptr || texture == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = checkResource(*resource)) return result;
  auto object = std::make_shared<TextureObject>();
  object->resource = *resource;
  object->texture = *texture;
  if (view != nullptr) object->view = *view;
  *out = textures().add(std::move(object));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject object) {
  if (const CUresult result = requireInit()) return result;
  return textures().remove(object) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject object) {
  if (const CUresult result = requireInit()) return result;
  const auto found = textures().find(object);
  if (out == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = found->resource;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject object) {
  if (const CUresult result = requireInit()) return result;
  const auto found = textures().find(object);
  if (out == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = found->texture;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* out, CUtexObject object) {
  if (const CUresult result = requireInit()) return result;
  const auto found = textures().find(object);
  if (out == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = found->view;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  if (out == nullptr || resource == nullptr || resource->resType != CU_RESOURCE_TYPE_ARRAY)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = checkResource(*resource)) return result;
  auto object = std::make_shared<TextureObject>();
  object->resource = *resource;
  *out = surfaces().add(std::move(object));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject object) {
  if (const CUresult result = requireInit()) return result;
  return surfaces().remove(object) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject object) {
  if (const CUresult result = requireInit()) return result;
  const auto found = surfaces().find(object);
  if (out == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = found->resource;
  return CUDA_SUCCESS;
}
