// What users get wrong in our TOML files. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace olpager::base {

/// For a file that is no TOML because of its line `number` (from 1): where a text there lacks its quotes (vram = 8GiB), what
/// it should be, as one line; else "".
std::string unquotedValue(std::string_view file, size_t number);

}  // namespace olpager::base
