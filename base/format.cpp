#define FMT_HEADER_ONLY  // here and in log.cpp only
#include "base/format.h"

#include <fmt/format.h>

namespace olpager::base {

std::string formatArguments(fmt::string_view text, fmt::format_args values) {
  return fmt::vformat(text, values);
}

void printArguments(std::FILE* file, fmt::string_view text, fmt::format_args values) {
  fmt::vprint(file, text, values);
}

}  // namespace olpager::base
