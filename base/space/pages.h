// Pages, and where the global range of addresses lies.
#pragma once

#include <cstdint>

namespace olpager::space {

inline constexpr unsigned kPageShift = 21;
inline constexpr uint64_t kPageBytes = 1ull << kPageShift;

/// The range's default place: the same in every process that takes part.
inline constexpr uint64_t kDefaultVaBase = 0x2A5D'0000'0000;
inline constexpr uint64_t kDefaultVaSize = 16ull << 40;

}  // namespace olpager::space
