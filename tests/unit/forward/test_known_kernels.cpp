// What a worker says of a kernel's parameters, against the code that the program loaded.
#include "interpose/forward/known_kernels.h"

#include <span>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace {

using olpager::forward::KnownKernels;
using olpager::forward::ParameterPlace;
using Places = std::vector<ParameterPlace>;

constexpr uint64_t kModule = 1, kOther = 2, kLibrary = 3, kSmall = 10, kLarge = 11, kFunction = 12;

KnownKernels::Table code(const std::string& kernels) {
  const std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n" + kernels;
  return olpager::forward::kernelTableOf(std::as_bytes(std::span(text.c_str(), text.size() + 1)));
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
