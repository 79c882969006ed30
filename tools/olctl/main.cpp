// olctl: what nodes need before they talk to each other. So far: keys.

#include <cstdio>
#include <exception>
#include <string>

#include "base/command_line.h"
#include "base/format.h"
#include "coherence/transport/trust/keys.h"

namespace {

using namespace olpager;

int run(int argc, char** argv) {
  base::CommandLine line(
      "olctl", "Prepares nodes to trust each other.", "COMMAND [OPTION...]",
      {{"olctl keygen --name anna --out anna.key", "makes a key, to be copied to the other nodes"},
       {"olctl keygen --name lab --out /etc/olpager/memserver.key", "a daemon's, as root"},
       {"olctl keygen --help", "tells the options of the command"}});
  line.app().require_subcommand(1);
  std::string name, out;
  auto* keygen = line.app().add_subcommand(
      "keygen", "Makes a key: one file for all nodes that trust each other by it");
  constexpr const char* kKey = "The key";
  keygen->add_option("--name", name, "What daemons call it in their logs and figures")
      ->required()
      ->type_name("NAME")
      ->group(kKey);
  keygen->add_option("--out", out, "The file to make; mode 0600, never an existing one")
      ->required()
      ->type_name("FILE")
      ->group(kKey);
  if (const auto status = line.parse(argc, argv)) return *status;
  if (const auto status = transport::createKeyFile(out, name); !status.ok()) {
    base::print(stderr, "olctl keygen: {}\n", status.error().message);
    return 2;
  }
  base::print(
      "{}: key {}. Copy it to the other nodes over a way that you trust, and keep it readable for "
      "its owner only.\n",
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
