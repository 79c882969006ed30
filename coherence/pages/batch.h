// The directory's messages between two ends of a link: one record for each hop and peer, with runs
// of extents. A launch that needs a thousand extents sends one record, not a thousand.
//
//   record   groups
//   group    what its messages have in common: kind, mode, from, to, taker, ages (23 bytes); runs
//   run      extents in a row with one number and one content (24 bytes): what was allocated and
//            has moved together
//
// Messages come out in the order in which they went in.
//
// decode() is for bytes from elsewhere: it bounds everything that is used as an index, refuses
// messages that go the wrong way (a Yield to the home), and says why. Messages that the protocol
// excludes in an extent's state pass decode(): agent and home report them (kViolation).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "coherence/directory/types.h"

namespace olpager::pages {

/// Messages that one record has at most, and bytes; more are for the next.
inline constexpr size_t kMostMessages = 1u << 16;
inline constexpr size_t kMostBytes = 256u << 10;

/// As many of the messages, from the first, as one record takes; they are taken off the span. The
/// span is not empty.
std::vector<std::byte> encode(std::span<const directory::Message>& messages);
/// Appends the record's messages to `to`; where it is refused, none. There are extents below
/// `extents`.
Result<void> decode(std::span<const std::byte> record, directory::ExtentId extents,
                    std::vector<directory::Message>& to);

}  // namespace olpager::pages
