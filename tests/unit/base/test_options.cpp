// One table: what files may have, what is told of what is wrong, and what setters take.
#include "base/options.h"

#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager;
using namespace olpager::base;

namespace {

struct Values {
  uint64_t bytes = 0;
  uint32_t ms = 0, number = 0;
  bool on = false;
  std::vector<std::string> names;
  std::string path, text;
};

Status anyName(std::string_view) { return {}; }

OptionTable optionsOf(Values& v) {
  return OptionTable({
      {"some_bytes", "Group", "SIZE", "Bytes", "none", setter::size(v.bytes)},
      {"wait", "Group", "SECONDS", "Time", "", setter::time(v.ms, 2000, 3'600'000)},
      {"many", kHidden, "NUMBER", "Number", "", setter::number(v.number, 1, 8)},
      {"active", "Group", "on|off", "Flag", "", setter::onOff(v.on)},
      {"names", "Group", "NAME,...", "Names", "",
       setter::addresses(v.names, anyName, "name", "; or none")},
      {"path", "Group", "FILE|sim", "Path", "", setter::path(v.path, "a path, or sim", "sim")},
      {"of_name", "Group", "NAME=SIZE", "By name", "", setter::text(v.text), "of_names"},
  });
}

std::string told(const Status& status) { return status.ok() ? "" : status.error().message; }

}  // namespace

TEST_CASE("an option, a key and a variable have one name", "[base][options]") {
  Values values;
  const OptionTable table = optionsOf(values);
  CHECK(optionName(table.rows()[0]) == "--some-bytes");
  CHECK(variableName(table.rows()[0]) == "OL_SOME_BYTES");
  CHECK(table.find("some-bytes") == &table.rows()[0]);
  CHECK(table.find("other") == nullptr);
}

TEST_CASE("a file has values of an option's type", "[base][options]") {
  const test::TemporaryFolder folder;
  Values values;
  OptionTable table = optionsOf(values);
  const auto read = [&](const char* text) {
    const std::string path = folder.write("a.toml", text);
    std::string line = told(table.readFile(path, true));
    return line.starts_with(path) ? line.substr(path.size()) : line;
  };
  CHECK(read("some_bytes = 4194304\nwait = 3\nmany = 8\nactive = true\nnames = ['a', 'b']\n"
             "path = 'sim'\n[of_names]\nanna = '1GiB'\n")
            .empty());
  CHECK(values.bytes == 4194304);
  CHECK(values.ms == 3000);
  CHECK(values.number == 8);
  CHECK(values.on);
  CHECK(values.names == std::vector<std::string>{"a", "b"});
  CHECK(values.path == "sim");
  CHECK(values.text == "anna=1GiB");
  CHECK(table.origins.at("wait").ends_with("a.toml:2: wait"));
  CHECK(read("names = []\n").empty());
  CHECK(values.names.empty());
  CHECK(read("\nsome_bytes = true\n") ==
        ":2: some_bytes is of type boolean; allowed: a string or a number that is not negative");
  CHECK(read("active = 1\n") ==
        ":1: active is of type integer; allowed: a string or true or false");
  CHECK(read("names = ['a', 2]\n") ==
        ":1: names is of type array; allowed: a string or an array of strings");
  CHECK(read("of_names = 'x'\n") == ":1: of_names is of type string; allowed: a table");
  CHECK(read("[path]\na = 1\n") ==
        ":1: [path] makes a table, and path is a setting; say path = \"...\"");
  CHECK(read("[others]\na = 1\n") ==
        ":1: unknown table 'others'; the only one is [of_names]: all else is KEY = VALUE above it, "
        "in no table");
  CHECK(read("may = 1\n") ==
        ":1: unknown key 'may'; allowed, the nearest first: wait, path, "
        "names, active, of_names, some_bytes");
}

TEST_CASE("what a setter refuses it tells with what is allowed", "[base][options]") {
  Values values;
  const OptionTable table = optionsOf(values);
  const auto set = [&](const char* key, const char* text) { return told(table.set(key, text)); };
  CHECK(set("wait", "1.5min").empty());
  CHECK(values.ms == 90'000);
  CHECK(set("wait", "1s") ==
        "'1s' is not allowed; allowed: a time from 2s to 1h, such as 30s, 500ms or 5min");
  CHECK(set("many", "9") == "'9' is not allowed; allowed: 1 to 8");
  CHECK(set("active", "maybe") == "'maybe' is not allowed; allowed: on or off");
  CHECK(set("path", "x") == "'x' is not allowed; allowed: a path, or sim");
  CHECK(set("names", "a,a") == "a is named twice; each name once");
  CHECK(set("some_bytes", "8").starts_with("'8' means bytes, less than one page (2MiB)"));
  CHECK(set("oher", "1").starts_with("unknown key 'oher'"));
}
