// What of an extent has to cross a wire: the 64 KiB blocks whose hashes differ from those of the
// bytes that the receiver still has. A frame that was given away keeps its bytes (Retained) and
// their hashes; the pass that looks at what leaves makes those of the giver.
//
// Equal hash is taken for equal bytes, as everywhere in the pager (pager/kernels/hash_and_scan.h:
// 128 bits, accidental equality only). Pure functions over plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace olpager::pages {

inline constexpr size_t kPageBytes = size_t{2} << 20;
inline constexpr size_t kBlockBytes = size_t{64} << 10;
inline constexpr size_t kBlocks = kPageBytes / kBlockBytes;

struct Hash {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash&) const = default;
};

/// Of one page of 2 MiB: its own hash, and those of its blocks where they have been made.
struct PageHashes {
  Hash page;
  std::array<Hash, kBlocks> blocks{};
  bool of_blocks = false;
};

/// A part of an extent to fetch.
struct Piece {
  uint64_t offset = 0, bytes = 0;
  bool operator==(const Piece&) const = default;
};

/// What differs between the pages that are kept and those that are wanted, in order, pieces that
/// touch joined. `kept` may be shorter, or empty: nothing is kept of the rest. Pieces that are less
/// than `gap` bytes apart are joined as well: a transfer of its own costs more than those bytes.
inline std::vector<Piece> differing(std::span<const PageHashes> kept,
                                    std::span<const PageHashes> wanted, uint64_t gap = 0) {
  std::vector<Piece> pieces;
  const auto add = [&](uint64_t offset, uint64_t bytes) {
    if (!pieces.empty() && offset - (pieces.back().offset + pieces.back().bytes) <= gap) {
      pieces.back().bytes = offset + bytes - pieces.back().offset;
    } else {
      pieces.push_back({offset, bytes});
    }
  };
  for (size_t p = 0; p < wanted.size(); ++p) {
    const uint64_t at = p * kPageBytes;
    if (p < kept.size() && kept[p].page == wanted[p].page) continue;
    if (p >= kept.size() || !kept[p].of_blocks || !wanted[p].of_blocks) {
      add(at, kPageBytes);
      continue;
    }
    for (size_t b = 0; b < kBlocks; ++b) {
      if (kept[p].blocks[b] != wanted[p].blocks[b]) add(at + b * kBlockBytes, kBlockBytes);
    }
  }
  return pieces;
}

}  // namespace olpager::pages
