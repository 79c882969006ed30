#include "gpunode/simgpu/ptx/texture.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpunode/simgpu/ptx/half.h"

namespace olpager::simgpu::ptx {

namespace {

constexpr std::int64_t kOutside = -1;
constexpr float kWeightSteps =
    256;  // a blending weight has 8 fractional bits, and 1.0 is one of its values

// The number of the texel that stands for number `i` of `n`, or kOutside.
std::int64_t place(AddressMode mode, std::int64_t i, std::int64_t n) {
  const auto modulo = [](std::int64_t a, std::int64_t b) { return (a % b + b) % b; };
  switch (mode) {
    case AddressMode::kWrap:
      return modulo(i, n);
    case AddressMode::kMirror: {
      const std::int64_t m = modulo(i, 2 * n);
      return m < n ? m : 2 * n - 1 - m;
    }
    case AddressMode::kBorder:
      return i >= 0 && i < n ? i : kOutside;
    case AddressMode::kClamp:
      break;
  }
  return std::clamp<std::int64_t>(i, 0, n - 1);
}

std::uint32_t dimensions(TextureShape shape) {
  switch (shape) {
    case TextureShape::k2D:
    case TextureShape::kLayered2D:
      return 2;
    case TextureShape::k3D:
      return 3;
    default:
      return 1;
  }
}

bool isLayered(TextureShape shape) {
  return shape == TextureShape::kLayered1D || shape == TextureShape::kLayered2D;
}

bool readsAsFloat(const Texture& texture) {
  const TexelType type = texture.grid.type;
  return texture.promote || type == TexelType::kF16 || type == TexelType::kF32;
}

float linearOfSrgb(float c) {
  return c <= 0.04045F ? c / 12.92F : std::pow((c + 0.055F) / 1.055F, 2.4F);
}

template <typename T>
T load(const std::byte* at, std::uint32_t channel) {
  T value;
  std::memcpy(&value, at + channel * sizeof(T), sizeof(T));
  return value;
}

// An integer as a register holds it.
template <typename T>
std::uint32_t integer(const Texture& texture, const std::byte* at, std::uint32_t channel) {
  const T value = load<T>(at, channel);
  if (!texture.promote) return static_cast<std::uint32_t>(static_cast<std::int32_t>(value));
  const float one = static_cast<float>(std::numeric_limits<T>::max());
  const float fraction = std::max(static_cast<float>(value) / one, -1.0F);
  return std::bit_cast<std::uint32_t>(texture.srgb && channel < 3 ? linearOfSrgb(fraction)
                                                                  : fraction);
}

std::uint32_t channelOf(const Texture& texture, const std::byte* at, std::uint32_t channel) {
  switch (texture.grid.type) {
    case TexelType::kU8:
      return integer<std::uint8_t>(texture, at, channel);
    case TexelType::kS8:
      return integer<std::int8_t>(texture, at, channel);
    case TexelType::kU16:
      return integer<std::uint16_t>(texture, at, channel);
    case TexelType::kS16:
      return integer<std::int16_t>(texture, at, channel);
    case TexelType::kF16:
      return std::bit_cast<std::uint32_t>(PTX_ISA::f16ToFloat(load<std::uint16_t>(at, channel)));
    default:
      return load<std::uint32_t>(at, channel);
  }
}

using Position = std::array<std::int64_t, 3>;

bool fetch(const Texture& texture, const Position& texel, std::uint32_t layer,
           const TexelReader& read, Texel& out) {
  const TexelGrid& grid = texture.grid;
  const std::array<std::int64_t, 3> size{grid.width, grid.height, grid.depth};
  const std::uint32_t count = dimensions(grid.shape);
  Position at{0, 0, 0};
  for (std::uint32_t d = 0; d < count; ++d) {
    at[d] = place(texture.address[d], texel[d], size[d]);
    if (at[d] == kOutside) {
      out = texture.border;
      return true;
    }
  }
  if (isLayered(grid.shape)) at[2] = std::min(layer, grid.depth - 1);
  const std::uint64_t address = grid.base + static_cast<std::uint64_t>(at[2]) * grid.slice_bytes +
                                static_cast<std::uint64_t>(at[1]) * grid.row_bytes +
                                static_cast<std::uint64_t>(at[0]) * grid.texelBytes();
  const std::byte* const bytes = read(address, grid.texelBytes());
  if (bytes == nullptr) return false;
  out = {0, 0, 0, readsAsFloat(texture) ? std::bit_cast<std::uint32_t>(1.0F) : 1U};
  for (std::uint32_t c = 0; c < grid.channels; ++c) out[c] = channelOf(texture, bytes, c);
  return true;
}

// A coordinate in texels. A value that is no number, or lies further out than any texture is large,
// stays within what converts to an integer.
double texels(const Texture& texture, const TexturePoint& point, std::uint32_t d) {
  double x = static_cast<double>(std::bit_cast<float>(point.coordinate[d]));
  if (texture.normalized_coordinates) {
    const TexelGrid& grid = texture.grid;
    x *= d == 0 ? grid.width : d == 1 ? grid.height : grid.depth;
  }
  constexpr double kFar = 1e15;
  return std::isnan(x) ? 0 : std::clamp(x, -kFar, kFar);
}

// The lower neighbour that linear filtering blends, and the weight of the upper one.
struct Neighbours {
  std::int64_t low;
  float weight;
};
Neighbours neighbours(const Texture& texture, const TexturePoint& point, std::uint32_t d) {
  const double x = texels(texture, point, d) - 0.5;
  const double low = std::floor(x);
  const auto fraction = static_cast<float>(x - low);
  return {static_cast<std::int64_t>(low), std::nearbyint(fraction * kWeightSteps) / kWeightSteps};
}

}  // namespace

std::uint32_t texelTypeBytes(TexelType type) {
  switch (type) {
    case TexelType::kU8:
    case TexelType::kS8:
      return 1;
    case TexelType::kU16:
    case TexelType::kS16:
    case TexelType::kF16:
      return 2;
    default:
      return 4;
  }
}

const char* shapeName(TextureShape shape) {
  switch (shape) {
    case TextureShape::kLinear:
      return "linear memory";
    case TextureShape::k1D:
      return "one-dimensional";
    case TextureShape::k2D:
      return "two-dimensional";
    case TextureShape::k3D:
      return "three-dimensional";
    case TextureShape::kLayered1D:
      return "one-dimensional in layers";
    case TextureShape::kLayered2D:
      return "two-dimensional in layers";
  }
  return "unknown";
}

bool sampleTexture(const Texture& texture, const TexturePoint& point, const TexelReader& read,
                   Texel& out) {
  const std::uint32_t count = dimensions(texture.grid.shape);
  Position texel{0, 0, 0};
  if (point.integer || !texture.linear_filter) {
    for (std::uint32_t d = 0; d < count; ++d)
      texel[d] = point.integer ? static_cast<std::int32_t>(point.coordinate[d])
                               : static_cast<std::int64_t>(std::floor(texels(texture, point, d)));
    return fetch(texture, texel, point.layer, read, out);
  }
  std::array<Neighbours, 3> near{};
  for (std::uint32_t d = 0; d < count; ++d) near[d] = neighbours(texture, point, d);
  std::array<float, 4> sum{};
  for (std::uint32_t corner = 0; corner < 1U << count; ++corner) {
    float weight = 1;
    for (std::uint32_t d = 0; d < count; ++d) {
      const bool upper = (corner >> d & 1) != 0;
      texel[d] = near[d].low + (upper ? 1 : 0);
      weight *= upper ? near[d].weight : 1 - near[d].weight;
    }
    if (weight == 0) continue;  // what does not count is not read
    Texel one;
    if (!fetch(texture, texel, point.layer, read, one)) return false;
    for (std::size_t c = 0; c < 4; ++c) sum[c] += weight * std::bit_cast<float>(one[c]);
  }
  for (std::size_t c = 0; c < 4; ++c) out[c] = std::bit_cast<std::uint32_t>(sum[c]);
  return true;
}

bool gatherTexture(const Texture& texture, const TexturePoint& point, std::uint32_t channel,
                   const TexelReader& read, Texel& out) {
  const std::int64_t x = neighbours(texture, point, 0).low;
  const std::int64_t y = neighbours(texture, point, 1).low;
  const std::array<Position, 4> corners{
      {{x, y + 1, 0}, {x + 1, y + 1, 0}, {x + 1, y, 0}, {x, y, 0}}};
  for (std::size_t k = 0; k < corners.size(); ++k) {
    Texel one;
    if (!fetch(texture, corners[k], point.layer, read, one)) return false;
    out[k] = one[channel];
  }
  return true;
}

}  // namespace olpager::simgpu::ptx
