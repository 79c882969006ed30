// olctl: what nodes need before they talk to each other. So far: keys.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "base/format.h"
#include "coherence/transport/trust/keys.h"

namespace {

using namespace olpager;

// `command`: as far as it was understood.
int refuse(const std::string& command, const std::string& why) {
  base::print(stderr, "{}: {}\n", command, why);
  return 2;
}

int run(int argc, char** argv) {
  CLI::App app("Prepares nodes to trust each other.", "olctl");
  app.set_version_flag("--version", std::string("olctl ") + OLPAGER_VERSION);
  app.require_subcommand(1);
  std::string name, out;
  auto* keygen = app.add_subcommand("keygen", "Makes a key: one file for all nodes that trust each other by it");
  keygen->add_option("--name", name, "What daemons call it in their logs and figures")->required();
  keygen->add_option("--out", out, "The file to make; mode 0600, never an existing one")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const std::string command = keygen->parsed() ? "olctl keygen" : "olctl";
    const auto left = app.remaining(true);
    const bool unknown = !keygen->parsed() && !left.empty();
    return refuse(command, base::format("{} ({} --help lists {})",
                                        unknown ? base::format("there is no command {}", left.front()) : error.what(),
                                        command, keygen->parsed() ? "the options" : "the commands"));
  }
  if (const auto status = transport::createKeyFile(out, name); !status.ok())
    return refuse("olctl keygen", status.error().message);
  base::print(
      "{}: key {}. Copy it to the other nodes over a way that you trust, and keep it readable for its owner only.\n",
      out, name);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "olctl: %s\n", failure.what());
    return 2;
  }
}
