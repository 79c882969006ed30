// A program's options: one table, from which the options of its command line and --help
// (command_line.h), the keys of its settings files, the OL_* variables and the words that a shell
// completes come.
//
// A table is made for one object: its rows refer to the object's members, which have to outlive it.
// Thread-safety: as that object's. Errors: one line that names the place, the value and what is
// allowed. Nothing throws but std::bad_alloc.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/address.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"

namespace olpager::base {

/// The least size of memory that a program can be given: a page of the pager's.
inline constexpr uint64_t kSettingsPageBytes = 2ull << 20;

/// Sets one value from text. The Error does not name where the text came from.
using Setter = std::function<Status(std::string_view)>;

/// In the place of a group: the option is for tests and comparisons. The option works, and no list
/// has it.
inline constexpr const char* kHidden = "";

struct Option {
  /// In a file, such as lease_time. The option is --lease-time, the variable OL_LEASE_TIME.
  std::string key;
  std::string group;  // of --help
  /// The value's type, as a word for people. The word decides what a file may have beside a text
  /// (an integer for SIZE, SECONDS, NUMBER, PERCENT, ADDRESS and NODE, a boolean for on|off, an
  /// array where the word ends in ",..."), and whether a shell completes names of files (FILE).
  std::string type;
  std::string help;
  std::string usual;  // the default, as --help shows it; "": none is shown
  Setter set;
  std::string table = {};  // not "": texts NAME=VALUE, in a file the table of this name
};

/// "--lease-time"
std::string optionName(const Option& option);
/// "OL_LEASE_TIME"
std::string variableName(const Option& option);
/// A value as a command line has it, where the path of a FILE may be a relative one. Words that the
/// type names behind the path (FILE|sim), and "none", stay as they are.
std::string fromCommandLine(const Option& option, const std::string& text);
/// From the working directory on; `path` itself where that can't be told.
std::string absolutePath(const std::string& path);

class OptionTable {
 public:
  explicit OptionTable(std::vector<Option> rows) : rows_(std::move(rows)) {}

  const std::vector<Option>& rows() const { return rows_; }
  /// nullptr: there is none. A dash is as good as an underscore.
  const Option* find(std::string_view key) const;

  /// The Error does not name where the text came from. One of a key that there is not names the
  /// keys that there are.
  Status set(std::string_view key, std::string_view text) const;
  /// Sets the values of a TOML file. One that is not there is an Error only where it `must` be.
  Status readFile(const std::string& path, bool must);

  /// The origin of each value, by key, as an Error names it.
  std::map<std::string, std::string, std::less<>> origins;

 private:
  std::vector<std::string> keys() const;

  std::vector<Option> rows_;
};

/// "'TEXT' is not allowed; allowed: ALLOWED"
Error notAllowed(std::string_view text, std::string_view allowed);
/// "a, b or c"
std::string listedOr(const std::vector<std::string>& names);

/// A word that somebody writes, and its value.
template <typename T>
struct Word {
  const char* word;
  T value;
};
/// "": none stands for `value`.
template <typename T>
const char* wordOf(std::initializer_list<Word<T>> words, T value) {
  for (const Word<T>& each : words)
    if (each.value == value) return each.word;
  return "";
}

/// Setters for most options. Each setter refers to what it sets.
namespace setter {

/// One of several words.
template <typename T>
Setter word(T& into, std::initializer_list<Word<std::type_identity_t<T>>> words) {
  return [&into, all = std::vector(words)](std::string_view text) -> Status {
    std::vector<std::string> names;
    for (const auto& each : all) {
      names.emplace_back(each.word);
      if (text != each.word) continue;
      into = each.value;
      return {};
    }
    return notAllowed(text, listedOr(names));
  };
}
/// Sets what `parse` makes of a text; without a result, the Error says `allowed`.
template <typename T, typename Parse>
Setter parsed(T& into, Parse parse, std::string_view allowed) {
  return [&into, parse, allowed](std::string_view text) -> Status {
    const auto value = parse(text);
    if (!value) return notAllowed(text, allowed);
    into = *value;
    return {};
  };
}
/// A whole number.
Setter number(uint32_t& into, uint32_t least, uint32_t most);
/// Any text.
Setter text(std::string& into);
/// An absolute path, or `word`.
Setter path(std::string& into, std::string allowed, std::string word = {});
Setter onOff(bool& into);
/// Up to 100.
Setter percent(double& into);
/// "500ms", "30s", "5min", "1h", or seconds.
Setter time(uint32_t& ms, uint32_t least_ms, uint32_t most_ms);
/// A page or more.
Setter size(uint64_t& bytes);
/// A page or more, or a percentage; `word`: none is given.
Setter budget(Budget& into, std::string word = {});
/// An address; `word`: "".
Setter address(std::string& into, AddressUse use, uint16_t usual, std::string word = {});
/// Addresses with commas between, each once. `check`: whether one is an address. `one`: what is
/// named; `more`: what else is allowed. "none" is an empty list where `more` says so.
Setter addresses(std::vector<std::string>& into, std::function<Status(std::string_view)> check,
                 std::string one, std::string more = {});
/// Addresses of RDMA cards.
Setter rails(std::vector<std::string>& into);
Setter logLevel(LogLevel& into);

}  // namespace setter
}  // namespace olpager::base
