// Texture reads, surface loads and stores: finds the object, then goes lane by lane.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "gpunode/simgpu/ptx/ops.h"
#include "gpunode/simgpu/ptx/texture.h"
#include "gpunode/simgpu/ptx/warp.h"

namespace olpager::simgpu::ptx {
namespace {

template <typename Body>
Step eachLane(const Warp& w, Body body) {
  for (std::uint32_t left = w.mask; left != 0; left &= left - 1) {
    const Step step = body(static_cast<std::uint32_t>(std::countr_zero(left)));
    if (step != Step::kNext) return step;
  }
  return Step::kNext;
}

std::string object(const char* what, std::uint64_t handle) {
  char text[48];
  std::snprintf(text, sizeof text, "%s object 0x%llx", what,
                static_cast<unsigned long long>(handle));
  return text;
}

Step failLane(Warp& w, std::uint32_t lane, LaunchStatus status, std::string message) {
  w.fail(status, std::move(message));
  w.fault.lane = lane;
  return Step::kFault;
}

Step noObject(Warp& w, std::uint32_t lane, const char* what, std::uint64_t handle) {
  return failLane(w, lane, LaunchStatus::kIllegalInstruction,
                  object(what, handle) + " does not exist");
}

Step wrongShape(Warp& w, std::uint32_t lane, const char* what, std::uint64_t handle,
                TextureShape has, TextureShape wanted) {
  return failLane(w, lane, LaunchStatus::kIllegalInstruction,
                  object(what, handle) + " is " + shapeName(has) + ", the instruction's is " +
                      shapeName(wanted));
}

/// Unnormalised integer coordinates also read linear memory, which is what tex1Dfetch does.
bool fits(const TextureKind& kind, TextureShape has) {
  return has == kind.shape || (has == TextureShape::kLinear && kind.shape == TextureShape::k1D &&
                               kind.integer_coordinates);
}

const Texture* findTexture(Warp& w, std::uint64_t handle) {
  Worker& worker = *w.worker;
  TextureTable* const table = worker.launch.config->textures;
  return worker.textures.find(handle,
                              [&] { return table != nullptr ? table->texture(handle) : nullptr; });
}

const Surface* findSurface(Warp& w, std::uint64_t handle) {
  Worker& worker = *w.worker;
  TextureTable* const table = worker.launch.config->textures;
  return worker.surfaces.find(handle,
                              [&] { return table != nullptr ? table->surface(handle) : nullptr; });
}

std::uint32_t coordinates(TextureShape shape) {
  return shape == TextureShape::k3D                                        ? 3
         : shape == TextureShape::k2D || shape == TextureShape::kLayered2D ? 2
                                                                           : 1;
}

/// r[0..3] result, r[4..6] coordinates, r[7] layer, r[8] handle, r[9] predicate: the texels are
/// resident.
Step texture(Warp& w, const Op& op) {
  const TextureKind kind = TextureKind::unpack(op.imm);
  const std::uint64_t* const handles = w.reg<std::uint64_t>(op.r[8]);
  const std::uint32_t count = coordinates(kind.shape);
  const Step step = eachLane(w, [&](std::uint32_t lane) {
    const std::uint64_t handle = handles[lane];
    const Texture* const found = findTexture(w, handle);
    if (found == nullptr) return noObject(w, lane, "texture", handle);
    if (!fits(kind, found->grid.shape)) {
      return wrongShape(w, lane, "texture", handle, found->grid.shape, kind.shape);
    }
    TexturePoint point;
    point.integer = kind.integer_coordinates;
    for (std::uint32_t d = 0; d < count; ++d)
      point.coordinate[d] = w.reg<std::uint32_t>(op.r[4 + d])[lane];
    if (kind.layered()) point.layer = w.reg<std::uint32_t>(op.r[7])[lane];
    const TexelReader read = [&](std::uint64_t address, std::uint32_t bytes) {
      return w.resolve(address, lane, bytes, false);
    };
    Texel texel;
    const bool mapped = kind.gather ? gatherTexture(*found, point, kind.channel, read, texel)
                                    : sampleTexture(*found, point, read, texel);
    if (!mapped) return Step::kFault;
    for (std::uint32_t c = 0; c < 4; ++c) w.reg<std::uint32_t>(op.r[c])[lane] = texel[c];
    return Step::kNext;
  });
  if (step == Step::kNext && op.r[9] != kNoTarget) w.setPredicate(op.r[9], kFullMask);
  return step;
}

std::byte* element(Warp& w, std::uint32_t reg, std::uint32_t bytes, std::uint32_t lane) {
  return w.reg<std::byte>(reg) + std::size_t{lane} * bytes;
}

/// r[0..3] data, r[4..6] coordinates (x in bytes), r[7] layer, r[8] handle.
Step surface(Warp& w, const Op& op) {
  const SurfaceKind kind = SurfaceKind::unpack(op.imm);
  const std::uint64_t* const handles = w.reg<std::uint64_t>(op.r[8]);
  const std::uint32_t count = coordinates(kind.shape);
  const std::uint32_t bytes = kind.element_bytes * kind.vector;
  return eachLane(w, [&](std::uint32_t lane) {
    const std::uint64_t handle = handles[lane];
    const Surface* const found = findSurface(w, handle);
    if (found == nullptr) return noObject(w, lane, "surface", handle);
    if (found->shape != kind.shape)
      return wrongShape(w, lane, "surface", handle, found->shape, kind.shape);
    std::array<std::int64_t, 3> at{0, 0, 0};
    std::array<std::int64_t, 3> last{std::int64_t{found->width} * found->texelBytes() - bytes,
                                     std::int64_t{found->height} - 1,
                                     std::int64_t{found->depth} - 1};
    for (std::uint32_t d = 0; d < count; ++d)
      at[d] = static_cast<std::int32_t>(w.reg<std::uint32_t>(op.r[4 + d])[lane]);
    if (kind.layered()) at[2] = w.reg<std::uint32_t>(op.r[7])[lane];
    bool outside = false;
    for (std::size_t d = 0; d < 3; ++d) {
      outside = outside || at[d] < 0 || at[d] > last[d];
      if (kind.bounds == SurfaceBounds::kClamp)
        at[d] = std::clamp<std::int64_t>(at[d], 0, std::max<std::int64_t>(0, last[d]));
    }
    if (last[0] < 0 || (outside && kind.bounds == SurfaceBounds::kTrap)) {
      return failLane(w, lane, LaunchStatus::kTrap,
                      object("surface", handle) + ": access outside of it");
    }
    if (outside && kind.bounds == SurfaceBounds::kZero) {
      for (std::uint32_t v = 0; !kind.store && v < kind.vector; ++v)
        std::memset(element(w, op.r[v], kind.reg_bytes, lane), 0, kind.reg_bytes);
      return Step::kNext;
    }
    const std::uint64_t address =
        found->base + static_cast<std::uint64_t>(at[2]) * found->slice_bytes +
        static_cast<std::uint64_t>(at[1]) * found->row_bytes + static_cast<std::uint64_t>(at[0]);
    if (address % bytes != 0)
      return w.failAddress(LaunchStatus::kMisaligned, address, kind.store, lane);
    std::byte* const memory = w.resolve(address, lane, bytes, kind.store);
    if (memory == nullptr) return Step::kFault;
    for (std::uint32_t v = 0; v < kind.vector; ++v) {
      std::byte* const data = element(w, op.r[v], kind.reg_bytes, lane);
      std::byte* const place = memory + std::size_t{v} * kind.element_bytes;
      if (kind.store) {
        std::memcpy(place, data, kind.element_bytes);
      } else {
        std::memset(data, 0, kind.reg_bytes);
        std::memcpy(data, place, kind.element_bytes);
      }
    }
    return Step::kNext;
  });
}

}  // namespace

OpFn textureOp() { return texture; }
OpFn surfaceOp() { return surface; }

}  // namespace olpager::simgpu::ptx
