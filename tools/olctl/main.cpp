// olctl: what nodes need before they talk to each other. So far: keys.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "coherence/transport/trust/keys.h"

int main(int argc, char** argv) {
  CLI::App app("Prepares nodes to trust each other.", "olctl");
  app.set_version_flag("--version", std::string("olctl ") + OLPAGER_VERSION);
  app.require_subcommand(1);
  std::string name, out;
  auto* keygen = app.add_subcommand("keygen", "Makes a key: one file for all nodes that trust each other by it");
  keygen->add_option("--name", name, "What daemons call it in their logs and figures")->required();
  keygen->add_option("--out", out, "The file to make; mode 0600, never an existing one")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const auto status = olpager::transport::createKeyFile(out, name); !status.ok()) {
    fmt::print(stderr, "olctl: {}\n", status.error().message);
    return 2;
  }
  fmt::print(
      "{}: key {}. Copy it to the other nodes over a way that you trust, and keep it readable for its owner only.\n",
      out, name);
  return 0;
}
