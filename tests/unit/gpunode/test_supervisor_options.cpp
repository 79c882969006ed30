// Options of olgpunode in its file.
#include <fstream>

#include "gpunode/supervisor/options.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager;
using namespace olpager::gpunode;

TEST_CASE("a file of options means what the command line does", "[options]") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path + "/olgpunode.toml";
  const auto read = [&](SupervisorOptions& options, const char* text) {
    std::ofstream(path, std::ios::trunc) << text;
    const Status status = optionsOf(options).readFile(path, true);
    return status.ok() ? std::string() : status.error().message;
  };
  SupervisorOptions options;
  CHECK(read(options, "vram = '32MiB'\nkey_sessions = 1\nconfine = false\ndevice = [0, 2]\n")
            .empty());
  CHECK(options.vram.bytes == 32ull << 20);
  CHECK(options.key_sessions == 1);
  CHECK(!options.confine);
  CHECK(options.devices == std::vector<uint32_t>{0, 2});
  CHECK(read(options, "\nvram = 8GiB\n") ==
        path + ":2: vram = 8GiB: a text needs quotes: vram = \"8GiB\"");
  CHECK(read(options, "vram = 'much'\n").starts_with(path + ":1: vram: "));
  const std::string unknown = read(options, "\nkey_sesions = 3\n");
  CHECK(unknown.starts_with(
      path + ":2: unknown key 'key_sesions'; allowed, the nearest first: key_sessions, "));
  const base::OptionTable table = optionsOf(options);
  for (const auto& row : table.rows()) CHECK(unknown.find(" " + row.key) != std::string::npos);
  CHECK(read(options, "ports = '7100-7163'\n")
            .starts_with(path + ":1: unknown key 'ports'"));  // an earlier version's
  CHECK(read(options, "[gpu]\nvram = 1\n").starts_with(path + ":1: unknown table 'gpu'"));
  CHECK(read(options, "[vram]\nhost = 1\n")
            .starts_with(path + ":1: [vram] makes a table, and vram is a setting"));
  CHECK(optionsOf(options).readFile(folder.path, false).error().message ==
        folder.path + ": can't be read: Is a directory");
  CHECK(optionsOf(options).readFile(path + ".none", false).ok());
  CHECK(!optionsOf(options).readFile(path + ".none", true).ok());
}
