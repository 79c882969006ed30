// What two workers of one program say to each other: messages of one size over their link. Each end checks all that the other says.
#pragma once

#include <cstdint>

#include "coherence/transport/regions.h"

namespace olpager::gpunode {

enum class PeerSays : uint32_t {
  kOffer = 1,  // bytes [at, + bytes) of the copy are at `offset` of the sender's region, to be read from there
  kTaken,      // the offer at `at` was read: its region is the other end's again
  kOver,       // the sender of this has given the copy up
};

struct PeerMessage {
  PeerSays says = PeerSays::kOver;
  uint32_t reserved = 0;
  uint64_t copy = 0;  // the client's number
  uint64_t at = 0, bytes = 0;
  uint64_t offset = 0;
  transport::RemoteKey region;
};
static_assert(sizeof(PeerMessage) == 64);

}  // namespace olpager::gpunode
