#include "tests/catch.h"
#include "tools/olrun/environment.h"

using olpager::tools::addFrameworkDefaults;
using olpager::tools::addLibraryFolder;
using olpager::tools::addPreload;
using olpager::tools::Environment;

TEST_CASE("our library comes before other preloads and after a sanitizer's runtime", "[olrun]") {
  const auto [before, after] = GENERATE(table<const char*, const char*>({
      {"", "/x/libolpager.so"},
      {"/a/libfoo.so", "/x/libolpager.so:/a/libfoo.so"},
      {"/a/libfoo.so /b/libbar.so", "/x/libolpager.so:/a/libfoo.so:/b/libbar.so"},
      {"/x/libolpager.so:/a/libfoo.so", "/x/libolpager.so:/a/libfoo.so"},
      {"/usr/lib/libasan.so.8:/a/libfoo.so", "/usr/lib/libasan.so.8:/x/libolpager.so:/a/libfoo.so"},
      {"libclang_rt.tsan-x86_64.so", "libclang_rt.tsan-x86_64.so:/x/libolpager.so"},
  }));
  Environment environment({std::string("LD_PRELOAD=") + before});
  REQUIRE(addPreload(environment, "/x/libolpager.so").ok());
  CHECK(environment.get("LD_PRELOAD") == after);
}

TEST_CASE("our folder comes first in the library path, which never gets an empty element",
          "[olrun]") {
  Environment environment({"LD_LIBRARY_PATH=:/a::/b:"});
  REQUIRE(addLibraryFolder(environment, "/x").ok());
  CHECK(environment.get("LD_LIBRARY_PATH") == "/x:/a:/b");
  Environment empty({});
  REQUIRE(addLibraryFolder(empty, "/x").ok());
  CHECK(empty.get("LD_LIBRARY_PATH") == "/x");
}

TEST_CASE("paths that the variables can't hold are refused", "[olrun]") {
  Environment environment({});
  CHECK_FALSE(addPreload(environment, "/my libs/libolpager.so").ok());
  CHECK_FALSE(addLibraryFolder(environment, "/a:b").ok());
}

TEST_CASE("frameworks are told what suits them, unless the user has said how", "[olrun]") {
  Environment environment(
      {"XLA_PYTHON_CLIENT_PREALLOCATE=true", "TF_FORCE_GPU_ALLOW_GROWTH=", "PATH=/bin"});
  const std::vector<std::string> added = addFrameworkDefaults(environment, false);
  CHECK(added == std::vector<std::string>{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"});
  CHECK(environment.get("XLA_PYTHON_CLIENT_PREALLOCATE") == "true");
  CHECK(environment.has("TF_FORCE_GPU_ALLOW_GROWTH"));
  CHECK(environment.get("TF_FORCE_GPU_ALLOW_GROWTH").empty());
  CHECK(environment.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "cuda_async");
  CHECK_FALSE(environment.has("NCCL_P2P_LEVEL"));
  CHECK(addFrameworkDefaults(environment, false).empty());
  CHECK(addFrameworkDefaults(environment, true) == std::vector<std::string>{"NCCL_P2P_LEVEL=SYS"});
}
