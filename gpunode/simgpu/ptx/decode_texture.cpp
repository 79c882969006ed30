// Decoding of texture reads and of surface loads and stores, by object: `[handle, {coordinates}]`.
#include <algorithm>
#include <array>

#include "gpunode/simgpu/ptx/decoder.h"

namespace olpager::simgpu::ptx {
namespace {

struct Geometry {
  std::string_view name;
  TextureShape shape;
  std::size_t coordinates;  ///< as they are written: a layer first, padded to 1, 2 or 4
};
// Cube maps, multi-sample textures and shapes that only a `.texref` has are not here.
constexpr std::array<Geometry, 5> kGeometries{{{"1d", TextureShape::k1D, 1},
                                               {"2d", TextureShape::k2D, 2},
                                               {"3d", TextureShape::k3D, 4},
                                               {"a1d", TextureShape::kLayered1D, 2},
                                               {"a2d", TextureShape::kLayered2D, 4}}};

const Geometry* takeGeometry(Modifiers& mods) {
  const auto found =
      std::find_if(kGeometries.begin(), kGeometries.end(),
                   [&](const Geometry& geometry) { return mods.take(geometry.name); });
  return found == kGeometries.end() ? nullptr : &*found;
}

bool isLayered(TextureShape shape) {
  return shape == TextureShape::kLayered1D || shape == TextureShape::kLayered2D;
}

}  // namespace

// Sets r[4..8] of an Op: coordinates, layer, handle.
void FunctionDecoder::texturePlace(const Operand& where, TextureShape shape, std::size_t written,
                                   bool integer, std::uint32_t* regs) {
  if (where.kind != OperandKind::kAddress || where.reg < 0 || where.value != 0)
    fail("texture or surface object expected");
  if (where.items.size() != 1 || where.items[0].kind != OperandKind::kVector)
    unsupported();  // a sampler beside it
  if (function_.registers[static_cast<std::size_t>(where.reg)].type == Type::kPred ||
      typeSize(function_.registers[static_cast<std::size_t>(where.reg)].type) != 8) {
    fail("the object's register must have 64 bits");
  }
  const std::vector<Operand>& items = where.items[0].items;
  if (items.size() != written) fail("wrong number of coordinates");
  const std::size_t first = isLayered(shape) ? 1 : 0;
  const std::size_t count = shape == TextureShape::k3D                                        ? 3
                            : shape == TextureShape::k2D || shape == TextureShape::kLayered2D ? 2
                                                                                              : 1;
  for (std::size_t d = 0; d < count; ++d)
    regs[4 + d] = source(items[first + d], integer ? Type::kS32 : Type::kF32);
  if (first != 0) regs[7] = source(items[0], Type::kU32);
  regs[8] = slot(where.reg);
}

void FunctionDecoder::texture(Modifiers& mods) {
  TextureKind kind;
  kind.gather = instr_->parts[0] == "tld4";
  // Without mipmaps a level of detail, or what one is worked out from, changes nothing.
  const bool level = !kind.gather && mods.take("level");
  const bool gradient = !kind.gather && !level && mods.take("grad");
  if (kind.gather) {
    static constexpr std::array<std::string_view, 4> kChannels{"r", "g", "b", "a"};
    const auto channel = std::find_if(kChannels.begin(), kChannels.end(),
                                      [&](auto name) { return mods.take(name); });
    if (channel == kChannels.end()) unsupported();
    kind.channel = static_cast<std::uint32_t>(channel - kChannels.begin());
  }
  const Geometry* const geometry = takeGeometry(mods);
  if (geometry == nullptr || !mods.take("v4")) unsupported();
  kind.shape = geometry->shape;
  const Type result_type = mods.takeType();
  const Type coordinate_type = mods.takeType();
  finish(mods);
  if (result_type != Type::kF32 && result_type != Type::kS32 && result_type != Type::kU32)
    unsupported();
  if (coordinate_type != Type::kF32 && coordinate_type != Type::kS32) unsupported();
  kind.integer_coordinates = coordinate_type == Type::kS32;
  if (kind.gather && (kind.integer_coordinates || kind.shape == TextureShape::k1D ||
                      kind.shape == TextureShape::k3D || kind.shape == TextureShape::kLayered1D)) {
    unsupported();
  }
  const std::size_t expected = level ? 3 : gradient ? 4 : 2;
  if (operandCount() != expected) unsupported();  // offsets, depth compare
  const Operand& data = operand(0);
  // `{a, b, c, d}|p`: the predicate is the fifth.
  if (data.kind != OperandKind::kVector || data.items.size() < 4 || data.items.size() > 5) {
    fail("vector operand of the wrong size");
  }
  std::uint32_t regs[13] = {};
  for (std::uint32_t c = 0; c < 4; ++c) regs[c] = result(data.items[c], result_type);
  texturePlace(operand(1), kind.shape, geometry->coordinates, kind.integer_coordinates, regs);
  regs[9] = data.items.size() == 5 ? predicateResult(data.items[4]) : kNoTarget;
  Op& op = emit(textureOp());
  std::copy(std::begin(regs), std::end(regs), op.r);
  op.imm = kind.pack();
  finishResult();
}

void FunctionDecoder::surface(Modifiers& mods) {
  SurfaceKind kind;
  kind.store = instr_->parts[0] == "sust";
  if (!mods.take("b")) unsupported();  // .p converts between formats
  const Geometry* const geometry = takeGeometry(mods);
  if (geometry == nullptr) unsupported();
  kind.shape = geometry->shape;
  mods.takeAny({"ca", "cg", "cs", "cv", "wb", "wt"});
  kind.vector = mods.take("v2") ? 2 : mods.take("v4") ? 4 : 1;
  const Type type = mods.takeType();
  if (mods.take("clamp")) {
    kind.bounds = SurfaceBounds::kClamp;
  } else if (mods.take("zero")) {
    kind.bounds = SurfaceBounds::kZero;
  } else {
    mods.take("trap");
  }
  finish(mods);
  if (type != Type::kB8 && type != Type::kB16 && type != Type::kB32 && type != Type::kB64)
    unsupported();
  kind.element_bytes = typeSize(type);
  if (kind.element_bytes * kind.vector > 16) unsupported();
  expectOperands(2, 2);
  const Operand& where = operand(kind.store ? 0 : 1);
  const Operand& data = operand(kind.store ? 1 : 0);
  const bool braced = data.kind == OperandKind::kVector;
  if (braced ? data.items.size() != kind.vector : kind.vector != 1)
    fail("vector operand of the wrong size");
  // Bytes are held in registers of 16 bits.
  const Type held = type == Type::kB8 ? Type::kB16 : type;
  kind.reg_bytes = typeSize(held);
  std::uint32_t regs[13] = {};
  for (std::uint32_t v = 0; v < kind.vector; ++v) {
    const Operand& item = braced ? data.items[v] : data;
    regs[v] = kind.store ? source(item, held) : result(item, held);
  }
  texturePlace(where, kind.shape, geometry->coordinates, true, regs);
  Op& op = emit(surfaceOp());
  std::copy(std::begin(regs), std::end(regs), op.r);
  op.imm = kind.pack();
  finishResult();
}

}  // namespace olpager::simgpu::ptx
