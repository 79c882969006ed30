// The rows of a box in the client's memory; linear memory is one row. Thread-safety: a value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interpose/api/range_extractors.h"

namespace olpager::forward {

struct Rows {
  std::byte* first = nullptr;
  uint64_t width = 0, pitch = 0, height = 0,
           layer = 0;  // bytes of a row, between rows, rows, bytes between layers
  uint64_t depth = 0;

  static Rows linear(void* memory, uint64_t bytes) {
    return {static_cast<std::byte*>(memory), bytes, bytes, 1, bytes, 1};
  }

  /// From the first byte to behind the last.
  uint64_t extent() const { return (depth - 1) * layer + (height - 1) * pitch + width; }
  /// True if that is more than addresses reach.
  bool isBeyondAddresses() const {
    constexpr uint64_t kMost = 1ull << 47;
    return height > kMost / pitch || api::extract::saturatingProduct(layer, depth) > kMost;
  }
  uint64_t bytes() const {
    return api::extract::saturatingProduct(width, api::extract::saturatingProduct(height, depth));
  }

  template <typename Each>
  void forEach(Each each) const {
    for (uint64_t z = 0; z < depth; ++z) {
      for (uint64_t y = 0; y < height; ++y) each(first + z * layer + y * pitch);
    }
  }

  /// True if a byte of [address, + count) is in a row: bytes between the rows are not.
  bool touch(uint64_t address, uint64_t count) const {
    const auto begin = reinterpret_cast<uint64_t>(first);
    if (begin >= address + count || address >= begin + extent()) return false;
    for (uint64_t z = 0; z < depth; ++z) {
      const uint64_t base = begin + z * layer;
      if (base >= address + count) continue;
      const uint64_t from = address > base ? address - base : 0;
      const uint64_t to = address + count - base;
      const uint64_t row = from / pitch;  // it, or the next one
      if (row < height && from < row * pitch + width) return true;
      if (row + 1 < height && (row + 1) * pitch < to) return true;
    }
    return false;
  }
};

}  // namespace olpager::forward
