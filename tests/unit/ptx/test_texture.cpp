// Texture and surface instructions against a second, plain implementation of what the CUDA
// programming guide says.
#include <cmath>

#include "gpunode/simgpu/ptx/texture.h"
#include "tests/catch.h"
#include "tests/unit/ptx/harness.h"
#include "tests/unit/ptx/random.h"

using namespace olpager::simgpu::ptx;
using namespace olpager::simgpu::ptx::test;

namespace {

class Objects final : public TextureTable {
 public:
  std::shared_ptr<const Texture> texture(std::uint64_t handle) override {
    const auto found = textures.find(handle);
    return found == textures.end() ? nullptr : std::make_shared<const Texture>(found->second);
  }
  std::shared_ptr<const Surface> surface(std::uint64_t handle) override {
    const auto found = surfaces.find(handle);
    return found == surfaces.end() ? nullptr : std::make_shared<const Surface>(found->second);
  }
  std::uint64_t add(const Texture& texture) {
    textures[++last] = texture;
    return last;
  }
  std::uint64_t add(const Surface& surface) {
    surfaces[++last] = surface;
    return last;
  }
  std::map<std::uint64_t, Texture> textures;
  std::map<std::uint64_t, Surface> surfaces;
  std::uint64_t last = 0x4100'0000'0000;
};

using Float4 = std::array<float, 4>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }

 private:
  std::mt19937_64 engine_;
};

struct Rig {
  explicit Rig(const char* file = "texture") : device(Device::fromFile(file)) {
    device.config.textures = &objects;
  }

  /// A grid over fresh memory with these bytes; rows are `row_bytes` apart (0: no gap).
  TexelGrid grid(TextureShape shape, TexelType type, std::uint32_t channels, std::uint32_t width,
                 std::uint32_t height, std::uint32_t depth, std::uint64_t row_bytes = 0) {
    TexelGrid g;
    g.shape = shape;
    g.type = type;
    g.channels = channels;
    g.width = width, g.height = height, g.depth = depth;
    g.row_bytes = row_bytes != 0 ? row_bytes : std::uint64_t{width} * g.texelBytes();
    g.slice_bytes = g.row_bytes * height;
    g.base = device.memory.allocate(g.slice_bytes * depth);
    return g;
  }
  template <typename T>
  T& texel(const TexelGrid& g, std::uint32_t x, std::uint32_t y = 0, std::uint32_t z = 0,
           std::uint32_t c = 0) {
    return *device.memory.host<T>(g.base + z * g.slice_bytes + y * g.row_bytes +
                                  std::uint64_t{x} * g.texelBytes() + c * sizeof(T));
  }
  template <typename Out = float>
  std::vector<std::array<Out, 4>> run(const char* kernel, std::uint64_t object,
                                      const std::vector<Float4>& at) {
    const auto n = static_cast<int>(at.size());
    const auto out = device.memory.allocate(at.size() * 16);
    const LaunchResult result = device.launch(kernel, Dim3{static_cast<unsigned>(n + 63) / 64},
                                              Dim3{64}, object, device.upload(at), out, n);
    INFO(result.message);
    REQUIRE(result.ok());
    return device.download<std::array<Out, 4>>(out, at.size());
  }

  Objects objects;
  Device device;
};

/// The rules of the programming guide, dimension after dimension.
class Reference {
 public:
  Reference(Rig& rig, const Texture& texture) : rig_(rig), texture_(texture) {}

  Float4 at(Float4 coordinate, int dimensions, int layer = -1) const {
    std::array<double, 3> x{coordinate[0], coordinate[1], coordinate[2]};
    const std::array<int, 3> size{static_cast<int>(texture_.grid.width),
                                  static_cast<int>(texture_.grid.height),
                                  static_cast<int>(texture_.grid.depth)};
    if (texture_.normalized_coordinates)
      for (std::size_t d = 0; d < 3; ++d) x[d] *= size[d];
    return along(x, {0, 0, 0}, 0, dimensions, layer, size);
  }

 private:
  Float4 along(const std::array<double, 3>& x, std::array<int, 3> index, int d, int dimensions,
               int layer, const std::array<int, 3>& size) const {
    if (d == dimensions) return texel(index, dimensions, layer, size);
    const auto axis = static_cast<std::size_t>(d);
    if (!texture_.linear_filter) {
      index[axis] = static_cast<int>(std::floor(x[axis]));
      return along(x, index, d + 1, dimensions, layer, size);
    }
    const double lower = std::floor(x[axis] - 0.5);
    const double weight = std::round((x[axis] - 0.5 - lower) * 256) / 256;
    index[axis] = static_cast<int>(lower);
    const Float4 a = along(x, index, d + 1, dimensions, layer, size);
    ++index[axis];
    const Float4 b = along(x, index, d + 1, dimensions, layer, size);
    Float4 out;
    for (std::size_t c = 0; c < 4; ++c)
      out[c] = static_cast<float>((1 - weight) * a[c] + weight * b[c]);
    return out;
  }

  Float4 texel(std::array<int, 3> index, int dimensions, int layer,
               const std::array<int, 3>& size) const {
    for (std::size_t d = 0; d < static_cast<std::size_t>(dimensions); ++d) {
      const int n = size[d];
      int& i = index[d];
      switch (texture_.address[d]) {
        case AddressMode::kClamp:
          i = i < 0 ? 0 : i >= n ? n - 1 : i;
          break;
        case AddressMode::kWrap:
          while (i < 0) i += n;
          while (i >= n) i -= n;
          break;
        case AddressMode::kMirror:
          while (i < 0 || i >= n) i = i < 0 ? -1 - i : 2 * n - 1 - i;
          break;
        case AddressMode::kBorder:
          if (i < 0 || i >= n) {
            Float4 border;
            std::memcpy(border.data(), texture_.border.data(), 16);
            return border;
          }
      }
    }
    if (layer >= 0) index[2] = std::min(layer, size[2] - 1);
    Float4 out{0, 0, 0, 1};
    for (std::uint32_t c = 0; c < texture_.grid.channels; ++c) {
      const auto x = static_cast<std::uint32_t>(index[0]);
      const auto y = static_cast<std::uint32_t>(index[1]);
      const auto z = static_cast<std::uint32_t>(index[2]);
      if (texture_.grid.type == TexelType::kF32)
        out[c] = rig_.texel<float>(texture_.grid, x, y, z, c);
      if (texture_.grid.type == TexelType::kU8)
        out[c] = static_cast<float>(rig_.texel<std::uint8_t>(texture_.grid, x, y, z, c)) / 255;
      if (texture_.grid.type == TexelType::kS16)
        out[c] = std::max(
            -1.0F, static_cast<float>(rig_.texel<std::int16_t>(texture_.grid, x, y, z, c)) / 32767);
    }
    return out;
  }

  Rig& rig_;
  const Texture& texture_;
};

void fillRandom(Rig& rig, const TexelGrid& g, Random& random) {
  for (std::uint32_t z = 0; z < g.depth; ++z)
    for (std::uint32_t y = 0; y < g.height; ++y)
      for (std::uint32_t x = 0; x < g.width; ++x)
        for (std::uint32_t c = 0; c < g.channels; ++c) {
          if (g.type == TexelType::kF32)
            rig.texel<float>(g, x, y, z, c) = static_cast<float>(random.below(2000)) / 1000 - 1;
          else if (g.type == TexelType::kU8)
            rig.texel<std::uint8_t>(g, x, y, z, c) = static_cast<std::uint8_t>(random.below(256));
          else
            rig.texel<std::int16_t>(g, x, y, z, c) =
                static_cast<std::int16_t>(random.below(65536) - 32768);
        }
}

}  // namespace

TEST_CASE("ptx: textures filter, clamp, wrap, mirror and border as the guide says",
          "[ptx][texture]") {
  struct Case {
    const char* kernel;
    TextureShape shape;
    int dimensions;
    bool layered;
    float times;  // the kernel sums that many reads
  };
  const Case c = GENERATE(Case{"sample_1d", TextureShape::k1D, 1, false, 1},
                          Case{"sample_2d", TextureShape::k2D, 2, false, 1},
                          Case{"sample_3d", TextureShape::k3D, 3, false, 1},
                          Case{"layered_1d", TextureShape::kLayered1D, 1, true, 1},
                          Case{"layered_2d", TextureShape::kLayered2D, 2, true, 1},
                          Case{"levels_2d", TextureShape::k2D, 2, false, 3},
                          Case{"levels_3d", TextureShape::k3D, 3, false, 2});
  const char* const file = GENERATE("texture", "texture_debug", "texture_sm90");
  Rig rig(file);
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  Random random(seed);
  for (int round = 0; round < 24; ++round) {
    Texture t;
    const auto side = [&] { return static_cast<std::uint32_t>(1 + random.below(9)); };
    const TexelType type = round % 3 == 0   ? TexelType::kF32
                           : round % 3 == 1 ? TexelType::kU8
                                            : TexelType::kS16;
    t.grid = rig.grid(c.shape, type, 1U << random.below(3), side(), c.dimensions > 1 ? side() : 1,
                      c.dimensions > 2 || c.layered ? side() : 1, round % 2 == 0 ? 512 : 0);
    fillRandom(rig, t.grid, random);
    t.promote = type != TexelType::kF32;
    t.linear_filter = random.below(2) != 0;
    t.normalized_coordinates = random.below(2) != 0;
    for (auto& mode : t.address) {
      mode = t.normalized_coordinates ? static_cast<AddressMode>(random.below(4))
             : random.below(2) != 0   ? AddressMode::kClamp
                                      : AddressMode::kBorder;
    }
    const Float4 border{0.5F, -2, 3, 4};
    std::memcpy(t.border.data(), border.data(), 16);
    std::vector<Float4> at(100);
    for (Float4& p : at) {
      for (std::size_t d = 0; d < 3; ++d) {
        const std::uint32_t n = d == 0 ? t.grid.width : d == 1 ? t.grid.height : t.grid.depth;
        // Steps of 1/64 texel, from three sizes below to three above.
        const float x = static_cast<float>(random.below(std::uint64_t{64} * 7 * n)) / 64 -
                        3 * static_cast<float>(n);
        p[d] = t.normalized_coordinates ? x / static_cast<float>(n) : x;
      }
      // Half-way between texel numbers, nearest is decided by the last bit of a division.
      if (!t.linear_filter && t.normalized_coordinates)
        for (std::size_t d = 0; d < 3; ++d) p[d] += 1.0F / 4096;
      p[3] = static_cast<float>(random.below(12));
    }
    const auto got = rig.run(c.kernel, rig.objects.add(t), at);
    const Reference reference(rig, t);
    for (std::size_t i = 0; i < at.size(); ++i) {
      const Float4 expected =
          reference.at(at[i], c.dimensions, c.layered ? static_cast<int>(at[i][3]) : -1);
      for (std::size_t k = 0; k < 4; ++k) {
        INFO(c.kernel << " round " << round << " point " << i << " channel " << k << " at "
                      << at[i][0] << ", " << at[i][1] << ", " << at[i][2] << " of " << t.grid.width
                      << "x" << t.grid.height << "x" << t.grid.depth);
        REQUIRE(std::fabs(got[i][k] / c.times - expected[k]) < 0.012F);
      }
    }
  }
}

TEST_CASE("ptx: texels of every type as registers get them", "[ptx][texture]") {
  Rig rig;
  const auto linear = [&](TexelType type, std::uint32_t channels) {
    Texture t;
    t.grid = rig.grid(TextureShape::kLinear, type, channels, 4, 1, 1);
    t.address[0] = AddressMode::kBorder;
    return t;
  };
  const std::vector<Float4> first{{0, 0, 0, 0}, {3, 0, 0, 0}, {4, 0, 0, 0}, {-1, 0, 0, 0}};

  Texture s8 = linear(TexelType::kS8, 2);
  rig.texel<std::int8_t>(s8.grid, 0, 0, 0, 0) = -128;
  rig.texel<std::int8_t>(s8.grid, 0, 0, 0, 1) = 127;
  s8.border = {9, 8, 7, 6};
  auto ints = rig.run<int>("fetch_1d_signed", rig.objects.add(s8), first);
  CHECK(ints[0] == std::array<int, 4>{-128, 127, 0, 1});
  CHECK(ints[2] == std::array<int, 4>{9, 8, 7, 6});
  CHECK(ints[3] == std::array<int, 4>{9, 8, 7, 6});
  s8.promote = true;
  CHECK(rig.run("fetch_1d", rig.objects.add(s8), first)[0] == Float4{-1, 1, 0, 1});

  Texture u16 = linear(TexelType::kU16, 4);
  for (std::uint32_t c = 0; c < 4; ++c)
    rig.texel<std::uint16_t>(u16.grid, 3, 0, 0, c) = static_cast<std::uint16_t>(0xFFFF >> c);
  CHECK(rig.run<unsigned>("fetch_1d_unsigned", rig.objects.add(u16), first)[1] ==
        std::array<unsigned, 4>{0xFFFF, 0x7FFF, 0x3FFF, 0x1FFF});
  u16.promote = true;
  CHECK(rig.run("fetch_1d", rig.objects.add(u16), first)[1][0] == 1.0F);

  Texture u32 = linear(TexelType::kU32, 1);
  rig.texel<std::uint32_t>(u32.grid, 0) = 0xDEADBEEF;
  CHECK(rig.run<unsigned>("fetch_1d_unsigned", rig.objects.add(u32), first)[0][0] == 0xDEADBEEF);

  Texture f16 = linear(TexelType::kF16, 2);
  rig.texel<std::uint16_t>(f16.grid, 0, 0, 0, 0) = 0x3C00;  // 1.0
  rig.texel<std::uint16_t>(f16.grid, 0, 0, 0, 1) = 0xC100;  // -2.5
  CHECK(rig.run("fetch_1d", rig.objects.add(f16), first)[0] == Float4{1, -2.5F, 0, 1});

  // Clamped, as the other mode of integer coordinates.
  f16.address[0] = AddressMode::kClamp;
  CHECK(rig.run("fetch_1d", rig.objects.add(f16), first)[3] == Float4{1, -2.5F, 0, 1});

  Texture srgb = linear(TexelType::kU8, 4);
  for (std::uint32_t c = 0; c < 4; ++c) rig.texel<std::uint8_t>(srgb.grid, 0, 0, 0, c) = 188;
  srgb.promote = srgb.srgb = true;
  const Float4 colour = rig.run("fetch_1d", rig.objects.add(srgb), first)[0];
  CHECK(std::fabs(colour[0] - 0.5028865F) < 1e-5F);
  CHECK(colour[3] == 188.0F / 255);
}

TEST_CASE("ptx: gather gives the four texels around a point", "[ptx][texture]") {
  Rig rig;
  Texture t;
  t.grid = rig.grid(TextureShape::k2D, TexelType::kF32, 4, 8, 8, 1);
  for (std::uint32_t y = 0; y < 8; ++y)
    for (std::uint32_t x = 0; x < 8; ++x)
      for (std::uint32_t c = 0; c < 4; ++c)
        rig.texel<float>(t.grid, x, y, 0, c) = static_cast<float>(100 * c + 10 * y + x);
  const auto object = rig.objects.add(t);
  CHECK(rig.run("gather_red", object, {{4, 3, 0, 0}})[0] == Float4{33, 34, 24, 23});
  CHECK(rig.run("gather_alpha", object, {{4, 3, 0, 0}})[0] == Float4{333, 334, 324, 323});
  CHECK(rig.run("gather_red", object, {{0, 0, 0, 0}})[0] == Float4{0, 0, 0, 0});
}

TEST_CASE("ptx: lanes that diverge read textures on their own", "[ptx][texture]") {
  Rig rig;
  Texture t;
  t.grid = rig.grid(TextureShape::k2D, TexelType::kF32, 2, 64, 64, 1);
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  Random random(seed);
  fillRandom(rig, t.grid, random);
  std::vector<Float4> at(200);
  for (std::size_t i = 0; i < at.size(); ++i)
    at[i] = {static_cast<float>(i % 60) + 0.5F, static_cast<float>(i * 7 % 60) + 0.5F, 0, 0};
  const auto got = rig.run("diverged", rig.objects.add(t), at);
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto x = static_cast<std::uint32_t>(at[i][0]), y = static_cast<std::uint32_t>(at[i][1]);
    Float4 expected{0, 0, 0, 0};
    for (std::uint32_t k = 0; k < i % 5; ++k) {
      const float v = rig.texel<float>(t.grid, std::min(x + k, 63U), y);
      expected[0] += v;
      if (v < 0.5F) expected[1] += rig.texel<float>(t.grid, y, x, 0, 1);
    }
    REQUIRE(got[i] == expected);
  }
}

TEST_CASE("ptx: surfaces of every element size", "[ptx][texture]") {
  Rig rig(GENERATE("texture", "texture_debug"));
  struct Case {
    const char* kernel;
    TexelType type;
    std::uint32_t channels;
  };
  for (const Case& c :
       {Case{"flip_u8", TexelType::kU8, 1}, Case{"flip_u8x4", TexelType::kU8, 4},
        Case{"flip_s16x2", TexelType::kS16, 2}, Case{"flip_f32", TexelType::kF32, 1},
        Case{"flip_f32x4", TexelType::kF32, 4}, Case{"flip_u64x2", TexelType::kF32, 4}}) {
    constexpr std::uint32_t kWidth = 70, kHeight = 9;
    const TexelGrid from = rig.grid(TextureShape::k2D, c.type, c.channels, kWidth, kHeight, 1);
    const TexelGrid to = rig.grid(TextureShape::k2D, c.type, c.channels, kWidth, kHeight, 1);
    const std::uint64_t seed = freshSeed();
    Random random(seed);
    for (std::uint64_t i = 0; i < from.slice_bytes; ++i)
      *rig.device.memory.host<std::uint8_t>(from.base + i) =
          static_cast<std::uint8_t>(random.below(256));
    const LaunchResult result =
        rig.device.launch(c.kernel, Dim3{3, kHeight}, Dim3{32}, rig.objects.add(from),
                          rig.objects.add(to), static_cast<int>(kWidth), static_cast<int>(kHeight));
    INFO(c.kernel << ", seed " << seed << ": " << result.message);
    REQUIRE(result.ok());
    for (std::uint32_t y = 0; y < kHeight; ++y) {
      REQUIRE(
          std::memcmp(rig.device.memory.host<std::byte>(from.base + y * from.row_bytes),
                      rig.device.memory.host<std::byte>(to.base + (kHeight - 1 - y) * to.row_bytes),
                      from.row_bytes) == 0);
    }
  }
}

TEST_CASE("ptx: surfaces of every shape", "[ptx][texture]") {
  Rig rig;
  const TexelGrid one = rig.grid(TextureShape::k1D, TexelType::kS32, 1, 8, 1, 1);
  const TexelGrid three = rig.grid(TextureShape::k3D, TexelType::kS32, 1, 2, 2, 2);
  const TexelGrid rows = rig.grid(TextureShape::kLayered1D, TexelType::kS32, 1, 4, 1, 2);
  const TexelGrid layers = rig.grid(TextureShape::kLayered2D, TexelType::kS32, 1, 2, 2, 2);
  for (std::uint32_t i = 0; i < 8; ++i) rig.texel<int>(one, i) = static_cast<int>(i);
  const auto out = rig.device.memory.allocate(32);
  const LaunchResult result =
      rig.device.launch("shapes", Dim3{1}, Dim3{8}, rig.objects.add(one), rig.objects.add(three),
                        rig.objects.add(rows), rig.objects.add(layers), out);
  INFO(result.message);
  REQUIRE(result.ok());
  const auto got = rig.device.download<int>(out, 8);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const int v = static_cast<int>(i);
    CHECK(got[i] == (v + 1) * 10000 + (v + 2) * 100 + v + 3);
    CHECK(rig.texel<int>(three, i & 1, i >> 1 & 1, i >> 2) == v + 1);
    CHECK(rig.texel<int>(rows, i & 3, 0, i >> 2) == v + 2);
    CHECK(rig.texel<int>(layers, i & 1, i >> 1 & 1, i >> 2) == v + 3);
  }
}

TEST_CASE("ptx: what lies outside of a surface is clamped, zero or a trap", "[ptx][texture]") {
  Rig rig;
  const TexelGrid g = rig.grid(TextureShape::k2D, TexelType::kF32, 1, 4, 3, 1);
  for (std::uint32_t y = 0; y < 3; ++y)
    for (std::uint32_t x = 0; x < 4; ++x)
      rig.texel<float>(g, x, y) = static_cast<float>(10 * y + x + 1);
  const auto object = rig.objects.add(g);
  const std::vector<std::array<int, 4>> at{{0, 0, 0, 0},  {12, 2, 0, 0},   {16, 1, 0, 0},
                                           {-4, 2, 0, 0}, {400, -9, 0, 0}, {4, 3, 0, 0}};
  const auto out = rig.device.memory.allocate(at.size() * 16);
  LaunchResult r = rig.device.launch("bounds", Dim3{1}, Dim3{32}, object, rig.device.upload(at),
                                     out, static_cast<int>(at.size()));
  INFO(r.message);
  REQUIRE(r.ok());
  const auto got = rig.device.download<Float4>(out, at.size());
  CHECK(got[0] == Float4{1, 1, 0, 0});
  CHECK(got[1] == Float4{24, 24, 0, 0});
  CHECK(got[2] == Float4{14, 0, 0, 0});
  CHECK(got[3] == Float4{21, 0, 0, 0});
  CHECK(got[4] == Float4{4, 0, 0, 0});
  CHECK(got[5] == Float4{22, 0, 0, 0});
  for (std::uint32_t x = 0; x < 4; ++x)
    CHECK(rig.texel<float>(g, x, 0) == static_cast<float>(x + 1));

  r = rig.device.launch("trap", Dim3{1}, Dim3{1}, object, 16, 0, out);
  CHECK(r.status == LaunchStatus::kTrap);
  CHECK(r.message.find("access outside of it") != std::string::npos);
  r = rig.device.launch("trap", Dim3{1}, Dim3{1}, object, 2, 0, out);
  CHECK(r.status == LaunchStatus::kMisaligned);
}

TEST_CASE("ptx: what a texture can't be read with stops the launch", "[ptx][texture]") {
  Rig rig;
  Texture t;
  t.grid = rig.grid(TextureShape::k2D, TexelType::kF32, 1, 4, 4, 1);
  const auto object = rig.objects.add(t);
  const std::vector<Float4> at(1);
  const auto in = rig.device.upload(at);
  const auto out = rig.device.memory.allocate(16);
  const auto go = [&](const char* kernel, std::uint64_t handle) {
    return rig.device.launch(kernel, Dim3{1}, Dim3{1}, handle, in, out, 1);
  };
  LaunchResult r = go("sample_3d", object);
  CHECK(r.status == LaunchStatus::kIllegalInstruction);
  CHECK(r.message.find("is two-dimensional, the instruction's is three-dimensional") !=
        std::string::npos);
  r = go("sample_2d", 4711);
  CHECK(r.status == LaunchStatus::kIllegalInstruction);
  CHECK(r.message.find("texture object 0x1267 does not exist") != std::string::npos);
  CHECK(go("sample_2d", object).ok());
  rig.device.memory.unmap(t.grid.base);
  r = go("sample_2d", object);
  CHECK(r.status == LaunchStatus::kIllegalAddress);
  CHECK(r.address == t.grid.base);
  CHECK_FALSE(r.write);
}
