// CUDA arrays: memory that only copies, textures and surfaces see.
#include "gpunode/simgpu/api.h"

#include <algorithm>

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

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

constexpr unsigned kArrayFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
                                 CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
                                 CUDA_ARRAY3D_COLOR_ATTACHMENT;

CUresult create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  if (const CUresult result = unsafeInCapture()) return result;
  const uint64_t element = arrayElementBytes(descriptor.Format, descriptor.NumChannels);
  if (out == nullptr || descriptor.Width == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((descriptor.Flags & ~kArrayFlags) != 0)
    return notSupported("cuArray3DCreate with these flags");
  if (element == 0) return notSupported("cuArray3DCreate with this format");
  const bool layered = (descriptor.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  const bool cube = (descriptor.Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
  if (descriptor.Depth != 0 && descriptor.Height == 0 && !layered) return CUDA_ERROR_INVALID_VALUE;
  if (layered && descriptor.Depth == 0) return CUDA_ERROR_INVALID_VALUE;
  if (cube && (descriptor.Width != descriptor.Height || descriptor.Depth == 0 ||
               descriptor.Depth % 6 != 0 || (!layered && descriptor.Depth != 6))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto array = std::make_shared<Array>();
  array->descriptor = descriptor;
  array->element_bytes = element;
  array->pitch = descriptor.Width * element;
  array->rows = std::max<uint64_t>(descriptor.Height, 1);
  array->slices = std::max<uint64_t>(descriptor.Depth, 1);
  array->context = context->handle();
  if (const CUresult result =
          Driver::get().memory.allocate(*context, array->pitch * array->rows * array->slices,
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

// As CUDA 2 to 3.1 had them: 32 bits for lengths.
CUresult CUDAAPI cuArrayCreate(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY_DESCRIPTOR descriptor{given->Width, given->Height, given->Format,
                                         given->NumChannels};
  return cuArrayCreate_v2(out, &descriptor);
}
CUresult CUDAAPI cuArray3DCreate(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR descriptor{given->Width,  given->Height,      given->Depth,
                                           given->Format, given->NumChannels, given->Flags};
  return cuArray3DCreate_v2(out, &descriptor);
}
CUresult CUDAAPI cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1* out, CUarray handle) {
  CUDA_ARRAY_DESCRIPTOR found{};
  if (const CUresult result = cuArrayGetDescriptor_v2(out != nullptr ? &found : nullptr, handle))
    return result;
  *out = {static_cast<unsigned>(found.Width), static_cast<unsigned>(found.Height), found.Format,
          found.NumChannels};
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1* out, CUarray handle) {
  CUDA_ARRAY3D_DESCRIPTOR found{};
  if (const CUresult result = cuArray3DGetDescriptor_v2(out != nullptr ? &found : nullptr, handle))
    return result;
  *out = {static_cast<unsigned>(found.Width),
          static_cast<unsigned>(found.Height),
          static_cast<unsigned>(found.Depth),
          found.Format,
          found.NumChannels,
          found.Flags};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle,
                                              CUdevice) {
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
