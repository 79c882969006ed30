// Text from elsewhere in our own lines. Pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace olpager::base {

/// Nothing in it reaches a log or a terminal as more than text of one line: printable ASCII, '?'
/// for all else.
inline std::string printable(std::string_view text) {
  std::string plain(text);
  std::replace_if(
      plain.begin(), plain.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return plain;
}

/// Why an option without a value is refused: most often it is a variable that is not set.
inline std::string givenNothing(std::string_view option,
                                std::string_view instead = "what it is to be") {
  return std::string(option) + " is given nothing; leave it out, or say " + std::string(instead);
}

}  // namespace olpager::base
