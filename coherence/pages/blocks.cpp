#include "coherence/pages/blocks.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace olpager::pages {

BlockHashes hashBlocks(const void* page) {
  BlockHashes hashes;
  const auto* const bytes = static_cast<const std::byte*>(page);
  for (size_t b = 0; b < kBlocks; ++b) {
    const XXH128_hash_t hash = XXH3_128bits(bytes + b * kBlockBytes, kBlockBytes);
    hashes[b] = {hash.low64, hash.high64};
  }
  return hashes;
}

std::vector<Piece> differing(const BlockHashes& kept, const BlockHashes& wanted) {
  std::vector<Piece> pieces;
  for (size_t b = 0; b < kBlocks; ++b) {
    if (kept[b] == wanted[b]) continue;
    const uint64_t offset = b * kBlockBytes;
    if (!pieces.empty() && pieces.back().offset + pieces.back().bytes == offset) {
      pieces.back().bytes += kBlockBytes;
    } else {
      pieces.push_back({offset, kBlockBytes});
    }
  }
  return pieces;
}

}  // namespace olpager::pages
