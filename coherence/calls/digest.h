// SHA-256, by which bytes that were sent once are named. Thread-safety: pure function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace olpager::calls {

using Digest = std::array<uint8_t, 32>;

/// False: it can't be had (no memory); `digest` is zeros then.
bool digestOf(std::span<const std::byte> bytes, Digest& digest);

}  // namespace olpager::calls
