// How a device's VRAM, and the machine's RAM, are divided among sessions. Pure functions. Bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace olpager::gpunode {

struct Claim {
  uint64_t wanted = 0;  // what the session could use of it: what it has allocated, and some more
  uint64_t most = UINT64_MAX;  // that it may have
};

/// The budget of each. A claim below an equal share leaves the rest to the others, in equal parts;
/// nobody's budget is below an equal share (or its `most`), so that a session that wanted little so
/// far can use its share at once. The sum in use is thereby at most `total`, once everybody is
/// within its budget and wants what it said.
std::vector<uint64_t> shares(uint64_t total, std::span<const Claim> claims);

/// A claim to host memory, which a session can't be made to give back: its pages may have no other
/// place.
struct HostClaim {
  uint64_t held = 0;           // what it can't give back
  uint64_t most = UINT64_MAX;  // that it may have
};

/// The limit of each: an equal part of `total`, and of what others may not have. A session that
/// holds more keeps that, and the others have less. The sum of what all hold and may have is at
/// most `total`, unless what is held is more.
std::vector<uint64_t> hostShares(uint64_t total, std::span<const HostClaim> claims);

}  // namespace olpager::gpunode
