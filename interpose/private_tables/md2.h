// MD2 (RFC 1319) and HMAC-MD2 (RFC 2104 with MD2's 16-byte block): the CUDA runtime checks the
// driver's integrity message with it. No security rests on it here. Thread-safety: pure functions.
// Ownership: inputs are only read during the call. Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace olpager::interpose {

using Md2Digest = std::array<uint8_t, 16>;

/// The MD2 digest of `message`, of any length (bytes).
Md2Digest md2(std::span<const uint8_t> message);

/// HMAC-MD2 of `message` under a key of exactly one block.
Md2Digest hmacMd2(const std::array<uint8_t, 16>& key, std::span<const uint8_t> message);

}  // namespace olpager::interpose
