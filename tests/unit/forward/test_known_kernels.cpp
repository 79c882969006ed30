// A worker's layout of a kernel's parameters, against the code that the program loaded.
#include "interpose/forward/known_kernels.h"

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fatbin/fatbin.h"
#include "tests/catch.h"

namespace {

using olpager::forward::KnownCode;
using olpager::forward::KnownKernels;
using olpager::forward::ParameterPlace;
using Places = std::vector<ParameterPlace>;

constexpr uint64_t kModule = 1, kOther = 2, kLibrary = 3, kSmall = 10, kLarge = 11, kFunction = 12;

std::string ptx(const std::string& kernels) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n" + kernels;
}

// The text is not kept: what is to be read later is a copy.
KnownKernels::Code code(const std::string& kernels) {
  const std::string text = ptx(kernels);
  return std::make_shared<KnownCode>(std::as_bytes(std::span(text.c_str(), text.size() + 1)),
                                     false);
}

// A container with these texts, each an image of its own that is not packed.
std::vector<std::byte> container(const std::vector<std::string>& texts) {
  std::vector<std::byte> bytes(16);
  const auto put = [&](size_t at, auto value) { std::memcpy(&bytes[at], &value, sizeof value); };
  for (const std::string& text : texts) {
    const size_t head = bytes.size(), length = (text.size() + 8) / 8 * 8;
    bytes.resize(head + 64 + length);
    put(head, uint16_t{1});  // PTX
    put(head + 4, uint32_t{64});
    put(head + 8, uint64_t{length});
    std::memcpy(&bytes[head + 64], text.data(), text.size());
  }
  put(0, olpager::fatbin::kContainerMagic);
  put(4, uint16_t{1});
  put(6, uint16_t{16});
  put(8, uint64_t{bytes.size() - 16});
  return bytes;
}

const std::string kKernels =
    ".entry small(.param .u32 a, .param .u64 b)\n{ ret; }\n"
    ".entry large(.param .align 8 .b8 a[2048]) { ret; }\n";
const Places kOfSmall{{0, 4}, {8, 8}}, kOfLarge{{0, 2048}};

}  // namespace

TEST_CASE("a kernel takes what its code says, and no more") {
  KnownKernels known;
  known.loaded(kModule, code(kKernels));
  known.named(kSmall, kModule, "small");
  known.named(kLarge, kModule, "large");
  CHECK(known.hasName(kSmall));
  CHECK(known.agrees(kSmall, kOfSmall, ""));
  CHECK(known.agrees(kLarge, kOfLarge, ""));
  CHECK_FALSE(known.agrees(kSmall, kOfLarge, ""));
  CHECK_FALSE(known.agrees(kSmall, Places{{0, 4}, {8, 9}}, ""));
  CHECK_FALSE(known.agrees(kSmall, Places{{0, 4}, {8, 8}, {16, 1}}, ""));
}

TEST_CASE("a kernel without a name has to be one that some code has") {
  KnownKernels known;
  CHECK_FALSE(known.agrees(kSmall, Places{}, "small"));
  known.loaded(kModule, code(kKernels));
  CHECK(known.agrees(kSmall, kOfSmall, "small"));
  CHECK_FALSE(known.agrees(kSmall, kOfLarge, "small"));
  CHECK_FALSE(known.agrees(kSmall, kOfSmall, "another"));
  known.loaded(kOther, code(".entry broken(.param .u32 a"));  // of it nobody can tell
  CHECK(known.agrees(kSmall, kOfSmall, "another"));
}

TEST_CASE("one handle for two things is believed for none") {
  KnownKernels known;
  known.loaded(kModule, code(kKernels));
  known.named(kSmall, kModule, "small");
  known.named(kSmall, kModule, "small");
  CHECK(known.agrees(kSmall, kOfSmall, ""));
  known.named(kSmall, kModule, "large");
  CHECK_FALSE(known.agrees(kSmall, kOfSmall, ""));
  known.loaded(kModule, code(".entry other(.param .align 8 .b8 a[4000]) { ret; }"));
  known.named(kLarge, kModule, "other");
  CHECK_FALSE(known.agrees(kLarge, Places{{0, 4000}}, ""));
}

TEST_CASE("functions and modules of libraries are known by these") {
  KnownKernels known;
  known.loaded(kLibrary, code(kKernels));
  known.named(kSmall, kLibrary, "small");
  known.isFunctionOf(kFunction, kSmall);
  CHECK(known.agrees(kFunction, kOfSmall, ""));
  CHECK_FALSE(known.agrees(kFunction, kOfLarge, ""));
  known.isOf(kModule, kLibrary);
  known.named(kLarge, kModule, "large");
  CHECK(known.agrees(kLarge, kOfLarge, ""));
}

TEST_CASE("what is unloaded is known no more, and may come again") {
  KnownKernels known;
  known.loaded(kModule, code(kKernels));
  known.named(kSmall, kModule, "small");
  known.gone(kModule);
  CHECK_FALSE(known.hasName(kSmall));
  CHECK_FALSE(known.agrees(kSmall, kOfSmall, "small"));
  known.loaded(kModule, code(".entry large(.param .u32 a) { ret; }"));
  known.named(kSmall, kModule, "large");
  CHECK(known.agrees(kSmall, Places{{0, 4}}, ""));
}

TEST_CASE("code is read when a kernel of it is asked for, as far as it takes to find that") {
  // As nvcc packs it: the same kernels for several architectures, one more for the last.
  const std::string more = ".entry more(.param .u32 a) { ret; }\n";
  const auto image = container({ptx(kKernels + "//  longer\n"), ptx(kKernels), ptx(kKernels + more),
                                ptx(kKernels + "// long\n")});
  const auto loaded = std::make_shared<KnownCode>(image, true);
  KnownKernels known;
  known.loaded(kModule, loaded);
  known.named(kSmall, kModule, "small");
  known.named(kLarge, kModule, "large");
  known.named(kFunction, kModule, "more");
  CHECK(loaded->imagesRead() == 0);
  CHECK(known.agrees(kSmall, kOfSmall, ""));
  CHECK(known.agrees(kLarge, kOfLarge, ""));
  CHECK(loaded->imagesRead() == 1);
  // All is read before anything is refused.
  CHECK(known.agrees(kFunction, Places{{0, 4}}, ""));
  CHECK(loaded->imagesRead() == 4);
  CHECK_FALSE(known.agrees(kSmall, kOfLarge, ""));
  CHECK(loaded->imagesRead() == 4);
}

TEST_CASE("what a kernel takes is the most that any image of its code says") {
  const auto loaded = std::make_shared<KnownCode>(
      container({ptx(".entry one(.param .u64 a, .param .u64 b) { ret; }\n// the longer text\n"),
                 ptx(".entry one(.param .u32 a) { ret; }\n")}),
      false);
  CHECK(loaded->allows("one", Places{{0, 4}}));
  CHECK(loaded->imagesRead() == 1);
  CHECK(loaded->allows("one", Places{{0, 8}, {8, 8}}));
  CHECK_FALSE(loaded->allows("one", Places{{0, 8}, {8, 9}}));
  CHECK_FALSE(loaded->allows("two", Places{}));
  CHECK(loaded->imagesRead() == 2);
}

TEST_CASE("code of which a part can't be read may have any kernel but those that it shows") {
  const auto loaded = std::make_shared<KnownCode>(
      container({ptx(kKernels), ptx(".entry broken(.param .u32 a")}), false);
  CHECK(loaded->allows("another", kOfLarge));
  CHECK(loaded->allows("small", kOfSmall));
  CHECK_FALSE(loaded->allows("small", kOfLarge));
}

TEST_CASE("what is gone is not read any more, and allows nothing") {
  auto image = container({ptx(kKernels)});
  KnownCode loaded(image, true);
  loaded.gone();
  image = {};
  CHECK_FALSE(loaded.allows("small", kOfSmall));
  CHECK_FALSE(loaded.allows("another", Places{}));
}
