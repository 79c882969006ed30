#include "base/nearest.h"

#include <algorithm>
#include <cctype>

#include "base/format.h"
#include "base/text.h"

namespace olpager::base {
namespace {

constexpr size_t kLongest = 64;  // of what is compared; it is somebody's text

std::string plain(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string text(name.substr(0, kLongest));
  for (char& c : text)
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The number of letters left out, added, changed, or exchanged with their neighbour (optimal string
// alignment).
size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> least(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      const size_t changed = a[i - 1] == b[j - 1] ? 0 : 1;
      least[i][j] =
          std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  }
  return least[a.size()][b.size()];
}

size_t distance(std::string_view word, std::string_view name) {
  constexpr size_t kTelling = 3;  // letters
  const std::string a = plain(word), b = plain(name);
  const size_t all = edits(a, b);
  const bool begins = a.size() >= kTelling && b.starts_with(a);
  return begins ? std::min<size_t>(all, 1) : all;
}

}  // namespace

std::vector<std::string> byNearness(std::string_view word, std::vector<std::string> known) {
  std::stable_sort(known.begin(), known.end(), [word](const auto& a, const auto& b) {
    return distance(word, a) < distance(word, b);
  });
  return known;
}

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  if (known.empty()) return "";
  std::string first = byNearness(word, known).front();
  const size_t longer = std::max(plain(word).size(), plain(first).size());
  return distance(word, first) <= std::max<size_t>(1, (longer + 1) / 3) ? first : "";
}

std::string didYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::string meant = nearest(word, known);
  return meant.empty() ? "" : base::format("; did you mean {}?", meant);
}

std::string unknownKey(std::string_view word, const std::vector<std::string>& known) {
  std::string list;
  for (const auto& name : byNearness(word, known)) list += (list.empty() ? "" : ", ") + name;
  return base::format("unknown key '{}'; allowed, the nearest first: {}", printable(word), list);
}

std::string unknownTable(std::string_view word, std::string_view only) {
  const std::string table = printable(word);
  if (only.empty())
    return base::format(
        "unknown table '{}'; settings are in no table: take the line [{}] out, and leave KEY = "
        "VALUE",
        table, table);
  return base::format(
      "unknown table '{}'; the only one is [{}]: all else is KEY = VALUE above it, in no table",
      table, only);
}

}  // namespace olpager::base
