// Finds the bytes of a page that have to cross a wire: the 64 KiB blocks whose hashes differ from
// those of the bytes that the receiver still has. The giver of a page makes the hashes of its
// blocks. The taker uses the hashes that it made when it gave the page away, or makes them now.
//
// Equal hash is taken for equal bytes, as everywhere in the pager: 128 bits of XXH3, accidental
// equality only. Pure functions over plain values, for any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace olpager::pages {

inline constexpr size_t kPageBytes = size_t{2} << 20;
inline constexpr size_t kBlockBytes = size_t{64} << 10;
inline constexpr size_t kBlocks = kPageBytes / kBlockBytes;

/// The most pages that their giver keeps, in case they come back.
inline constexpr uint64_t kMostKept = 64;

/// Hash of one block. As it crosses the wire between workers of one kind of processor.
struct BlockHash {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockHash&) const = default;
};
using BlockHashes = std::array<BlockHash, kBlocks>;

/// Hashes of the kPageBytes there. All of them are read: some 0.2 ms.
BlockHashes hashBlocks(const void* page);

/// A part of a page to fetch.
struct Piece {
  uint64_t offset = 0, bytes = 0;
  bool operator==(const Piece&) const = default;
};

/// The pieces where the wanted page differs from the kept one, in order, pieces that touch joined.
std::vector<Piece> differing(const BlockHashes& kept, const BlockHashes& wanted);

}  // namespace olpager::pages
