#include "base/locate.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/catch.h"

using namespace olpager::base;
namespace fs = std::filesystem;

namespace {
struct Tree {
  fs::path root;
  Tree() {
    char name[] = "/tmp/ol-locate-XXXXXX";
    root = mkdtemp(name);
  }
  ~Tree() { fs::remove_all(root); }
  std::string file(const std::string& path) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << "x";
    return (root / path).string();
  }
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
  CHECK(locateLinkFolder(olrun) == (tree.root / "interpose/olpager-lib").string());
}

TEST_CASE("libraries are found below an installation's prefix", "[base][locate]") {
  Tree tree;
  const auto olrun = tree.file("bin/olrun");
  const auto library = tree.file("lib/libolpager.so");
  tree.file("lib/olpager/libcuda.so.1");
  CHECK(locateLibrary(olrun, "libolpager.so") == library);
  CHECK(locateLinkFolder(olrun) == (tree.root / "lib/olpager").string());
}

TEST_CASE("a library above neither is not taken", "[base][locate]") {
  Tree tree;
  tree.file("interpose/libolpager.so");
  CHECK(locateLibrary(tree.file("somewhere/olrun"), "libolpager.so").empty());
}
