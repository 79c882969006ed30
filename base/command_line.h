// The command lines of our programs, all alike: --help in groups with examples, --version, and one
// line with status 2 for what is wrong. It says what to do: an option or a command that there is
// not names the nearest that there is.
//
// A program adds its options to app(), each with a group and a type that people know: SIZE,
// SECONDS, NUMBER, FILE, HOST:PORT. Thread-safety: one thread, at the start. Errors:
// std::bad_alloc, and what CLI11 throws for a mistake of the program's.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

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

  /// What completes its words in a shell, "bash" or "zsh", from the same definitions as --help.
  std::string completion(const std::string& shell) const;

  /// Parses, and says what there is to say. The exit status, or nothing where the program goes on.
  std::optional<int> parse(int argc, char** argv);
  /// The same; `rest`: who takes what is neither an option nor belongs to one. Without it that is
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

  CLI::App app_;
};

/// For options with numbers: SECONDS, NUMBER. What is none or lies beyond is refused with what is
/// allowed.
CLI::Validator numberBetween(double least, double most);
CLI::Validator wholeNumber(uint64_t least, uint64_t most = UINT64_MAX);
/// For options of bytes: "32MiB" becomes its number.
CLI::Validator sizeText();

}  // namespace olpager::base
