// Finds code with variables that its kernels can change.
#include "interpose/forward/code_state.h"

#include <span>
#include <string>

#include "tests/catch.h"

using olpager::forward::stateOf;

bool hasVariables(std::span<const std::byte> image) {
  const auto state = stateOf(image);
  return !state.readable || !state.names.empty();
}

namespace {

bool inText(const std::string& declarations) {
  const std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n" + declarations;
  return hasVariables(std::as_bytes(std::span(text.c_str(), text.size() + 1)));
}

const std::string kKernel =
    ".visible .entry add(.param .u64 at)\n{\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [at];\n"
    "cvta.to.global.u64 %rd2, %rd1;\nld.global .u32 %r1, [%rd2];\nst.global.u32 [%rd2], 1;\nret;\n"
    "}\n";

}  // namespace

TEST_CASE("variables in global memory are state, in whatever form they are declared") {
  CHECK_FALSE(inText(kKernel));
  CHECK(inText(".global .align 4 .u32 counter;\n" + kKernel));
  CHECK(inText(kKernel + ".visible .global .align 8 .b8 table[64];\n"));
  CHECK(inText(".visible .global .align 4 .u32 seed = 7;\n"));
  CHECK(inText(".extern .global .align 4 .u32 elsewhere;\n"));
  CHECK(inText(".global .attribute(.managed) .align 4 .u32 shared_with_cpu;\n"));
}

TEST_CASE("the names are those of the declarations") {
  const std::string text =
      ".version 7.0\n.target sm_70\n.global .align 4 .u32 counter;\n.const .align 4 .u32 factor;\n"
      ".visible .global .align 8 .b8 table[64];\n";
  const auto state = stateOf(std::as_bytes(std::span(text.c_str(), text.size() + 1)));
  CHECK(state.readable);
  CHECK(state.names == std::vector<std::string>{"counter", "table"});
}

TEST_CASE("constants and the compiler's literals are none") {
  CHECK_FALSE(inText(".const .align 4 .b8 factors[16];\n" + kKernel));
  CHECK_FALSE(inText(".global .align 1 .b8 $str[4] = {37, 100, 10, 0};\n" + kKernel));
  CHECK_FALSE(inText(".global .align 1 .b8 __unnamed_1[3] = {97, 98, 0};\n" + kKernel));
  CHECK(inText(".global .align 1 .b8 $str[4] = {37, 100, 10, 0};\n.global .u32 counter;\n"));
}

TEST_CASE("code with constants alone has something that a driver places") {
  const auto placesIn = [](const std::string& text) {
    return stateOf(std::as_bytes(std::span(text.c_str(), text.size() + 1))).places;
  };
  const std::string head = ".version 7.0\n.target sm_70\n";
  CHECK(placesIn(head + ".const .align 4 .u32 factor;\n"));
  CHECK(placesIn(head + ".global .align 1 .b8 $str[4] = {37, 100, 10, 0};\n"));
  CHECK_FALSE(placesIn(head + kKernel));
}

TEST_CASE("objects of CUDA's C++ libraries are none") {
  CHECK_FALSE(inText(".global .align 1 .b8 _ZN6thrust3seqE[1];\n" + kKernel));
  CHECK_FALSE(inText(".global .align 1 .b8 _ZN4cuda3std3__48in_placeE[1];\n"));
  CHECK(inText(".global .align 4 .u32 _ZN2at7counterE;\n"));
}

TEST_CASE("code that can't be read may have some") {
  // A container's first word, and nothing behind it that is one.
  const unsigned char bytes[64] = {0x50, 0xed, 0x55, 0xba, 0x01, 0x00, 0x10, 0x00, 0xff};
  CHECK(hasVariables(std::as_bytes(std::span(bytes))));
}
