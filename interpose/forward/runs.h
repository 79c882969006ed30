// What changed in memory of which both ends of a session have a copy: exactly the bytes that did, since the others may change at
// the other end at the same time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace olpager::forward {

/// Appends runs (u64 address, u64 length, at most 4 KiB of bytes) of what differs between `now`, which lies at `base`, and `agreed`; agreed on
/// after that.
inline void appendChanges(uint64_t base, const std::byte* now, std::span<std::byte> agreed,
                          std::vector<std::byte>& into) {
  constexpr size_t kGrain = 4096;
  const auto append = [&](const void* from, size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(from);
    into.insert(into.end(), begin, begin + bytes);
  };
  for (size_t grain = 0; grain < agreed.size(); grain += kGrain) {
    const size_t end = std::min(agreed.size(), grain + kGrain);
    if (std::memcmp(now + grain, agreed.data() + grain, end - grain) == 0) continue;
    for (size_t at = grain; at < end;) {
      if (now[at] == agreed[at]) {
        ++at;
        continue;
      }
      size_t stop = at;
      while (stop < end && now[stop] != agreed[stop]) {
        agreed[stop] = now[stop];
        ++stop;
      }
      const uint64_t address = base + at;
      const uint64_t length = stop - at;
      append(&address, sizeof address);
      append(&length, sizeof length);
      append(agreed.data() + at, length);
      at = stop;
    }
  }
}

}  // namespace olpager::forward
