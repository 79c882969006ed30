#include "base/locate.h"

#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager::base;

namespace {

struct Tree : olpager::test::TemporaryFolder {
  std::string file(const std::string& name) const { return write(name, "x"); }
};
}  // namespace

TEST_CASE("libraries are found in the build tree", "[base][locate]") {
  Tree tree;
  tree.file("build.ninja");
  const auto olrun = tree.file("tools/olrun");
  CHECK(locateLibrary(olrun, "libolpager.so").empty());
  const auto library = tree.file("interpose/libolpager.so");
  const auto sim = tree.file("gpunode/simgpu/libolsimcuda.so");
  tree.file("interpose/olpager-lib/libcuda.so.1");
  CHECK(locateLibrary(olrun, "libolpager.so") == library);
  CHECK(locateLibrary(library, "libolsimcuda.so") == sim);
  CHECK(locateLinkFolder(olrun) == tree.path + "/interpose/olpager-lib");
}

TEST_CASE("libraries are found below an installation's prefix", "[base][locate]") {
  Tree tree;
  const auto olrun = tree.file("bin/olrun");
  const auto link = tree.file("lib/olpager/libcuda.so.1");
  CHECK(locateLibrary(olrun, "libolpager.so") == link);
  const auto library = tree.file("lib/olpager/libolpager.so");
  CHECK(locateLibrary(olrun, "libolpager.so") == library);
  CHECK(locateLibrary(olrun, "libolsimcuda.so").empty());
  CHECK(locateLinkFolder(olrun) == tree.path + "/lib/olpager");
}

TEST_CASE("a library above neither is not taken", "[base][locate]") {
  Tree tree;
  tree.file("interpose/libolpager.so");
  CHECK(locateLibrary(tree.file("somewhere/olrun"), "libolpager.so").empty());
}
