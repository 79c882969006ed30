// olctl as its users meet it: status 2 and one line that names the command for what is wrong.
#include <sys/stat.h>

#include <algorithm>

#include "tests/catch.h"
#include "tests/integration/tools/child.h"
#include "tests/temporary_folder.h"

using namespace olpager::test;

namespace {

void checkRefusal(std::vector<std::string> arguments, const std::string& begins,
                  const std::string& has) {
  arguments.insert(arguments.begin(), OLCTL);
  const Outcome outcome = runChild(arguments);
  INFO(outcome.err);
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.rfind(begins, 0) == 0);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(outcome.err.find(has) != std::string::npos);
}

}  // namespace

TEST_CASE("olctl's refusals name the command", "[olctl]") {
  const TemporaryFolder folder;
  const std::string key = folder.path + "/key";
  checkRefusal({}, "olctl: ", "olctl --help");
  checkRefusal({"genkey"}, "olctl: ", "no command genkey");
  checkRefusal({"keygen"}, "olctl keygen: ", "--name is required (olctl keygen --help");
  checkRefusal({"keygen", "--name", "a", "--out", key, "--mode", "4"}, "olctl keygen: ", "--mode");
  checkRefusal({"keygen", "--name", "a b", "--out", key}, "olctl keygen: ", "'a b' is no name");
  checkRefusal({"keygen", "--name", "a", "--out", folder.path + "/none/key"},
               "olctl keygen: ", "/none/key");
  const Outcome made = runChild({OLCTL, "keygen", "--name", "a", "--out", key});
  CHECK(made.status == 0);
  CHECK(made.err.empty());
  struct stat about {};
  REQUIRE(stat(key.c_str(), &about) == 0);
  CHECK((about.st_mode & 07777) == 0600);
  checkRefusal({"keygen", "--name", "a", "--out", key}, "olctl keygen: ", "File exists");
  CHECK(runChild({OLCTL, "keygen", "--help"}).out.find("--out") != std::string::npos);
}
