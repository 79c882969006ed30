// Encodes the changes of memory of which both ends of a session have a copy: exactly the bytes that
// changed, since the others may change at the other end at the same time.
//
// On the wire: a RunHead; if it is masked, a bit for each byte of the stretch, 8 to a byte, the
// lowest bit first; then the bytes. Thread-safety: functions of their arguments alone. The memory
// may change while it is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "forwarding/wire/wire.h"

namespace olpager::forward {

inline constexpr size_t kGrain = 4096;  // of what is compared; the longest run

struct RunHead {
  uint64_t address;
  uint32_t length;  // of the stretch, at most kGrain; its last byte is among those that follow
  uint32_t masked;  // 0: all of its bytes follow
};
static_assert(sizeof(RunHead) == 16);

/// Some or all bytes of a stretch of memory. The memory is the record's.
struct Run {
  uint64_t address = 0;
  uint64_t length = 0;
  std::span<const std::byte> mask;  // empty: all of them
  std::span<const std::byte> bytes;
  /// Into memory that has `length` bytes.
  void copyTo(std::byte* to) const;
  /// Calls visit(at, bytes) for each piece of it whose bytes all follow, `at` bytes into the
  /// stretch.
  void eachPiece(
      const std::function<void(size_t at, std::span<const std::byte> bytes)>& visit) const;
};

/// The next run; false: what is there is none, and the reader has failed.
bool readRun(Reader& reader, Run* run);

/// Appends runs of the differences between `now`, which is said to lie at `base`, and `agreed`;
/// agreed on after that.
void appendChanges(uint64_t base, const std::byte* now, std::span<std::byte> agreed,
                   std::vector<std::byte>& into);
/// The same of memory at `now` that the program may have unmapped or protected: of pages that can't
/// be read nothing changes.
void appendChangesUnlessGone(uint64_t base, uint64_t now, std::span<std::byte> agreed,
                             std::vector<std::byte>& into);

/// Whole runs, as many at a time as a call holds; once, with none, where there are none.
void eachPart(std::span<const std::byte> runs,
              const std::function<void(std::span<const std::byte> part)>& send);

}  // namespace olpager::forward
