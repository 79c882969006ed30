// Bounds-checked reads of little-endian fields from untrusted bytes.
// Thread-safety: pure. Ownership: views only.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace olpager::fatbin {

using Bytes = std::span<const uint8_t>;

/// The `T` at byte `offset`, or nothing where it does not fit in.
template <typename T>
std::optional<T> readAt(Bytes bytes, uint64_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// `size` bytes from `offset`, or nothing where they do not fit in.
inline std::optional<Bytes> slice(Bytes bytes, uint64_t offset, uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) return std::nullopt;
  return bytes.subspan(offset, size);
}

}  // namespace olpager::fatbin
