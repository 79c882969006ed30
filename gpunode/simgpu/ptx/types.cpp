#include <unordered_map>

#include "gpunode/simgpu/ptx/ast.h"

namespace olpager::simgpu::ptx {

std::uint32_t typeSize(Type type) {
  switch (type) {
    case Type::kNone:
    case Type::kPred:
      return 0;
    case Type::kU8:
    case Type::kS8:
    case Type::kB8:
      return 1;
    case Type::kU16:
    case Type::kS16:
    case Type::kB16:
    case Type::kF16:
    case Type::kBF16:
      return 2;
    case Type::kU32:
    case Type::kS32:
    case Type::kB32:
    case Type::kF32:
    case Type::kF16x2:
    case Type::kBF16x2:
    case Type::kU16x2:
    case Type::kS16x2:
      return 4;
    case Type::kU64:
    case Type::kS64:
    case Type::kB64:
    case Type::kF64:
    case Type::kF32x2:
      return 8;
    case Type::kB128:
      return 16;
  }
  return 0;
}

bool isSigned(Type type) {
  return type == Type::kS8 || type == Type::kS16 || type == Type::kS32 || type == Type::kS64 ||
         type == Type::kS16x2;
}

bool isFloat(Type type) {
  return type == Type::kF16 || type == Type::kBF16 || type == Type::kF32 || type == Type::kF64 ||
         type == Type::kF16x2 || type == Type::kBF16x2 || type == Type::kF32x2;
}

Type typeFromName(std::string_view name) {
  static const auto& kTypes = *new std::unordered_map<std::string_view, Type>{
      {"pred", Type::kPred},   {"u8", Type::kU8},       {"s8", Type::kS8},
      {"b8", Type::kB8},       {"u16", Type::kU16},     {"s16", Type::kS16},
      {"b16", Type::kB16},     {"f16", Type::kF16},     {"bf16", Type::kBF16},
      {"u32", Type::kU32},     {"s32", Type::kS32},     {"b32", Type::kB32},
      {"f32", Type::kF32},     {"f16x2", Type::kF16x2}, {"bf16x2", Type::kBF16x2},
      {"u16x2", Type::kU16x2}, {"s16x2", Type::kS16x2}, {"u64", Type::kU64},
      {"s64", Type::kS64},     {"b64", Type::kB64},     {"f64", Type::kF64},
      {"f32x2", Type::kF32x2}, {"b128", Type::kB128},
  };
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? Type::kNone : found->second;
}

}  // namespace olpager::simgpu::ptx
