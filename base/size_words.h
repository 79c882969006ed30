// Wording for sizes that are refused. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace olpager::base {

/// "GB", "MiB", "bytes": what a size may end in.
bool isUnit(std::string_view word);

/// Why a size below a page is refused, without naming where it came from. A number without a unit,
/// and one that a space parts from its unit ("8 GB": two words), is told how it would have one.
Error belowPage(std::string_view text, uint64_t page_bytes);

}  // namespace olpager::base
