// Textures and surfaces: what a handle in a kernel stands for, and how texture instructions read
// it.
//
// Filtering follows the CUDA programming guide ("Texture Fetching"): coordinates are in texels,
// nearest takes floor(x), linear blends the neighbours of x - 0.5 with weights of 8 fractional
// bits, each sum in single precision. Hardware blends narrow formats in fixed point: the last bits
// may differ from it. Without mipmaps every level of detail is level 0.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

namespace olpager::simgpu::ptx {

enum class TexelType : std::uint8_t { kU8, kS8, kU16, kS16, kU32, kS32, kF16, kF32 };
enum class TextureShape : std::uint8_t { kLinear, k1D, k2D, k3D, kLayered1D, kLayered2D };
enum class AddressMode : std::uint8_t { kWrap, kClamp, kMirror, kBorder };

std::uint32_t texelTypeBytes(TexelType type);
/// "a 2D" and the like, for messages.
const char* shapeName(TextureShape shape);

/// The layout of texels: texel (x, y, z) at base + z * slice_bytes + y * row_bytes + x *
/// texelBytes().
struct TexelGrid {
  TextureShape shape = TextureShape::kLinear;
  TexelType type = TexelType::kU8;
  std::uint32_t channels = 1;  ///< 1, 2 or 4
  std::uint64_t base = 0;      ///< device address
  std::uint32_t width = 1;     ///< in texels
  std::uint32_t height = 1;
  std::uint32_t depth = 1;  ///< of a layered shape: its layers
  std::uint64_t row_bytes = 0;
  std::uint64_t slice_bytes = 0;

  std::uint32_t texelBytes() const { return texelTypeBytes(type) * channels; }
};

using Surface = TexelGrid;

struct Texture {
  TexelGrid grid;
  std::array<AddressMode, 3> address{AddressMode::kClamp, AddressMode::kClamp, AddressMode::kClamp};
  bool linear_filter = false;
  bool normalized_coordinates = false;
  bool promote = false;  ///< 8- and 16-bit integers read as floats in [0, 1] or [-1, 1]
  bool srgb = false;     ///< red, green and blue are sRGB; promoted u8 only
  std::array<std::uint32_t, 4>
      border{};  ///< what kBorder reads outside: bits of what the texel's type reads as
};

/// The objects of a context, by handle. Thread-safe: called from every worker. Handles are never
/// reused.
class TextureTable {
 public:
  virtual ~TextureTable() = default;
  /// Null: there is no such object.
  virtual std::shared_ptr<const Texture> texture(std::uint64_t handle) = 0;
  virtual std::shared_ptr<const Surface> surface(std::uint64_t handle) = 0;
};

/// The objects that one worker has used during a launch. The objects stay as they are while it
/// runs.
template <typename Object>
class ObjectCache {
 public:
  template <typename Find>
  const Object* find(std::uint64_t handle, Find find) {
    if (last_ != nullptr && handle == last_handle_) return last_;
    std::shared_ptr<const Object>& object = objects_[handle];
    if (object == nullptr) object = find();
    last_handle_ = handle;
    return last_ = object.get();
  }

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<const Object>> objects_;
  std::uint64_t last_handle_ = 0;
  const Object* last_ = nullptr;
};

/// Four channels as registers hold them: bits of a float, or an integer widened to 32 bits.
using Texel = std::array<std::uint32_t, 4>;

/// One access of one thread.
struct TexturePoint {
  bool integer = false;  ///< coordinates are texel numbers: neither normalised nor filtered
  std::array<std::uint32_t, 3> coordinate{};  ///< bits of floats or signed integers
  std::uint32_t layer = 0;
};

/// The bytes of a texel on the host, or null: the address is not mapped.
using TexelReader = std::function<const std::byte*(std::uint64_t address, std::uint32_t bytes)>;

/// False: `read` returned null.
bool sampleTexture(const Texture& texture, const TexturePoint& point, const TexelReader& read,
                   Texel& out);
/// tld4: one channel of the four texels that linear filtering would blend, counter-clockwise from
/// (x, y + 1).
bool gatherTexture(const Texture& texture, const TexturePoint& point, std::uint32_t channel,
                   const TexelReader& read, Texel& out);

}  // namespace olpager::simgpu::ptx
