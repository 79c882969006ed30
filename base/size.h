// Sizes as people write them: 8GiB, 64MiB, 16 TiB, 50%, plain bytes. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace olpager::base {

/// A size that the user gives: bytes, or a percentage of what there is. Neither: not given.
struct Budget {
  uint64_t bytes = 0;
  double percent = 0;
  bool given() const { return bytes != 0 || percent != 0; }
  bool operator==(const Budget&) const = default;
};

/// The forms that parseSize accepts, for messages.
inline constexpr std::string_view kSizeForms =
    "a number with KiB, MiB, GiB or TiB (such as 8GiB), or plain bytes";
inline constexpr std::string_view kBudgetForms =
    "a number with KiB, MiB, GiB or TiB (such as 8GiB), a percentage (such as 50%), or plain bytes";

/// Bytes. Units are powers of 1024: K, KB, KiB and so on up to T, in any case, fractions allowed
/// (1.5GiB); without a unit bytes, decimal or 0x hexadecimal. The Error says what is wrong with the
/// text, without naming where it came from.
Result<uint64_t> parseSize(std::string_view text);

/// As parseSize, or a percentage above 0 and up to 100. "0" is refused: it would mean "not given".
Result<Budget> parseBudget(std::string_view text);

/// The largest unit that leaves at most two decimals of use: "8GiB", "1.5MiB", "512B".
std::string formatSize(uint64_t bytes);

/// As parseSize reads it back, exactly: "8GiB", "1536KiB", "513".
std::string exactSize(uint64_t bytes);

/// "50%" or exactSize; "" when not given.
std::string exactBudget(const Budget& budget);

}  // namespace olpager::base
