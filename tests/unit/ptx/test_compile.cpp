#include "tests/catch.h"
#include "tests/unit/ptx/harness.h"

using namespace olpager::simgpu::ptx;
using namespace olpager::simgpu::ptx::test;

namespace {

const std::string kHeader = ".version 8.0\n.target sm_80\n.address_size 64\n";

std::string errorOf(const std::string& text) {
  const auto result = compile(text, CompileOptions{"m"});
  return result ? "" : result.error().message;
}

std::string kernel(const std::string& body) {
  return kHeader +
         ".visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n.reg .pred "
         "%p<4>;\n.reg .f32 "
         "%f<4>;\n" +
         body + "\nret;\n}\n";
}

}  // namespace

TEST_CASE("ptx: what is not known is named with its line", "[ptx]") {
  CHECK(errorOf(kernel("frobnicate.u32 %r1, %r2;")) ==
        "m:10: instruction 'frobnicate.u32' is not supported");
  CHECK(errorOf(kernel("add.u32 %r1, %r2, 1;\nadd.sideways.u32 %r1, %r2, %r3;")) ==
        "m:11: instruction 'add.sideways.u32' is not supported");
  CHECK(errorOf(kernel("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1}, [%rd1];"))
            .find("wmma") != std::string::npos);
  CHECK(errorOf(kernel("mov.u32 %r1, %r99;")) == "m:10: unknown register '%r99' in 'mov.u32'");
  CHECK(errorOf(kernel("bra NOWHERE;")) == "m:10: unknown name 'NOWHERE'");
  CHECK(errorOf(kernel("mov.u32 %r1, %nonsense;")).find("unknown register '%nonsense'") !=
        std::string::npos);
  CHECK(errorOf(kernel("add.u32 %r1, %r2;")).find("wrong number of operands") != std::string::npos);
  CHECK(errorOf(kernel("add.u32 %r1, %r2, %r3")).find("m:11") == 0);
  CHECK(
      errorOf(kHeader + ".extern .func (.param .b64 r) malloc (.param .b64 n);\n" +
              ".entry k()\n{\n.param .b64 a;\n.param .b64 b;\ncall (b), malloc, (a);\nret;\n}\n") ==
      "m:9: call of 'malloc', which the module does not define in 'call'");
  for (const char* const refused :
       {"tex.cube.v4.f32.f32", "tex.acube.v4.f32.f32", "tex.2dms.v4.f32.s32",
        "tex.base.2d.v4.f32.f32", "tex.2d.v2.f16x2.f32", "tex.1d.v4.f32.u32",
        "tld4.r.cube.v4.f32.f32", "tld4.r.3d.v4.f32.f32"}) {
    CHECK(errorOf(kernel(std::string(refused) + " {%f1, %f2, %f3, %f3}, [%rd1, {%f1, %f2}];")) ==
          std::string("m:10: instruction '") + refused + "' is not supported");
  }
  for (const char* const refused :
       {"suld.p.2d.v4.b32.trap {%r1, %r2, %r3, %r4}, [%rd1, {%r1, %r2}];",
        "suq.width.b32 %r1, [%rd1];", "txq.width.b32 %r1, [%rd1];",
        "sured.b.add.2d.u32.trap [%rd1, {%r1, %r2}], %r3;",
        "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f3}, [%rd1, %rd2, {%f1, %f2}];",
        "ld.global.f32 %f1, [%rd1, {%r1}];"}) {
    const std::string instruction(refused);
    CHECK(errorOf(kernel(instruction)) == "m:10: instruction '" +
                                              instruction.substr(0, instruction.find(' ')) +
                                              "' is not supported");
  }
  CHECK(errorOf(kernel("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f3}, [%rd1, {%f1}];"))
            .find("wrong number of coordinates") != std::string::npos);
  CHECK(errorOf(kHeader + ".global .texref t;\n").find("texref") != std::string::npos);
  CHECK(errorOf("") == "");
  CHECK(errorOf(kernel("\"unfinished")).find("string without end") != std::string::npos);
  CHECK(errorOf("{{{{").find("m:1") == 0);
}

TEST_CASE("ptx: truncated and damaged text never does harm", "[ptx]") {
  const std::string text = readFile(kernelFile("control"));
  for (std::size_t i = 0; i < 200; ++i) {
    (void)compile(std::string_view(text).substr(0, text.size() * i / 200), CompileOptions{"m"});
  }
  unsigned state = 1;
  for (int i = 0; i < 100; ++i) {
    std::string damaged = text;
    for (int k = 0; k < 5; ++k) {
      state = state * 1664525U + 1013904223U;
      damaged[state % damaged.size()] = "{}[](),;.%@!0aZ\n"[state >> 28];
    }
    (void)compile(damaged, CompileOptions{"m"});
  }
}

TEST_CASE("ptx: what a module says about its kernels and variables", "[ptx]") {
  const auto compiled =
      compile(kHeader +
                  ".visible .global .align 16 .b8 table[64] = {1, 2, 3};\n"
                  ".visible .const .align 4 .u32 answer = 42;\n"
                  ".global .align 8 .u64 self[2] = {generic(table)+8, helper};\n"
                  ".extern .global .align 4 .u32 elsewhere;\n"
                  ".global .attribute(.managed) .align 8 .b8 shared_with_cpu[16];\n"
                  ".extern .shared .align 32 .b8 dynamic[];\n"
                  ".visible .func helper()\n{\nret;\n}\n"
                  ".visible .entry first(.param .u32 a, .param .align 16 .b8 b[20], .param .u64 "
                  ".ptr .global .align 4 c)\n"
                  ".maxntid 128, 2, 1\n.minnctapersm 3\n.maxnreg 40\n"
                  "{\n.shared .align 4 .b8 s1[100];\n.reg .b32 %r<3>;\nmov.u32 %r1, s1;\nmov.u32 "
                  "%r2, dynamic;\nst.shared.u32 "
                  "[%r1], %r2;\nret;\n}\n"
                  ".entry second()\n.reqntid 64\n.reqnctapercluster 2, 1, 1\n"
                  "{\n.shared .align 8 .b8 s2[48];\n.local .align 8 .b8 depot[40];\n.reg .b32 "
                  "%r<3>;\nmov.u32 %r1, s2;\n"
                  "st.shared.u32 [%r1], 0;\nret;\n}\n",
              CompileOptions{"m"});
  INFO((compiled ? "" : compiled.error().message));
  REQUIRE(compiled.ok());
  Module& m = *compiled.value();
  CHECK(m.ptxVersion() == 80);
  CHECK(m.target() == 80);
  REQUIRE(m.kernel("first") != nullptr);
  const KernelInfo& first = m.kernel("first")->info();
  REQUIRE(first.params.size() == 3);
  CHECK(first.params[0].offset == 0);
  CHECK(first.params[1].offset == 16);
  CHECK(first.params[1].size == 20);
  CHECK(first.params[2].offset == 40);
  CHECK(first.params[2].size == 8);
  CHECK(first.param_bytes == 48);
  CHECK(first.static_shared_bytes == 100);
  CHECK(first.max_threads == 256);
  CHECK(first.minnctapersm == 3);
  CHECK(first.maxnreg == 40);
  CHECK(first.const_bytes == 4);
  const KernelInfo& second = m.kernel("second")->info();
  CHECK(second.static_shared_bytes == 48);
  CHECK(second.local_bytes == 40);
  CHECK(second.reqntid[0] == 64);
  CHECK(second.reqnctapercluster[0] == 2);
  CHECK(m.kernel("third") == nullptr);
  CHECK(m.deviceFunctions() == std::vector<std::string>{"helper"});
  REQUIRE(m.globals().size() == 5);
  const auto find = [&](const std::string& name) {
    return *std::find_if(m.globals().begin(), m.globals().end(),
                         [&](const GlobalInfo& g) { return g.name == name; });
  };
  CHECK(find("table").size == 64);
  CHECK(find("table").align == 16);
  CHECK(find("table").is_visible);
  CHECK(find("answer").is_const);
  CHECK(find("elsewhere").is_extern);
  CHECK(find("shared_with_cpu").is_managed);
  CHECK_FALSE(m.link().ok());  // nothing has an address yet
  std::uint64_t next = 0x1000;
  REQUIRE(m.link([&](const GlobalInfo&) { return next += 0x1000; }).ok());
  const auto image = m.image(find("self"));
  REQUIRE(image.size() == 16);
  std::uint64_t words[2];
  std::memcpy(words, image.data(), 16);
  CHECK(words[0] == m.globalAddress("table") + 8);
  CHECK(words[1] == m.functionAddress("helper"));
  CHECK(m.image(find("table"))[2] == std::byte{3});
  CHECK(m.image(find("table"))[3] == std::byte{0});
  CHECK_FALSE(m.setGlobalAddress("nothing", 1).ok());
}

TEST_CASE("ptx: hand-written forms that compilers rarely emit", "[ptx]") {
  Device device(kernel(R"(
    ld.param.u64 %rd1, [p];
    { .reg .b32 %r<4>; mov.u32 %r1, 5; st.global.u32 [%rd1], %r1; bra INNER; INNER: }
    { bra INNER; st.global.u32 [%rd1], 9; INNER: }
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %p1|%p2, %r1, 0;
    @!%p1 bra OTHERS;
    mov.b64 %rd2, {%r1, 7};
    mov.b64 {_, %r2}, %rd2;
    st.global.u32 [%rd1+4], %r2;
    slct.u32.s32 %r3, 11, 12, -1;
    st.global.u32 [%rd1+8], %r3;
    set.lt.u32.f32 %r4, 0f3F800000, 2.5;
    st.global.u32 [%rd1+12], %r4;
    testp.infinite.f32 %p3, 0f7F800000;
    selp.u32 %r5, 1, 0, %p3;
    st.global.v2.u32 [%rd1+16], {%r5, 3};
  OTHERS:
    red.global.add.u32 [%rd1+24], 1;
    @%p2 exit;
    red.global.add.u32 [%rd1+28], 1;
  )"));
  const auto out = device.memory.allocate(64);
  const LaunchResult result = device.launch("k", Dim3{1}, Dim3{40}, out);
  INFO(result.message);
  REQUIRE(result.ok());
  const auto r = device.download<std::uint32_t>(out, 8);
  CHECK(r == std::vector<std::uint32_t>{5, 7, 12, 0xFFFFFFFF, 1, 3, 40, 1});
}
