#include "base/command_line.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string_view>

#include "base/format.h"
#include "base/nearest.h"
#include "base/size.h"
#include "base/size_words.h"
#include "base/text.h"
#include "base/version.h"

namespace olpager::base {
namespace {

constexpr size_t kWidth = 100, kColumn = 30;
constexpr const char* kLastGroup = "This program";
// Asked when packages are made; --help has no line for it.
constexpr const char* kCompletion = "--completion";

// `text` in lines of kWidth from the column on.
std::string wrapped(std::string_view text, size_t column) {
  std::string out;
  size_t at = column;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (at != column && at + 1 + space > kWidth) {
      out += "\n" + std::string(column, ' ');
      at = column;
    }
    if (at != column) {
      out += ' ';
      ++at;
    }
    out += text.substr(0, space);
    at += space;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out + "\n";
}

std::string row(const std::string& name, const std::string& text) {
  std::string out = "  " + name;
  // A name of which nothing is left to the column has a line of its own.
  out += out.size() + 2 > kColumn ? "\n" + std::string(kColumn, ' ')
                                  : std::string(kColumn - out.size(), ' ');
  return out + wrapped(text, kColumn);
}

class Help final : public CLI::Formatter {
 public:
  explicit Help(std::string usage) : usage_(std::move(usage)) {}

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    const bool whole = app->get_parent() == nullptr;
    std::string out = wrapped(app->get_description(), 0);
    out += base::format("\nUsage: {} {}\n", name, whole ? usage_ : "[OPTION...]");
    const auto commands =
        app->get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); });
    if (!commands.empty()) {
      out += "\nCommands:\n";
      for (const CLI::App* command : commands)
        out += row(command->get_name(), command->get_description());
    }
    std::vector<std::string> groups = app->get_groups();
    std::stable_partition(groups.begin(), groups.end(),
                          [](const auto& group) { return group != kLastGroup; });
    for (const std::string& group : groups) {
      const auto options =
          app->get_options([&group](const CLI::Option* one) { return one->get_group() == group; });
      if (group.empty() || options.empty()) continue;
      out += "\n" + group + ":\n";
      for (const CLI::Option* option : options) out += row(nameOf(*option), textOf(*option));
    }
    if (const std::string examples = app->get_footer(); !examples.empty()) out += "\n" + examples;
    return out;
  }

 private:
  static std::string nameOf(const CLI::Option& option) {
    const std::string type = option.get_type_size() != 0 ? option.get_type_name() : "";
    std::string name = option.get_name(false, true);
    name.resize(
        std::min(name.find('{'), name.size()));  // what a flag that takes something away would set
    return name + (type.empty() ? "" : " " + type);
  }
  static std::string textOf(const CLI::Option& option) {
    std::string text = option.get_description();
    if (option.get_required()) text += " (needed)";
    if (const auto given = option.get_default_str(); !given.empty())
      text += base::format(" (default: {})", given);
    return text;
  }

  const std::string usage_;
};

std::vector<std::string> optionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each = &app; each != nullptr; each = each->get_parent()) {
    for (const CLI::Option* option : each->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        if (!option->get_group().empty()) names.push_back("--" + name);
      }
    }
  }
  return names;
}

std::vector<std::string> commandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

template <typename Number>
bool isNumber(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

}  // namespace

CommandLine::CommandLine(const std::string& program, const std::string& what,
                         const std::string& usage, const std::vector<Example>& examples)
    : app_(what, program) {
  app_.formatter(std::make_shared<Help>(usage));
  app_.option_defaults()->group(kLastGroup);  // of --help, and of every command's
  app_.set_help_flag("-h,--help", "Print this, and end")->group(kLastGroup);
  app_.set_version_flag("--version", program + " " + kVersion, "Print the version, and end")
      ->group(kLastGroup);
  app_.allow_extras();  // told here, with what was meant
  std::string text = "Examples:\n";
  for (const auto& [command, does] : examples)
    text += base::format("  {}\n      {}", command, wrapped(does, 6));
  if (!examples.empty()) app_.footer(text);
}

void CommandLine::add(const OptionTable& table, Again again) {
  for (const Option& option : table.rows()) {
    Row& row = rows_.emplace_back(Row{&option, nullptr, {}});
    std::string help = option.help;
    if (!option.usual.empty()) help += base::format(" (default: {})", option.usual);
    row.parsed = app_.add_option(optionName(option), row.text, help)
                     ->type_name(option.type)
                     ->group(option.group);
    const bool holds = again == Again::kHolds;
    if (!option.table.empty() || (!holds && option.type.ends_with(",...")))
      row.parsed->multi_option_policy(CLI::MultiOptionPolicy::Join)->delimiter(',');
    else if (holds)
      row.parsed->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

void CommandLine::addFile(std::string_view system_file) {
  const std::string help = base::format(
      "A TOML file of these options (default: {}): keys as the options, with _ for -", system_file);
  app_.add_option("--config", config_, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("FILE")
      ->group("Settings");
}

Result<std::vector<CommandLine::Given>> CommandLine::given() const {
  std::vector<Given> all;
  for (const Row& row : rows_) {
    if (row.parsed->count() == 0) continue;
    const bool list = row.parsed->get_delimiter() == ',' && row.option->table.empty();
    if (row.text.empty())
      return Error{list ? givenNothing(optionName(*row.option), "none")
                        : givenNothing(optionName(*row.option))};
    all.push_back({row.option, fromCommandLine(*row.option, row.text)});
  }
  return all;
}

Status CommandLine::read(OptionTable& table, std::string system_file) {
  if (!config_.empty()) system_file = config_;
  if (!system_file.empty())
    if (auto status = table.readFile(system_file, !config_.empty()); !status.ok()) return status;
  const auto all = given();
  if (!all.ok()) return all.error();
  for (const Given& one : all.value())
    if (auto status = one.option->set(one.text); !status.ok())
      return Error{base::format("{}: {}", optionName(*one.option), status.error().message)};
  return {};
}

const CLI::App& CommandLine::deepest() const {
  const CLI::App* app = &app_;
  for (auto parsed = app->get_subcommands(); !parsed.empty(); parsed = app->get_subcommands())
    app = parsed.front();
  return *app;
}

int CommandLine::refuse(const std::string& why) const {
  const CLI::App& app = deepest();
  std::string command = app.get_name();
  for (const CLI::App* above = app.get_parent(); above != nullptr; above = above->get_parent())
    command.insert(0, above->get_name() + " ");
  const char* const tells = commandsOf(app).empty() ? "the options" : "the commands and options";
  base::print(stderr, "{}: {} ({} --help lists {})\n", command, why, command, tells);
  return 2;
}

std::string CommandLine::unexpected(const std::vector<std::string>& left) const {
  const CLI::App& app = deepest();
  // First: the options behind a command are the command's.
  const std::vector<std::string> commands = commandsOf(app);
  if (!commands.empty() && !left.front().starts_with('-'))
    return base::format("there is no command {}; there are: {}", printable(left.front()),
                        listed(byNearness(left.front(), commands)));
  const auto option =
      std::find_if(left.begin(), left.end(), [](const auto& one) { return one.starts_with('-'); });
  if (option != left.end()) {
    const std::string name = option->substr(0, option->find('='));
    return base::format("unknown option {}{}", printable(name), didYouMean(name, optionsOf(app)));
  }
  const std::string& word = left.front();
  if (isUnit(word))
    return base::format("'{}' belongs to no option; a size is one word, such as 8GiB",
                        printable(word));
  return base::format("'{}' belongs to no option{}", printable(word),
                      didYouMean(word, optionsOf(app)));
}

// `told` by CLI11: NAME and how many values it has.
std::string CommandLine::mismatched(const std::string& told) const {
  const std::string name = told.substr(0, told.find(':'));
  for (const CLI::App* app = &deepest(); app != nullptr; app = app->get_parent()) {
    const CLI::Option* const option = app->get_option_no_throw(name);
    if (option == nullptr) continue;
    const auto given = option->count();
    if (given > static_cast<size_t>(std::max(option->get_items_expected_max(), 1)))
      return base::format("{}: given {} times ({}); give it once", name, given,
                          listed(option->results()));
    return base::format("{}: its {} is missing; name it behind the option", name,
                        option->get_type_name());
  }
  return told;
}

// For zsh: the body of the function that its completion finds by the first line.
static std::string zshCompletion(const std::string& name, const std::string& words,
                                 const std::string& of_commands, const std::string& files,
                                 const std::string& values) {
  std::string out = base::format(
      "#compdef {0}\n# Made by {0} --completion zsh.\nlocal -i at\nlocal -a known=({1} )\n"
      "for ((at = 2; at < CURRENT; at++)); do\n  case $words[at] in\n",
      name, words);
  // The rest is the program to run, with its arguments.
  out += "    --) shift $at words; ((CURRENT -= at)); _normal; return ;;\n" + of_commands +
         "  esac\ndone\n";
  if (!files.empty() || !values.empty()) {
    out += "case $words[CURRENT-1] in\n";
    if (!files.empty()) out += base::format("  {}) _files; return ;;\n", files);
    if (!values.empty()) out += base::format("  {}) return 1 ;;\n", values);
    out += "esac\n";
  }
  return out + "compadd -a known\n";
}

std::string CommandLine::completion(const std::string& shell) const {
  const std::string& name = app_.get_name();
  const auto words = [](const CLI::App& app) {
    std::string list;
    for (const std::string& option : optionsOf(app)) list += " " + option;
    return list;
  };
  // Behind an option that takes a value: files where it names one, else nothing.
  std::string files, values;
  const auto sort = [&](const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_type_name().empty()) continue;
      std::string& kind =
          option->get_type_name().find("FILE") != std::string::npos ? files : values;
      for (const std::string& one : option->get_lnames())
        kind += (kind.empty() ? "--" : "|--") + one;
    }
  };
  const bool zsh = shell == "zsh";
  std::string commands, of_commands;
  sort(app_);
  for (const CLI::App* command : app_.get_subcommands([](const CLI::App*) { return true; })) {
    sort(*command);
    commands += " " + command->get_name();
    of_commands +=
        zsh ? base::format("    {}) known=({} ) ;;\n", command->get_name(), words(*command))
            : base::format("      {}) words='{}' ;;\n", command->get_name(), words(*command));
  }
  if (zsh) return zshCompletion(name, words(app_) + commands, of_commands, files, values);
  std::string out = base::format("# Made by {} --completion bash.\n", name);
  out += base::format(
      "_{}() {{\n  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} "
      "each words='{}{}'\n",
      name, words(app_), commands);
  out +=
      "  COMPREPLY=()\n  for each in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case $each in\n";
  // The rest is the program to run, with its arguments.
  out += "      --) COMPREPLY=($(compgen -c -f -- \"$word\")); return ;;\n" + of_commands +
         "    esac\n  done\n";
  if (!files.empty() || !values.empty()) {
    out += "  case $before in\n";
    if (!files.empty())
      out += base::format("    {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", files);
    if (!values.empty()) out += base::format("    {}) return ;;\n", values);
    out += "  esac\n";
  }
  out += base::format(
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}}\ncomplete -o filenames -F _{} {}\n",
      name, name);
  return out;
}

std::optional<int> CommandLine::parse(int argc, char** argv) {
  return parse(std::vector<std::string>(argv + 1, argv + argc));
}

std::optional<int> CommandLine::parse(std::vector<std::string> arguments,
                                      std::vector<std::string>* rest) {
  if (arguments.size() == 2 && arguments[0] == kCompletion &&
      (arguments[1] == "bash" || arguments[1] == "zsh")) {
    base::print(stdout, "{}", completion(arguments[1]));
    return 0;
  }
  std::reverse(arguments.begin(), arguments.end());
  std::string wrong;
  try {
    app_.parse(arguments);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app_.exit(asked);
  } catch (const CLI::ArgumentMismatch& failure) {
    wrong = mismatched(failure.what());
  } catch (const CLI::ParseError& failure) {
    wrong = failure.what();
  }
  // First: what an option that there is not was for may be missing elsewhere.
  const std::vector<std::string> left = app_.remaining(true);
  const bool taken = rest != nullptr && (left.empty() || !left.front().starts_with('-'));
  if (!left.empty() && !taken) return refuse(unexpected(left));
  if (app_.get_require_subcommand_min() > 0 && app_.get_subcommands().empty()) {
    return refuse("no command is given; there are: " + listed(commandsOf(app_)));
  }
  if (!wrong.empty()) return refuse(printable(wrong));
  if (rest != nullptr) *rest = left;
  return std::nullopt;
}

CLI::Validator numberBetween(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) {
        double number = 0;
        if (isNumber(text, number) && number >= least && number <= most) return std::string();
        return base::format("'{}' is not allowed; allowed: a number from {} to {}", printable(text),
                            least, most);
      },
      "");
}

CLI::Validator wholeNumber(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [=](std::string& text) {
        uint64_t number = 0;
        if (isNumber(text, number) && number >= least && number <= most) return std::string();
        return most == UINT64_MAX
                   ? base::format("'{}' is not allowed; allowed: a whole number, {} or more",
                                  printable(text), least)
                   : base::format("'{}' is not allowed; allowed: a whole number from {} to {}",
                                  printable(text), least, most);
      },
      "");
}

CLI::Validator sizeText() {
  return CLI::Validator(
      [](std::string& text) {
        const auto size = base::parseSize(text);
        if (!size.ok()) return size.error().message;
        text = std::to_string(size.value());
        return std::string();
      },
      "");
}

}  // namespace olpager::base
