// Figures in few columns. Pure functions.
#pragma once

#include <cstddef>
#include <string>

namespace olpager::tools {

/// "12.3G"
std::string bytesText(double bytes);
/// "3.2us"
std::string durationText(double nanoseconds);
/// A program chooses its own name: nothing in it may reach a terminal or a page as more than text.
std::string printableName(const char* name);
/// "[####....]"
std::string bar(double part, double whole, size_t width);
/// The time of day.
std::string clockText();

}  // namespace olpager::tools
