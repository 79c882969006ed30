// Figures in few columns. Pure functions.
#pragma once

#include <cstddef>
#include <string>

namespace olpager::tools {

/// "12.3G"
std::string bytesText(double bytes);
/// "[####....]"
std::string bar(double part, double whole, size_t width);
/// The time of day.
std::string clockText();

}  // namespace olpager::tools
