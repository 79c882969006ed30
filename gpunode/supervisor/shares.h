// How a device's VRAM is divided among sessions. Pure function. Bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace olpager::gpunode {

struct Claim {
  uint64_t wanted = 0;         // what the session could use of it: what it has allocated, and some more
  uint64_t most = UINT64_MAX;  // that it may have
};

/// The budget of each. Who wants less than an equal share leaves the rest to the others, in equal parts; nobody's budget is below
/// an equal share (or its `most`), so that who has wanted little so far can use its share at once. What is used is thereby at most
/// `total`, once everybody is within its budget and wants what it said.
std::vector<uint64_t> shares(uint64_t total, std::span<const Claim> claims);

}  // namespace olpager::gpunode
