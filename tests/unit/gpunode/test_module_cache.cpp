// Images that are kept by their hash: what comes out is what went in, whatever lies in the folder.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "gpunode/worker/module_cache.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using olpager::calls::Digest;
using olpager::calls::digestOf;
using olpager::gpunode::ModuleCache;
using olpager::test::TemporaryFolder;
using Bytes = std::vector<std::byte>;

Bytes image(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes made(bytes);
  for (auto& byte : made) byte = static_cast<std::byte>(random());
  return made;
}
Digest digest(const Bytes& bytes) {
  Digest made{};
  REQUIRE(digestOf(bytes, made));
  return made;
}
size_t files(const std::string& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}
fs::path fileIn(const std::string& folder) { return fs::directory_iterator(folder)->path(); }

}  // namespace

TEST_CASE("an image comes back by its hash, also to another session of the key", "[cache]") {
  const TemporaryFolder folder;
  ModuleCache cache, later;
  REQUIRE(cache.open(folder.path + "/key-a", 1 << 20).ok());
  const Bytes one = image(5000, 1);
  CHECK(!cache.find(digest(one)));
  cache.store(one);
  REQUIRE(cache.find(digest(one)));
  REQUIRE(later.open(folder.path + "/key-a", 1 << 20).ok());
  REQUIRE(later.find(digest(one)));
  CHECK(*later.find(digest(one)) == one);
  cache.store(one);
  CHECK(files(folder.path + "/key-a") == 1);
}

TEST_CASE("another key's images are not found", "[cache]") {
  const TemporaryFolder folder;
  ModuleCache one, other;
  REQUIRE(one.open(folder.path + "/key-a", 1 << 20).ok());
  REQUIRE(other.open(folder.path + "/key-b", 1 << 20).ok());
  one.store(image(100, 2));
  CHECK(!other.find(digest(image(100, 2))));
}

TEST_CASE("a file that holds something else is not given out, and goes", "[cache]") {
  const TemporaryFolder folder;
  ModuleCache cache;
  const std::string place = folder.path + "/key-a";
  REQUIRE(cache.open(place, 1 << 20).ok());
  const Bytes one = image(1000, 3);
  cache.store(one);
  const fs::path file = fileIn(place);
  SECTION("other bytes") { std::ofstream(file, std::ios::binary) << "something else"; }
  SECTION("cut") { fs::resize_file(file, 999); }
  SECTION("longer") { fs::resize_file(file, 1001); }
  SECTION("another one's") {
    const Bytes two = image(1000, 4);
    cache.store(two);
    for (const auto& entry : fs::directory_iterator(place)) {
      if (entry.path() != file)
        fs::copy_file(entry.path(), file, fs::copy_options::overwrite_existing);
    }
  }
  CHECK(!cache.find(digest(one)));
  CHECK(!fs::exists(file));
  cache.store(one);
  REQUIRE(cache.find(digest(one)));
}

TEST_CASE("a link in the folder is not followed", "[cache]") {
  const TemporaryFolder folder;
  ModuleCache cache;
  const std::string place = folder.path + "/key-a";
  REQUIRE(cache.open(place, 1 << 20).ok());
  const Bytes one = image(1000, 5);
  cache.store(one);
  const fs::path file = fileIn(place);
  fs::rename(file, folder.path + "/elsewhere");
  fs::create_symlink(folder.path + "/elsewhere", file);
  CHECK(!cache.find(digest(one)));
}

TEST_CASE("what was not used for longest goes first", "[cache]") {
  const TemporaryFolder folder;
  ModuleCache cache;
  const std::string place = folder.path + "/key-a";
  REQUIRE(cache.open(place, 10'000).ok());
  std::vector<Bytes> images;
  for (uint32_t i = 0; i < 3; ++i) {
    images.push_back(image(3000, 10 + i));
    cache.store(images[i]);
    usleep(20'000);  // the file system's clock has steps
  }
  REQUIRE(cache.find(digest(images[0])));
  usleep(20'000);
  const Bytes more = image(3000, 20);
  cache.store(more);
  CHECK(cache.find(digest(images[0])));
  CHECK(!cache.find(digest(images[1])));
  CHECK(cache.find(digest(images[2])));
  CHECK(cache.find(digest(more)));
  const Bytes huge = image(10'001, 21);
  cache.store(huge);
  CHECK(!cache.find(digest(huge)));
  CHECK(files(place) == 3);
}

TEST_CASE("a folder that is open to others, or not there, is not used", "[cache]") {
  const TemporaryFolder folder;
  ModuleCache cache;
  REQUIRE(mkdir((folder.path + "/open").c_str(), 0755) == 0);
  REQUIRE(chmod((folder.path + "/open").c_str(), 0755) == 0);
  CHECK(cache.open(folder.path + "/open", 1000).error().message.find("others can get into it") !=
        std::string::npos);
  CHECK(!cache.open(folder.path + "/not/there", 1000).ok());
  fs::create_directory_symlink(folder.path, folder.path + "/link");
  CHECK(!cache.open(folder.path + "/link", 1000).ok());
  CHECK(!cache.isOpen());
  CHECK(!cache.find(Digest{}));
  cache.store(image(10, 1));
}
