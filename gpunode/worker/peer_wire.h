// Messages between two workers of one program over their link: they are of one size, behind some of
// which bytes follow. Each end checks all that the other says.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "coherence/pages/blocks.h"
#include "coherence/transport/regions.h"

namespace olpager::gpunode {

enum class PeerSays : uint32_t {
  kOffer = 1,  // bytes [at, + bytes) of the copy are at `offset` of the sender's region, to be read
               // from there
  kTaken,      // the offer at `at` was read: its region is the other end's again
  kOver,       // the sender of this has given the copy up
  kBytes,      // bytes [at, + bytes) of the copy follow: kInlineBytes at most, the last of it
  kPage,       // extent `at` is given by number `copy`: its `bytes` are at `offset` of the sender's
               // region, to be read from there (agent.h). If it says so, the hashes of its blocks
               // follow
};

/// The hashes that a kPage has beside the bytes' place: PeerMessage::hashed is a sum of these.
inline constexpr uint32_t kPageHashed = 1;    // their hash
inline constexpr uint32_t kBlocksHashed = 2;  // behind it, those of their blocks

/// Worth no reading: it would take a way there and back.
inline constexpr uint64_t kInlineBytes = 16 << 10;

struct PeerMessage {
  PeerSays says = PeerSays::kOver;
  uint32_t hashed = 0;  // of kPage
  uint64_t copy = 0;    // the client's number; of kPage the directory's
  uint64_t at = 0, bytes = 0;
  uint64_t offset = 0;
  transport::RemoteKey region;
  std::array<uint64_t, 2> hash{};
};
static_assert(sizeof(PeerMessage) == 80);

/// How many bytes follow the message; what is more than kInlineBytes no message has.
inline uint64_t bytesBehind(const PeerMessage& said) {
  if (said.says == PeerSays::kBytes) return said.bytes;
  const bool blocks = said.says == PeerSays::kPage && (said.hashed & kBlocksHashed) != 0;
  return blocks ? sizeof(pages::BlockHashes) : 0;
}

/// True if this is, or offers, what comes next of a copy of `bytes` of which `before` have come:
/// pieces of `piece` bytes, the last of what is left, each within the region that it names.
inline bool isNextOffer(const PeerMessage& offer, uint64_t bytes, uint64_t before, uint64_t piece) {
  if (before >= bytes || offer.at != before || offer.bytes != std::min(piece, bytes - before))
    return false;
  if (offer.says == PeerSays::kBytes) return offer.bytes <= kInlineBytes;
  return offer.bytes <= offer.region.length && offer.offset <= offer.region.length - offer.bytes;
}

}  // namespace olpager::gpunode
