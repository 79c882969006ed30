// Ciphers, files and queues, each by itself.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <sstream>
#include <string>

#include "base/fd.h"
#include "base/log.h"
#include "base/memory_files.h"
#include "disk/cipher.h"
#include "tests/unit/disk/rig.h"

namespace olpager::disk::test {

TEST_CASE("a page is encrypted by key and number", "[parts]") {
  auto key = CipherKey::make(), other_key = CipherKey::make();
  REQUIRE(key.ok());
  REQUIRE(other_key.ok());
  auto made = PageCipher::make(*key.value()), other = PageCipher::make(*other_key.value());
  REQUIRE(made.ok());
  REQUIRE(other.ok());
  PageCipher& cipher = *made.value();
  Bytes plain(2 * kMiB), first(2 * kMiB), second(2 * kMiB), back(2 * kMiB);
  plain.fill(1);
  REQUIRE(cipher.encrypt(1, plain.base(), first.base(), plain.length()));
  REQUIRE(cipher.encrypt(2, plain.base(), second.base(), plain.length()));
  const auto equalWords = [](const Bytes& a, const Bytes& b) {
    const auto words = [](const Bytes& of) {
      return std::span(static_cast<const uint64_t*>(of.base()), of.length() / 8);
    };
    size_t equal = 0;
    for (size_t i = 0; i < words(a).size(); ++i) equal += words(a)[i] == words(b)[i];
    return equal;
  };
  CHECK(equalWords(plain, first) == 0);
  CHECK(equalWords(first, second) == 0);
  REQUIRE(cipher.decrypt(1, first.base(), back.base(), back.length()));
  CHECK(back.holds(1));
  REQUIRE(cipher.decrypt(2, first.base(), back.base(), back.length()));
  CHECK(equalWords(plain, back) == 0);
  REQUIRE(other.value()->decrypt(1, first.base(), back.base(), back.length()));
  CHECK(equalWords(plain, back) == 0);
  REQUIRE(cipher.decrypt(2, second.base(), second.base(), second.length()));  // in place
  CHECK(second.holds(1));
}

// Mappings of this process with all of `flags`, as smaps has them.
static size_t mappingsWith(std::initializer_list<std::string> flags) {
  std::ifstream smaps("/proc/self/smaps");
  size_t found = 0;
  for (std::string line; std::getline(smaps, line);)
    found += line.starts_with("VmFlags:") &&
             std::all_of(flags.begin(), flags.end(), [&](const std::string& flag) {
               return line.find(" " + flag) != std::string::npos;
             });
  return found;
}

TEST_CASE("a key is in no core dump and in no child", "[parts]") {
  const auto count = [] { return mappingsWith({"dd", "wf"}); };
  const size_t before = count();
  {
    auto key = CipherKey::make();
    REQUIRE(key.ok());
    CHECK(count() == before + 1);
  }
  CHECK(count() == before);
}

// Lines that are logged while `body` runs.
template <typename Body>
static std::string linesOf(const Body& body) {
  TemporaryFolder folder;
  const std::string path = folder.write("log", "");
  const base::UniqueFd to(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  base::setLogDescriptor(to.get());
  body();
  base::setLogDescriptor(STDERR_FILENO);
  std::stringstream lines;
  lines << std::ifstream(path).rdbuf();
  return lines.str();
}

TEST_CASE("a folder in RAM is told of", "[parts]") {
  const base::UniqueFd folder(open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || !base::isInMemory(folder.get())) {
    WARN("/dev/shm is no tmpfs here");
    return;
  }
  const std::string lines = linesOf([] { CHECK(openNameless({"/dev/shm", 4 * kMiB}).ok()); });
  CHECK(lines.find("disk: the file system of /dev/shm is in RAM") != std::string::npos);
}

TEST_CASE("a file has no name and nobody else's rights", "[parts]") {
  TemporaryFolder folder;
  auto opened = openNameless({folder.path, 64 * kMiB});
  REQUIRE(opened.ok());
  CHECK(std::filesystem::is_empty(folder.path));
  struct stat is {};
  REQUIRE(fstat(opened.value().get(), &is) == 0);
  CHECK(is.st_nlink == 0);
  CHECK((is.st_mode & 077) == 0);
  CHECK(is.st_size == 64 * kMiB);
  CHECK(is.st_blocks == 0);
  CHECK((fcntl(opened.value().get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a folder that can't be used is named", "[parts]") {
  TemporaryFolder folder;
  const auto refused = openTier({.folders = {{folder.path + "/none", 4 * kMiB}}});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.find(folder.path + "/none: No such file") != std::string::npos);
}

TEST_CASE("pages go to the file that is least full", "[parts]") {
  TemporaryFolder a, b;
  Files files;
  REQUIRE(files.open({{a.path, 16 * kMiB}, {b.path, 8 * kMiB}}).ok());
  CHECK(files.capacity(1) == 12);
  const auto some = files.take(6, 1);
  REQUIRE(some);
  const auto of = [](const std::vector<Place>& places, uint32_t file) {
    return std::count_if(places.begin(), places.end(),
                         [&](const Place& place) { return place.file == file; });
  };
  CHECK(of(*some, 0) == 4);
  CHECK(of(*some, 1) == 2);
  CHECK_FALSE(files.take(7, 1));
  CHECK(files.used() == 6);
  const auto more = files.take(6, 1);
  REQUIRE(more);
  std::set<std::pair<uint32_t, uint32_t>> different;
  for (const auto* places : {&*some, &*more})
    for (const Place& place : *places) different.emplace(place.file, place.page);
  CHECK(different.size() == 12);
  CHECK_FALSE(files.take(1, 1));
  files.give(*some);
  CHECK(files.used() == 6);

  SECTION("a full disk takes what was written before, and more after a while") {
    std::vector<Place> written = *more;
    for (Place& place : written) place.has_room = true;
    files.give(written);
    files.full(0, 1);
    files.full(1, 1);
    CHECK(files.capacity(2) == 6);
    const auto again = files.take(6, 2);
    REQUIRE(again);
    for (const Place& place : *again) CHECK(place.has_room);
    CHECK_FALSE(files.take(1, 2));
    CHECK(files.take(6, 2'000'000'000));
  }
  SECTION("a broken one takes nothing") {
    files.broken(0);
    const uint64_t used = files.used();
    const auto rest = files.take(2, 1);
    REQUIRE(rest);
    CHECK(of(*rest, 1) == 2);
    CHECK_FALSE(files.take(1, 1));
    CHECK(files.capacity(1) == used + 2);
  }
}

TEST_CASE("queues move what they are told", "[parts]") {
  TemporaryFolder folder;
  auto opened = openNameless({folder.path, 16 * kMiB});
  REQUIRE(opened.ok());
  std::unique_ptr<IoQueue> queue;
  if (GENERATE(true, false)) {
    auto ring = makeUringQueue(4);
    if (!ring.ok()) {
      WARN("no io_uring here: " << ring.error().message);
      return;
    }
    queue = std::move(ring).value();
  } else {
    queue = makeBlockingQueue(4);
  }
  constexpr uint32_t kBytes = 2 * kMiB;
  std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, 4 * kBytes)), &std::free);
  const auto all = [&](bool write) {
    for (unsigned i = 0; i < 4; ++i)
      queue->begin({.fd = opened.value().get(),
                    .write = write,
                    .offset = (3 - i) * uint64_t{kBytes},
                    .memory = memory.get() + i * kBytes,
                    .bytes = kBytes,
                    .tag = i});
    std::set<uint64_t> ended;
    while (ended.size() < 4) {
      std::vector<IoEnd> some;
      queue->wait(some);
      REQUIRE_FALSE(some.empty());
      for (const IoEnd& end : some) {
        CHECK(end.result == kBytes);
        CHECK(ended.insert(end.tag).second);
      }
    }
  };
  for (unsigned i = 0; i < 4; ++i) std::memset(memory.get() + i * kBytes, 'a' + i, kBytes);
  all(true);
  std::memset(memory.get(), 0, 4 * kBytes);
  all(false);
  for (unsigned i = 0; i < 4; ++i) {
    CHECK(memory.get()[i * kBytes] == std::byte('a' + i));
    CHECK(memory.get()[(i + 1) * kBytes - 1] == std::byte('a' + i));
  }
  queue->begin({.fd = -1, .memory = memory.get(), .bytes = 4096, .tag = 9});
  std::vector<IoEnd> failed;
  queue->wait(failed);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].tag == 9);
  CHECK(failed[0].result == -EBADF);
}

}  // namespace olpager::disk::test
