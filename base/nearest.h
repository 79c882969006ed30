// Suggests the nearest known name for an unknown one. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace olpager::base {

/// `known`, the nearest to `word` first; equally near ones in their order. Letters that are left
/// out, added, changed or exchanged count, dashes before a name and the case of letters don't. The
/// beginning of a name is near it.
std::vector<std::string> byNearness(std::string_view word, std::vector<std::string> known);

/// The one that is meant, as far as can be told; else "".
std::string nearest(std::string_view word, const std::vector<std::string>& known);

/// "; did you mean NAME?", or "" where none is near.
std::string didYouMean(std::string_view word, const std::vector<std::string>& known);

/// The message for an unknown key of a settings file: its nearest known one, and all known ones.
std::string unknownKey(std::string_view word, const std::vector<std::string>& known);
/// The same of a table. `only`: the one that the file may have; "": none.
std::string unknownTable(std::string_view word, std::string_view only = "");

}  // namespace olpager::base
