// Figures in few columns. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace olpager::tools {

/// "12.3G"
std::string bytesText(double bytes);
/// "[####....]"
std::string bar(double part, double whole, size_t width);
/// The time of day.
std::string clockText();
/// Nothing in it reaches a terminal as more than text.
std::string printableText(std::string_view text);

}  // namespace olpager::tools
