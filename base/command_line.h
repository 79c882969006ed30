// The command lines of our programs, all alike: --help in groups with examples, --version, and one
// line with status 2 for what is wrong. The line says what to do: for an unknown option or command
// it names the nearest known one.
//
// A program adds the rows of its table of options (options.h), and to app() what is an option of
// the command line alone, each with a group and a type that people know: SIZE, SECONDS, NUMBER,
// FILE, HOST:PORT. Thread-safety: one thread, at the start. Errors: std::bad_alloc, and what CLI11
// throws for a mistake of the program's.
#pragma once

#include <CLI/CLI.hpp>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"

namespace olpager::base {

struct Example {
  std::string command;
  std::string what;  // it does
};

class CommandLine {
 public:
  /// `usage`: what follows the program's name.
  CommandLine(const std::string& program, const std::string& what, const std::string& usage,
              const std::vector<Example>& examples);

  CLI::App& app() { return app_; }

  /// A repeated option is refused (lists add up instead), or the last one holds.
  enum class Again : uint8_t { kRefused, kHolds };
  /// An option for each row. The table outlives parse().
  void add(const OptionTable& table, Again again);
  /// --config, for a daemon whose file is `system_file` where none is named.
  void addFile(std::string_view system_file);
  /// After parse(): sets what the file has ("" is none, unless --config names one), then what was
  /// given on the command line. The Error names the option, or the file.
  Status read(OptionTable& table, std::string system_file);
  struct Given {
    const Option* option;
    std::string text;  // as fromCommandLine() has it
  };
  /// After parse(): the values given for rows. The Error names an option that was given nothing.
  Result<std::vector<Given>> given() const;

  /// A script that completes its words in a shell, "bash" or "zsh", from the same definitions as
  /// --help.
  std::string completion(const std::string& shell) const;

  /// Parses, and prints help, the version or the error. The exit status, or nothing where the
  /// program goes on.
  std::optional<int> parse(int argc, char** argv);
  /// The same; `rest` takes words that are no option and belong to none. Without it that is
  /// refused.
  std::optional<int> parse(std::vector<std::string> arguments,
                           std::vector<std::string>* rest = nullptr);

  /// One line with the program's name (and the command's that was parsed), and where more is told.
  /// Status 2.
  int refuse(const std::string& why) const;

 private:
  const CLI::App& deepest() const;
  std::string unexpected(const std::vector<std::string>& left) const;
  std::string mismatched(const std::string& told) const;

  struct Row {
    const Option* option;
    CLI::Option* parsed;
    std::string text;
  };

  CLI::App app_;
  std::list<Row> rows_;
  std::string config_;
};

/// For options with numbers: SECONDS, NUMBER. A text that is no number, or one beyond the
/// limits, is refused with what is allowed.
CLI::Validator numberBetween(double least, double most);
CLI::Validator wholeNumber(uint64_t least, uint64_t most = UINT64_MAX);
/// For options of bytes: "32MiB" becomes its number.
CLI::Validator sizeText();

}  // namespace olpager::base
