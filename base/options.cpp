#include "base/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "base/format.h"
#include "base/nearest.h"
#include "base/size_words.h"
#include "base/text.h"
#include "base/toml_file.h"

namespace olpager::base {
namespace {

constexpr std::string_view kSeveral = ",...";  // behind a type: values with commas between
constexpr std::string_view kNone = "none";

bool isList(const Option& option) { return option.type.ends_with(kSeveral); }

bool takesNumber(const Option& option) {
  constexpr std::string_view kNumbers[] = {"SIZE",    "SECONDS", "NUMBER", "NUMBER,...",
                                           "PERCENT", "ADDRESS", "NODE"};
  return std::find(std::begin(kNumbers), std::end(kNumbers), option.type) != std::end(kNumbers);
}

std::string replaced(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

// A file's value as text; none: it is of another type than the option's.
std::optional<std::string> valueOf(const TomlEntry& entry, const Option& option) {
  using Kind = TomlEntry::Kind;
  switch (entry.kind) {
    case Kind::kText:
      return entry.text;
    case Kind::kNumber:
      if (takesNumber(option) && !entry.text.starts_with('-')) return entry.text;
      break;
    case Kind::kFlag:
      if (option.type == "on|off") return entry.text;
      break;
    case Kind::kList:
      if (isList(option) && (entry.texts_only || takesNumber(option)))
        return entry.text.empty() ? std::string(kNone) : entry.text;
      break;
    case Kind::kTable:
    case Kind::kOther:
      break;
  }
  return std::nullopt;
}

std::string typesOf(const Option& option) {
  std::vector<std::string> types = {"a string"};
  if (takesNumber(option)) types.emplace_back("a number that is not negative");
  if (option.type == "on|off") types.emplace_back("true or false");
  if (isList(option))
    types.emplace_back(takesNumber(option) ? "an array of these" : "an array of strings");
  return option.table.empty() ? listedOr(types) : "a table";
}

// The whole of `text` as a number.
template <typename Number>
bool isNumber(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

}  // namespace

std::string optionName(const Option& option) { return "--" + replaced(option.key, '_', '-'); }

std::string variableName(const Option& option) {
  std::string name = "OL_";
  for (const char c : option.key)
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string absolutePath(const std::string& path) {
  std::error_code failure;
  const auto full = std::filesystem::absolute(path, failure);
  return failure ? path : full.lexically_normal().string();
}

std::string fromCommandLine(const Option& option, const std::string& text) {
  const std::string words = option.type + "|";
  const bool is_path = words.starts_with("FILE|") && text != kNone &&
                       words.find("|" + text + "|") == std::string::npos;
  return is_path && !text.empty() ? absolutePath(text) : text;
}

Error notAllowed(std::string_view text, std::string_view allowed) {
  return Error{base::format("'{}' is not allowed; allowed: {}", printable(text), allowed)};
}

std::string listedOr(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i)
    list += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return list;
}

const Option* OptionTable::find(std::string_view key) const {
  const std::string name = replaced(std::string(key), '-', '_');
  const auto row =
      std::find_if(rows_.begin(), rows_.end(), [&](const auto& each) { return each.key == name; });
  return row == rows_.end() ? nullptr : &*row;
}

std::vector<std::string> OptionTable::keys() const {
  std::vector<std::string> keys;
  for (const Option& row : rows_)
    if (row.group != kHidden) keys.push_back(row.table.empty() ? row.key : row.table);
  return keys;
}

Status OptionTable::set(std::string_view key, std::string_view text) const {
  const Option* const option = find(key);
  return option != nullptr ? option->set(text) : Error{unknownKey(key, keys())};
}

Status OptionTable::readFile(const std::string& path, bool must) {
  using Kind = TomlEntry::Kind;
  const auto entries = readTomlFile(path, must);
  if (!entries.ok()) return entries.error();
  std::string only;  // table
  for (const Option& row : rows_)
    if (!row.table.empty()) only = row.table;
  for (const TomlEntry& entry : entries.value()) {
    const auto named = std::find_if(rows_.begin(), rows_.end(), [&](const Option& row) {
      return !row.table.empty() && row.table == entry.key;
    });
    const bool tabled = named != rows_.end(), is_table = entry.kind == Kind::kTable;
    const Option* const option = tabled ? &*named : find(entry.key);
    if (option == nullptr)
      return Error{
          base::format("{}: {}", entry.place,
                       is_table ? unknownTable(entry.key, only) : unknownKey(entry.key, keys()))};
    if (is_table && !tabled)
      return Error{base::format("{}: [{}] makes a table, and {} is a setting; say {} = \"...\"",
                                entry.place, entry.key, entry.key, entry.key)};
    const auto set = [&](const std::string& place, const std::string& text) -> Status {
      if (const Status status = option->set(text); !status.ok())
        return Error{base::format("{}: {}: {}", place, entry.key, status.error().message)};
      return {};
    };
    Status status;
    if (is_table) {
      for (const TomlEntry& inside : entry.inside)
        if (status.ok()) status = set(inside.place, base::format("{}={}", inside.key, inside.text));
    } else if (const auto value = tabled ? std::nullopt : valueOf(entry, *option)) {
      status = set(entry.place, *value);
    } else {
      return Error{base::format("{}: {} is of type {}; allowed: {}", entry.place, entry.key,
                                entry.type, typesOf(*option))};
    }
    if (!status.ok()) return status;
    origins[option->key] = base::format("{}: {}", entry.place, option->key);
  }
  return {};
}

namespace setter {

Setter number(uint32_t& into, uint32_t least, uint32_t most) {
  return [=, &into](std::string_view text) -> Status {
    uint32_t value = 0;
    if (!isNumber(text, value) || value < least || value > most)
      return notAllowed(text, base::format("{} to {}", least, most));
    into = value;
    return {};
  };
}

Setter text(std::string& into) {
  return [&into](std::string_view text) -> Status {
    into = text;
    return {};
  };
}

Setter path(std::string& into, std::string allowed, std::string word) {
  return [=, &into](std::string_view text) -> Status {
    if (!text.starts_with('/') && (word.empty() || text != word)) return notAllowed(text, allowed);
    into = text;
    return {};
  };
}

Setter onOff(bool& into) {
  return [&into](std::string_view text) -> Status {
    const bool on = text == "on" || text == "true";
    if (!on && text != "off" && text != "false") return notAllowed(text, "on or off");
    into = on;
    return {};
  };
}

Setter percent(double& into) {
  return [&into](std::string_view text) -> Status {
    double value = 0;
    const std::string_view digits = text.substr(0, text.size() - (text.ends_with('%') ? 1 : 0));
    if (!isNumber(digits, value) || !(value > 0 && value <= 100))
      return notAllowed(text, "a percentage above 0 and up to 100");
    into = value;
    return {};
  };
}

Setter time(uint32_t& ms, uint32_t least_ms, uint32_t most_ms) {
  return [=, &ms](std::string_view text) -> Status {
    constexpr Word<double> kUnits[] = {
        {"h", 3'600'000}, {"min", 60'000}, {"s", 1000}, {"ms", 1}, {"", 1000}};
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
    double value = 0;
    for (const auto& each : kUnits)
      if (unit == each.word) value = number * each.value;
    if (error == std::errc() && value >= least_ms && value <= most_ms) {
      ms = static_cast<uint32_t>(value);
      return {};
    }
    const auto shown = [&](uint32_t bound) {
      const auto* unit_of = std::find_if(
          std::begin(kUnits), std::end(kUnits),
          [=](const auto& each) { return bound % static_cast<uint32_t>(each.value) == 0; });
      return base::format("{}{}", bound / static_cast<uint32_t>(unit_of->value), unit_of->word);
    };
    return notAllowed(text, base::format("a time from {} to {}, such as 30s, 500ms or 5min",
                                         shown(least_ms), shown(most_ms)));
  };
}

Setter size(uint64_t& into) {
  return [&into](std::string_view text) -> Status {
    const auto bytes = parseSize(text);
    if (!bytes.ok()) return bytes.error();
    if (bytes.value() == 0) return notAllowed(text, kSizeForms);
    if (bytes.value() < kSettingsPageBytes) return belowPage(text, kSettingsPageBytes);
    into = bytes.value();
    return {};
  };
}

Setter budget(Budget& into, std::string word) {
  return [&into, word = std::move(word)](std::string_view text) -> Status {
    if (!word.empty() && text == word) {
      into = {};
      return {};
    }
    const std::string more = word.empty() ? "" : "; or " + word;
    const auto budget = parseBudget(text);
    if (!budget.ok()) return Error{budget.error().message + more};
    if (budget.value().percent == 0 && budget.value().bytes < kSettingsPageBytes)
      return Error{belowPage(text, kSettingsPageBytes).message + more};
    into = budget.value();
    return {};
  };
}

Setter address(std::string& into, AddressUse use, uint16_t usual, std::string word) {
  return [=, &into, word = std::move(word)](std::string_view text) -> Status {
    const bool is_word = !word.empty() && text == word;
    if (const Status status = is_word ? Status() : checkAddress(text, use, usual); !status.ok())
      return word.empty() ? status : Error{status.error().message + "; or " + word};
    into = is_word ? "" : text;
    return {};
  };
}

Setter addresses(std::vector<std::string>& into, std::function<Status(std::string_view)> check,
                 std::string one, std::string more) {
  return [=, &into](std::string_view text) -> Status {
    std::vector<std::string> found;
    for (bool last = text == kNone && more.ends_with(kNone); !last;) {
      const size_t comma = text.find(',');
      const std::string_view each = text.substr(0, comma);
      if (const Status status = check(each); !status.ok())
        return Error{
            base::format("{}; several with commas between{}", status.error().message, more)};
      if (std::find(found.begin(), found.end(), each) != found.end())
        return Error{base::format("{} is named twice; each {} once", printable(each), one)};
      found.emplace_back(each);
      last = comma == std::string_view::npos;
      text.remove_prefix(last ? text.size() : comma + 1);
    }
    into = std::move(found);
    return {};
  };
}

Setter rails(std::vector<std::string>& into) {
  return [&into](std::string_view text) -> Status {
    auto rails = parseRails(text);
    if (!rails.ok()) return rails.error();
    into = std::move(rails).value();
    return {};
  };
}

Setter logLevel(LogLevel& into) { return parsed(into, parseLogLevel, kLogLevels); }

}  // namespace setter
}  // namespace olpager::base
