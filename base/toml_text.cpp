#include "base/toml_text.h"

#include <fmt/format.h>

#include "base/text.h"

namespace olpager::base {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

std::string unquotedValue(std::string_view file, size_t number) {
  for (; number > 1; --number) {
    const size_t end = file.find('\n');
    if (end == std::string_view::npos) return {};
    file.remove_prefix(end + 1);
  }
  const std::string_view line = file.substr(0, file.find('\n'));
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) return {};
  const std::string_view key = trimmed(line.substr(0, equals));
  const std::string_view rest = line.substr(equals + 1);
  const std::string_view value = trimmed(rest.substr(0, rest.find('#')));
  // What begins like a string, an array or a table has another fault.
  if (key.empty() || value.empty() || value.find_first_of("\"'[]{}") != std::string_view::npos) return {};
  // So has what needs no quotes.
  if (value == "true" || value == "false" || value.starts_with("0x") ||
      value.find_first_not_of("0123456789+-_.") == std::string_view::npos) {
    return {};
  }
  return fmt::format("{} = {}: a text needs quotes: {} = \"{}\"", printable(key), printable(value), printable(key),
                     printable(value));
}

}  // namespace olpager::base
