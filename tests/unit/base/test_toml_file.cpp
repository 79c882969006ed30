#include "base/toml_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager::base;

namespace {

struct File {
  olpager::test::TemporaryFolder folder;
  std::string path;
  explicit File(const std::string& text) : path(folder.write("file.toml", text)) {}
  std::string failure() const {
    const auto read = readTomlFile(path, true);
    return read.ok() ? "" : read.error().message;
  }
};

}  // namespace

TEST_CASE("a file's keys are told with their places, values as texts", "[base][toml]") {
  using Kind = TomlEntry::Kind;
  const File file(
      "text = 'a b'\nnumber = -16\nflag = true\nlist = ['a', 'b']\nmixed = ['a', 2]\nnothing = []\n"
      "fraction = 1.5\nnested = [[1]]\n[table]\ninside = 'x'\n");
  const auto read = readTomlFile(file.path, true);
  REQUIRE(read.ok());
  const auto& entries = read.value();
  REQUIRE(entries.size() == 9);
  const auto find = [&](const char* key) {
    for (const TomlEntry& entry : entries)
      if (entry.key == key) return entry;
    FAIL("no key " << key);
    return TomlEntry();
  };
  const auto check = [&](const char* key, Kind kind, int line, const char* text) {
    INFO(key);
    const TomlEntry entry = find(key);
    CHECK(entry.kind == kind);
    CHECK(entry.place == file.path + ":" + std::to_string(line));
    CHECK(entry.text == text);
  };
  check("text", Kind::kText, 1, "a b");
  check("number", Kind::kNumber, 2, "-16");
  check("flag", Kind::kFlag, 3, "on");
  check("list", Kind::kList, 4, "a,b");
  check("mixed", Kind::kList, 5, "a,2");
  check("nothing", Kind::kList, 6, "");
  check("fraction", Kind::kOther, 7, "");
  check("nested", Kind::kOther, 8, "");
  check("table", Kind::kTable, 9, "");
  CHECK(find("list").texts_only);
  CHECK_FALSE(find("mixed").texts_only);
  CHECK(find("fraction").type == "floating-point");
  REQUIRE(find("table").inside.size() == 1);
  CHECK(find("table").inside[0].key == "inside");
  CHECK(find("table").inside[0].place == file.path + ":10");
}

TEST_CASE("what can't be read is an error, what is not there only where it has to be",
          "[base][toml]") {
  const File file("");
  REQUIRE(readTomlFile(file.path, true).ok());
  CHECK(readTomlFile(file.path, true).value().empty());
  CHECK(readTomlFile(file.path + ".none", false).value().empty());
  CHECK(readTomlFile(file.path + "/below", false).value().empty());
  CHECK(readTomlFile(file.path + ".none", true).error().message ==
        file.path + ".none: can't be read: No such file or directory");
  // A folder can be opened.
  CHECK(readTomlFile(file.folder.path, false).error().message ==
        file.folder.path + ": can't be read: Is a directory");
  const std::string fifo = file.path + ".fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(readTomlFile(fifo, false).error().message ==
        fifo + ": is no file but a device, FIFO or socket");
  unlink(fifo.c_str());
}

TEST_CASE("a text without quotes is told so", "[base][toml]") {
  CHECK(File("\n size = 8GiB # all\n")
            .failure()
            .ends_with("file.toml:2: size = 8GiB: a text needs quotes: size = \"8GiB\""));
  for (const char* text :
       {"size = \n", "size = 1__2\n", "size = \"8GiB\n", "size = [8GiB]\n", "size\n", "= 3\n"}) {
    INFO(text);
    const std::string failure = File(text).failure();
    CHECK(failure.find("file.toml:") != std::string::npos);
    CHECK(failure.find("needs quotes") == std::string::npos);
    CHECK(failure.find('\n') == std::string::npos);
  }
}
