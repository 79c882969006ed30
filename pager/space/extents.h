// How an allocation of a number of pages is cut into extents, the unit of mapping and migration: a
// body of extents of the largest size, then a tail by descending powers of two. Follows from the
// number of pages alone, so nothing is stored. Pure, constexpr, O(1) (no loop is longer than four
// rounds).
#pragma once

#include <bit>
#include <cstdint>

#include "base/space/pages.h"

namespace olpager::space {

/// 32 MiB: the mapping cost follows the number of extents, and 32 MiB is where a swap loop reaches
///    the link's rate.
inline constexpr uint32_t kLargestExtentPages = 16;
/// 128 MiB, of an arena that is much larger than VRAM: what is in place there is mapped, too, and
/// drivers take up to a millisecond for that, whatever the extent's size.
inline constexpr uint32_t kLargestArenaExtentPages = 64;

/// One extent of an allocation.
struct Extent {
  uint32_t index = 0;       // in the allocation
  uint64_t first_page = 0;  // in the allocation
  uint32_t pages = 0;       // a power of two
  bool operator==(const Extent&) const = default;
};

/// Largest extent of an allocation of `pages` pages: 32 MiB; 8 MiB for allocations up to 16 MiB; 2
/// MiB below 4 MiB.
constexpr uint32_t largestExtentPages(uint64_t pages) {
  if (pages < 2) return 1;
  if (pages <= 8) return 4;
  return kLargestExtentPages;
}

/// Number of extents of an allocation of `pages` pages. `largest`: a power of two, at most
/// kLargestArenaExtentPages; 1 for memory that moves page by page.
constexpr uint32_t extentCount(uint64_t pages, uint32_t largest) {
  return static_cast<uint32_t>(pages / largest) +
         static_cast<uint32_t>(std::popcount(pages % largest));
}
constexpr uint32_t extentCount(uint64_t pages) {
  return extentCount(pages, largestExtentPages(pages));
}

/// The extent that holds page `page` (< pages).
constexpr Extent extentOfPage(uint64_t pages, uint64_t page, uint32_t largest) {
  const uint64_t body = pages - pages % largest;
  if (page < body) {
    const uint64_t index = page / largest;
    return {static_cast<uint32_t>(index), index * largest, largest};
  }
  // The tail's extents are the set bits of `rest`, descending. Page `offset` < rest lies in the one
  // of the highest bit in which the two differ: above it they agree (earlier extents, all passed),
  // and there rest has 1 and offset has 0.
  const auto rest = static_cast<uint32_t>(pages - body);
  const auto offset = static_cast<uint32_t>(page - body);
  const auto bit = (static_cast<uint32_t>(std::bit_width(rest ^ offset)) - 1) & 31;
  const uint32_t passed = rest >> (bit + 1);
  return {static_cast<uint32_t>(body / largest) + static_cast<uint32_t>(std::popcount(passed)),
          body + (static_cast<uint64_t>(passed) << (bit + 1)), 1u << bit};
}
constexpr Extent extentOfPage(uint64_t pages, uint64_t page) {
  return extentOfPage(pages, page, largestExtentPages(pages));
}

/// Extent number `index` (< extentCount).
constexpr Extent extentAt(uint64_t pages, uint32_t index, uint32_t largest) {
  const uint64_t body = pages - pages % largest;
  const auto body_extents = static_cast<uint32_t>(body / largest);
  if (index < body_extents) return {index, static_cast<uint64_t>(index) * largest, largest};
  auto rest = static_cast<uint32_t>(pages - body);
  uint64_t first = body;
  for (uint32_t i = body_extents; i < index; ++i) {
    const uint32_t top = std::bit_floor(rest);
    first += top;
    rest -= top;
  }
  return {index, first, std::bit_floor(rest)};
}
constexpr Extent extentAt(uint64_t pages, uint32_t index) {
  return extentAt(pages, index, largestExtentPages(pages));
}

/// Calls `visitor(const Extent&)` for each extent, ascending.
template <typename Visitor>
constexpr void splitIntoExtents(uint64_t pages, uint32_t largest, Visitor&& visitor) {
  const uint32_t count = extentCount(pages, largest);
  for (uint32_t i = 0; i < count; ++i) visitor(extentAt(pages, i, largest));
}
template <typename Visitor>
constexpr void splitIntoExtents(uint64_t pages, Visitor&& visitor) {
  splitIntoExtents(pages, largestExtentPages(pages), static_cast<Visitor&&>(visitor));
}

}  // namespace olpager::space
