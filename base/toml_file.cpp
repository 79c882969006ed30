#include "base/toml_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string_view>

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "base/fd.h"
#include "base/format.h"
#include "base/text.h"

namespace olpager::base {
namespace {

// All that is left in `file`. False: errno says why not.
bool readAll(int file, std::string& into) {
  constexpr size_t kMostBytes = 1 << 20;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(file, buffer, sizeof buffer);
    if (got == 0) return true;
    if (into.size() > kMostBytes) {
      errno = EFBIG;
      return false;
    }
    if (got < 0 && errno != EINTR) return false;
    if (got > 0) into.append(buffer, static_cast<size_t>(got));
  }
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Finds the mistake that users make most. For a file that is no TOML because of its line `number`
// (from 1): where a text there lacks its quotes (vram = 8GiB), what it should be; else "".
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
  // A value that begins like a string, an array or a table has another fault.
  if (key.empty() || value.empty() || value.find_first_of("\"'[]{}") != std::string_view::npos)
    return {};
  // So has what needs no quotes.
  if (value == "true" || value == "false" || value.starts_with("0x") ||
      value.find_first_not_of("0123456789+-_.") == std::string_view::npos) {
    return {};
  }
  return base::format("{} = {}: a text needs quotes: {} = \"{}\"", printable(key), printable(value),
                      printable(key), printable(value));
}

// A text or an integer as text. False: neither.
bool plainText(const toml::node& node, std::string& into) {
  if (auto text = node.value_exact<std::string>()) {
    into = std::move(*text);
    return true;
  }
  const auto number = node.value_exact<int64_t>();
  if (number) into = std::to_string(*number);
  return number.has_value();
}

std::vector<TomlEntry> entriesOf(const toml::table& table, const std::string& path);

TomlEntry entryOf(std::string_view key, const toml::node& node, const std::string& path) {
  using Kind = TomlEntry::Kind;
  TomlEntry entry;
  entry.key = key;
  entry.place = base::format("{}:{}", path, node.source().begin.line);
  std::ostringstream type;
  type << node.type();
  entry.type = type.str();
  if (const toml::table* const table = node.as_table()) {
    entry.kind = Kind::kTable;
    entry.inside = entriesOf(*table, path);
  } else if (const toml::array* const list = node.as_array()) {
    entry.kind = Kind::kList;
    entry.texts_only = true;
    for (const toml::node& element : *list) {
      std::string text;
      if (!plainText(element, text)) {
        entry.kind = Kind::kOther;
        entry.text.clear();
        break;
      }
      entry.texts_only &= element.is_string();
      entry.text += (entry.text.empty() ? "" : ",") + text;
    }
  } else if (const auto flag = node.value_exact<bool>()) {
    entry.kind = Kind::kFlag;
    entry.text = *flag ? "on" : "off";
  } else if (plainText(node, entry.text)) {
    entry.kind = node.is_string() ? Kind::kText : Kind::kNumber;
  }
  return entry;
}

std::vector<TomlEntry> entriesOf(const toml::table& table, const std::string& path) {
  std::vector<TomlEntry> entries;
  for (const auto& [key, node] : table) entries.push_back(entryOf(key.str(), node, path));
  return entries;
}

}  // namespace

Result<std::vector<TomlEntry>> readTomlFile(const std::string& path, bool must) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && !must && (errno == ENOENT || errno == ENOTDIR)) return std::vector<TomlEntry>();
  std::string text;
  struct stat about {};
  const bool known = file && fstat(file.get(), &about) == 0;
  if (known && S_ISCHR(about.st_mode) && about.st_rdev == makedev(1, 3))
    return std::vector<TomlEntry>();  // /dev/null
  if (known && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode))
    return Error{
        base::format("{}: is no file but a device, FIFO or socket", path)};  // which may never end
  // A file of another user's home or of root that we may not read is no setting of ours, but it was
  // meant to be one.
  if (!file || !readAll(file.get(), text))
    return Error{base::format("{}: can't be read: {}", path, std::strerror(errno))};
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    const auto line = parsed.error().source().begin.line;
    std::string why = unquotedValue(text, line);
    if (why.empty()) why = printable(parsed.error().description());
    return Error{base::format("{}:{}: {}", path, line, why)};
  }
  return entriesOf(parsed.table(), path);
}

}  // namespace olpager::base
