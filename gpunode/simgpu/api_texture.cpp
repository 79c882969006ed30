// Texture and surface objects: what they are made from, checked and turned into what the
// interpreter reads.
#include "gpunode/simgpu/api.h"

#include <cstring>
#include <deque>
#include <mutex>
#include <set>

#include "gpunode/simgpu/array.h"
#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/texture_objects.h"

namespace olpager::simgpu {
namespace {

struct TextureObject {
  CUcontext context = nullptr;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUDA_RESOURCE_VIEW_DESC view{};
  ptx::Texture code;
};
struct SurfaceObject {
  CUcontext context = nullptr;
  CUDA_RESOURCE_DESC resource{};
  ptx::Surface code;
};

HandleTable<TextureObject>& textures() {
  static auto* const table = new HandleTable<TextureObject>(HandleKind::kTexture);
  return *table;
}
HandleTable<SurfaceObject>& surfaces() {
  static auto* const table = new HandleTable<SurfaceObject>(HandleKind::kSurface);
  return *table;
}

/// Launches that may still look for objects, and the destroyed objects that they may find.
class Launches {
 public:
  static Launches& get() {
    static auto* const launches = new Launches;
    return *launches;
  }
  uint64_t begin() {
    std::scoped_lock lock(mutex_);
    return *under_way_.insert(++last_).first;
  }
  void end(uint64_t launch) {
    std::scoped_lock lock(mutex_);
    under_way_.erase(launch);
    while (!retired_.empty() &&
           (under_way_.empty() || retired_.front().last_launch < *under_way_.begin()))
      retired_.pop_front();
  }
  void retire(uint64_t handle, std::shared_ptr<const ptx::Texture> texture,
              std::shared_ptr<const ptx::Surface> surface) {
    std::scoped_lock lock(mutex_);
    if (!under_way_.empty())
      retired_.push_back({last_, handle, std::move(texture), std::move(surface)});
  }
  struct Retired {
    uint64_t last_launch;  ///< submitted before it was destroyed
    uint64_t handle;
    std::shared_ptr<const ptx::Texture> texture;
    std::shared_ptr<const ptx::Surface> surface;
  };
  /// An object that was destroyed after `launch` was submitted; empty if there is none.
  Retired find(uint64_t launch, uint64_t handle) const {
    std::scoped_lock lock(mutex_);
    for (const Retired& retired : retired_)
      if (retired.handle == handle && retired.last_launch >= launch) return retired;
    return {};
  }

 private:
  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::set<uint64_t> under_way_;
  std::deque<Retired> retired_;  ///< by last_launch
};

std::shared_ptr<const ptx::Texture> codeOf(const std::shared_ptr<const TextureObject>& object) {
  return {object, &object->code};
}
std::shared_ptr<const ptx::Surface> codeOf(const std::shared_ptr<const SurfaceObject>& object) {
  return {object, &object->code};
}

class LaunchTextures final : public ptx::TextureTable {
 public:
  LaunchTextures() : launch_(Launches::get().begin()) {}
  ~LaunchTextures() override { Launches::get().end(launch_); }
  LaunchTextures(const LaunchTextures&) = delete;
  LaunchTextures& operator=(const LaunchTextures&) = delete;

  std::shared_ptr<const ptx::Texture> texture(uint64_t handle) override {
    const auto object = textures().find(handle);
    return object != nullptr ? codeOf(object) : Launches::get().find(launch_, handle).texture;
  }
  std::shared_ptr<const ptx::Surface> surface(uint64_t handle) override {
    const auto object = surfaces().find(handle);
    return object != nullptr ? codeOf(object) : Launches::get().find(launch_, handle).surface;
  }

 private:
  const uint64_t launch_;
};

bool texelType(CUarray_format format, ptx::TexelType* out) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      *out = ptx::TexelType::kU8;
      return true;
    case CU_AD_FORMAT_SIGNED_INT8:
      *out = ptx::TexelType::kS8;
      return true;
    case CU_AD_FORMAT_UNSIGNED_INT16:
      *out = ptx::TexelType::kU16;
      return true;
    case CU_AD_FORMAT_SIGNED_INT16:
      *out = ptx::TexelType::kS16;
      return true;
    case CU_AD_FORMAT_UNSIGNED_INT32:
      *out = ptx::TexelType::kU32;
      return true;
    case CU_AD_FORMAT_SIGNED_INT32:
      *out = ptx::TexelType::kS32;
      return true;
    case CU_AD_FORMAT_HALF:
      *out = ptx::TexelType::kF16;
      return true;
    case CU_AD_FORMAT_FLOAT:
      *out = ptx::TexelType::kF32;
      return true;
    default:
      return false;
  }
}

CUresult arrayGrid(const Array& array, ptx::TexelGrid* out) {
  const CUDA_ARRAY3D_DESCRIPTOR& descriptor = array.descriptor;
  const bool layers = (descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  if (layers) {
    out->shape =
        descriptor.Height == 0 ? ptx::TextureShape::kLayered1D : ptx::TextureShape::kLayered2D;
  } else if (descriptor.Depth != 0) {
    out->shape = ptx::TextureShape::k3D;
  } else {
    out->shape = descriptor.Height != 0 ? ptx::TextureShape::k2D : ptx::TextureShape::k1D;
  }
  if (!texelType(descriptor.Format, &out->type)) return CUDA_ERROR_INVALID_VALUE;
  out->channels = descriptor.NumChannels;
  out->base = array.base;
  out->width = static_cast<uint32_t>(descriptor.Width);
  out->height = static_cast<uint32_t>(array.rows);
  out->depth = static_cast<uint32_t>(array.slices);
  out->row_bytes = array.pitch;
  out->slice_bytes = array.pitch * array.rows;
  return CUDA_SUCCESS;
}

int attribute(const Device& device, CUdevice_attribute which) {
  int value = 0;
  (void)device.attribute(which, &value);
  return value;
}

/// Linear and pitched memory: an address that textures may have, in the device's memory from end to
/// end.
CUresult memoryGrid(const Device& device, CUdeviceptr address, CUarray_format format,
                    unsigned channels, ptx::TexelGrid* out) {
  if (arrayElementBytes(format, channels) == 0 || !texelType(format, &out->type))
    return CUDA_ERROR_INVALID_VALUE;
  const auto alignment =
      static_cast<uint64_t>(attribute(device, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
  if (address == 0 || address % alignment != 0) return CUDA_ERROR_INVALID_VALUE;
  out->channels = channels;
  out->base = address;
  return CUDA_SUCCESS;
}

CUresult resourceGrid(const CUDA_RESOURCE_DESC& resource, ptx::TexelGrid* out) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  const Device& device = context->device();
  const Memory& memory = Driver::get().memory;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const auto array = Driver::get().arrays.find(resource.res.array.hArray);
      return array != nullptr ? arrayGrid(*array, out) : CUDA_ERROR_INVALID_HANDLE;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      if (const CUresult result =
              memoryGrid(device, linear.devPtr, linear.format, linear.numChannels, out))
        return result;
      const uint64_t texels = linear.sizeInBytes / out->texelBytes();
      if (texels == 0 ||
          texels > static_cast<uint64_t>(
                       attribute(device, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH)) ||
          !memory.covers(device, linear.devPtr, texels * out->texelBytes(), false)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      out->shape = ptx::TextureShape::kLinear;
      out->width = static_cast<uint32_t>(texels);
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& pitched = resource.res.pitch2D;
      if (const CUresult result =
              memoryGrid(device, pitched.devPtr, pitched.format, pitched.numChannels, out))
        return result;
      const auto within = [&](uint64_t value, CUdevice_attribute limit) {
        return value != 0 && value <= static_cast<uint64_t>(attribute(device, limit));
      };
      const auto alignment =
          static_cast<uint64_t>(attribute(device, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT));
      if (!within(pitched.width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
          !within(pitched.height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
          !within(pitched.pitchInBytes, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) ||
          pitched.pitchInBytes % alignment != 0 ||
          pitched.pitchInBytes < pitched.width * out->texelBytes() ||
          !memory.covers(
              device, pitched.devPtr,
              (pitched.height - 1) * pitched.pitchInBytes + pitched.width * out->texelBytes(),
              false)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      out->shape = ptx::TextureShape::k2D;
      out->width = static_cast<uint32_t>(pitched.width);
      out->height = static_cast<uint32_t>(pitched.height);
      out->row_bytes = pitched.pitchInBytes;
      return CUDA_SUCCESS;
    }
    default:
      return notSupported("texture objects over mipmapped arrays");
  }
}

ptx::AddressMode addressMode(CUaddress_mode mode, bool normalized) {
  switch (mode) {
    case CU_TR_ADDRESS_MODE_WRAP:  // of texel coordinates: as clamp
      return normalized ? ptx::AddressMode::kWrap : ptx::AddressMode::kClamp;
    case CU_TR_ADDRESS_MODE_MIRROR:
      return normalized ? ptx::AddressMode::kMirror : ptx::AddressMode::kClamp;
    case CU_TR_ADDRESS_MODE_BORDER:
      return ptx::AddressMode::kBorder;
    default:
      return ptx::AddressMode::kClamp;
  }
}

CUresult makeTexture(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& how,
                     ptx::Texture* out) {
  constexpr unsigned kKnown = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                              CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                              CU_TRSF_SEAMLESS_CUBEMAP;
  if ((how.flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (how.filterMode != CU_TR_FILTER_MODE_POINT && how.filterMode != CU_TR_FILTER_MODE_LINEAR)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = resourceGrid(resource, &out->grid)) return result;
  if (resource.resType == CU_RESOURCE_TYPE_ARRAY) {
    const auto array = Driver::get().arrays.find(resource.res.array.hArray);
    if (array != nullptr && (array->descriptor.Flags & CUDA_ARRAY3D_CUBEMAP) != 0)
      return notSupported("texture objects over cube maps");
  }
  const ptx::TexelType type = out->grid.type;
  const bool floating = type == ptx::TexelType::kF16 || type == ptx::TexelType::kF32;
  const bool narrow = !floating && ptx::texelTypeBytes(type) < 4;
  out->promote = narrow && (how.flags & CU_TRSF_READ_AS_INTEGER) == 0;
  out->linear_filter = how.filterMode == CU_TR_FILTER_MODE_LINEAR;
  if (out->linear_filter && !floating && !out->promote) return CUDA_ERROR_INVALID_VALUE;
  out->normalized_coordinates = (how.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
  out->srgb = (how.flags & CU_TRSF_SRGB) != 0;
  if (out->srgb && !(out->promote && type == ptx::TexelType::kU8)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t d = 0; d < 3; ++d) {
    if (how.addressMode[d] < CU_TR_ADDRESS_MODE_WRAP ||
        how.addressMode[d] > CU_TR_ADDRESS_MODE_BORDER)
      return CUDA_ERROR_INVALID_VALUE;
    out->address[d] = addressMode(how.addressMode[d], out->normalized_coordinates);
  }
  // Programs give the colour of integers as their bits.
  std::memcpy(out->border.data(), how.borderColor, sizeof(how.borderColor));
  return CUDA_SUCCESS;
}

CUcontext currentHandle() {
  const auto context = currentContext();
  return context != nullptr ? context->handle() : nullptr;
}

}  // namespace

std::unique_ptr<ptx::TextureTable> texturesForLaunch() {
  if (textures().empty() && surfaces().empty()) return nullptr;
  return std::make_unique<LaunchTextures>();
}

void forgetTextures(CUcontext context) {
  textures().removeIf([&](const TextureObject& object) { return object.context == context; });
  surfaces().removeIf([&](const SurfaceObject& object) { return object.context == context; });
}

}  // namespace olpager::simgpu

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

CUresult CUDAAPI cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                                   const CUDA_TEXTURE_DESC* texture,
                                   const CUDA_RESOURCE_VIEW_DESC* view) {
  if (out == nullptr || resource == nullptr || texture == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (view != nullptr && view->format != CU_RES_VIEW_FORMAT_NONE)
    return notSupported("cuTexObjectCreate with a resource view");
  auto object = std::make_shared<TextureObject>();
  if (const CUresult result = makeTexture(*resource, *texture, &object->code)) return result;
  object->context = currentHandle();
  object->resource = *resource;
  object->texture = *texture;
  if (view != nullptr) object->view = *view;
  *out = textures().add(std::move(object));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject object) {
  if (const CUresult result = requireInit()) return result;
  const auto gone = textures().find(object);
  if (gone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Launches::get().retire(object, codeOf(gone),
                         nullptr);  // first, so that kernels under way find it at any time
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
  auto object = std::make_shared<SurfaceObject>();
  if (const CUresult result = resourceGrid(*resource, &object->code)) return result;
  const auto array = Driver::get().arrays.find(resource->res.array.hArray);
  if (array == nullptr || (array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  object->context = currentHandle();
  object->resource = *resource;
  *out = surfaces().add(std::move(object));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject object) {
  if (const CUresult result = requireInit()) return result;
  const auto gone = surfaces().find(object);
  if (gone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Launches::get().retire(object, nullptr,
                         codeOf(gone));  // first, so that kernels under way find it at any time
  return surfaces().remove(object) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject object) {
  if (const CUresult result = requireInit()) return result;
  const auto found = surfaces().find(object);
  if (out == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = found->resource;
  return CUDA_SUCCESS;
}
