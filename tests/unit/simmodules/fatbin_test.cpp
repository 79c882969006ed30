// The fatbin and cubin reader on nvcc's output in every compression mode, and on broken input.
#include "base/fatbin/fatbin.h"
#include "base/fatbin/kernels.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "base/fatbin/cubin.h"
#include "tests/catch.h"

using namespace olpager::fatbin;

namespace {

std::vector<uint8_t> load(const std::string& name) {
  std::ifstream in(std::string(SAMPLES) + "/" + name, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

const Entry* find(const std::vector<Entry>& all, Kind kind) {
  const auto it =
      std::find_if(all.begin(), all.end(), [kind](const Entry& e) { return e.kind == kind; });
  return it == all.end() ? nullptr : &*it;
}

const Kernel* kernel(const Cubin& cubin, const std::string& name) {
  for (const Kernel& k : cubin.kernels) {
    if (k.name == name) return &k;
  }
  return nullptr;
}

const Variable* variable(const Cubin& cubin, const std::string& name) {
  for (const Variable& v : cubin.variables) {
    if (v.name == name) return &v;
  }
  return nullptr;
}

// Everything that reads untrusted bytes, on one input: must return, never crash.
void readAll(Bytes bytes) {
  auto image = identify(bytes);
  auto all = entries(bytes);
  if (all) {
    for (const Entry& entry : all.value()) {
      auto data = contents(entry, 1 << 22);
      if (data) (void)readCubin(data.value());
      (void)ptxText(entry, 1 << 22);
    }
  }
  (void)readCubin(bytes);
}

}  // namespace

TEST_CASE("fatbins of every compression mode give the same PTX and cubin") {
  std::string first_text;
  for (const char* mode : {"none", "default", "speed", "size"}) {
    INFO(mode);
    const auto file = load(std::string("sample_") + mode + ".fatbin");
    auto all = entries(file);
    REQUIRE(all.ok());
    const Entry* ptx = find(all.value(), Kind::ptx);
    const Entry* elf = find(all.value(), Kind::elf);
    REQUIRE(ptx != nullptr);
    REQUIRE(elf != nullptr);
    CHECK(ptx->arch == 90);
    CHECK((ptx->flags & kFlag64Bit) != 0);
    CHECK(ptx->major >= 9);
    const std::string_view name(mode);
    if (name == "none") CHECK(ptx->compression == Compression::none);
    if (name == "default" || name == "size") CHECK(ptx->compression == Compression::zstd);
    if (name == "speed") CHECK(ptx->compression == Compression::lz4);
    auto text = ptxText(*ptx);
    REQUIRE(text.ok());
    CHECK(text.value().find(".entry vectorAdd") != std::string::npos);
    CHECK(text.value().back() != '\0');
    if (first_text.empty()) first_text = text.value();
    CHECK(text.value() == first_text);

    auto bytes = contents(*elf);
    REQUIRE(bytes.ok());
    auto cubin = readCubin(bytes.value());
    REQUIRE(cubin.ok());
    CHECK(cubin.value().arch == 90);
    CHECK(kernel(cubin.value(), "vectorAdd") != nullptr);
    CHECK(!contents(*ptx, 10).ok());  // the limit holds
  }
}

TEST_CASE("code says the same of its kernels' parameters in every form") {
  const KernelTable expected = kernelsOf(load("sample.cubin"));
  CHECK(expected.whole);
  CHECK(expected.kernels.at("vectorAdd") == std::vector<uint32_t>{8, 8, 8, 4});
  CHECK(expected.kernels.at("mixed").at(1) == 40);
  CHECK(expected.kernels.at("large").at(0) == 5000);
  CHECK(expected.kernels.at("trap").empty());
  const auto file = load("sample_default.fatbin");
  const KernelTable all = kernelsOf(file);
  CHECK(all.whole);
  CHECK(all.kernels == expected.kernels);
  const auto entry = entries(file);
  REQUIRE(entry.ok());
  const auto text = ptxText(*find(entry.value(), Kind::ptx));
  REQUIRE(text.ok());
  const auto* const bytes = reinterpret_cast<const uint8_t*>(text.value().c_str());
  const KernelTable of_text = kernelsOf(Bytes(bytes, text.value().size() + 1));
  CHECK(of_text.whole);
  CHECK(of_text.kernels == expected.kernels);
}

TEST_CASE("PTX tells parameters however it is written, or says that it does not") {
  const auto of = [](const std::string& kernels) {
    const std::string text = ".version 7.0\n.target sm_70\n" + kernels;
    return kernelsOf(Bytes(reinterpret_cast<const uint8_t*>(text.c_str()), text.size() + 1));
  };
  using Sizes = std::vector<uint32_t>;
  const KernelTable odd = of(
      ".visible .entry none\n{ ret; }\n.weak .entry empty ( ) { ret; }\n"
      ".entry all( .param .u64 .ptr .global .align 8 a, // .param .u8 b,\n"
      ".param .align 16 .b8 c[ 2 ] [3], /* ) */ .param .f16 d,.param .s8 e\n, .param .texref f)\n"
      ".maxntid 1024 { mov.u32 %r1, .entry; ret; }\n");
  CHECK(odd.whole);
  CHECK(odd.kernels.size() == 3);
  CHECK(odd.kernels.at("none") == Sizes{});
  CHECK(odd.kernels.at("empty") == Sizes{});
  CHECK(odd.kernels.at("all") == Sizes{8, 6, 2, 1, 8});
  for (const char* cut :
       {".entry cut(.param .u32 a", ".entry (.param .u32 a)", ".entry odd(.param a)",
        ".entry huge(.param .b8 a[99999999])", ".entry x(.param .b8 a[n])"})
    CHECK_FALSE(of(cut).whole);
  CHECK(of(".entry one(.param .u32 a);\n.entry one(.param .u64 a, .param .u8 b) {}")
            .kernels.at("one") == Sizes{8, 1});
}

TEST_CASE("a cubin lists kernels with their parameters and variables with their bytes") {
  const auto file = load("sample.cubin");
  REQUIRE(cubinSize(file.data()).ok());
  CHECK(cubinSize(file.data()).value() == file.size());
  auto cubin = readCubin(file);
  REQUIRE(cubin.ok());

  const Kernel* add = kernel(cubin.value(), "vectorAdd");
  REQUIRE(add != nullptr);
  CHECK(add->parameter_bytes == 28);
  REQUIRE(add->parameters.size() == 4);
  for (uint32_t i = 0; i < 4; ++i) {
    CHECK(add->parameters[i].ordinal == i);
    CHECK(add->parameters[i].offset == 8 * i);
    CHECK(add->parameters[i].size == (i < 3 ? 8 : 4));
  }
  const Kernel* mixed = kernel(cubin.value(), "mixed");
  REQUIRE(mixed != nullptr);
  REQUIRE(mixed->parameters.size() == 3);
  CHECK(mixed->parameters[1].size == 40);
  CHECK(mixed->parameters[2].offset == 48);
  const Kernel* big = kernel(cubin.value(), "large");
  REQUIRE(big != nullptr);
  REQUIRE(big->parameters.size() == 2);
  CHECK(big->parameters[0].size == 5000);
  CHECK(big->parameters[1].offset == 5000);
  const Kernel* none = kernel(cubin.value(), "trap");
  REQUIRE(none != nullptr);
  CHECK(none->parameters.empty());

  const Variable* counter = variable(cubin.value(), "counter");
  REQUIRE(counter != nullptr);
  CHECK(counter->space == Space::global);
  CHECK(counter->size == 4);
  REQUIRE(counter->init.size() == 4);
  CHECK(counter->init[0] == 7);
  const Variable* zeros = variable(cubin.value(), "zeros");
  REQUIRE(zeros != nullptr);
  CHECK(zeros->size == 4000);
  CHECK(zeros->init.empty());
  const Variable* table = variable(cubin.value(), "table");
  REQUIRE(table != nullptr);
  CHECK(table->space == Space::constant);
  CHECK(table->size == 64);
  const Variable* managed = variable(cubin.value(), "managed");
  REQUIRE(managed != nullptr);
  CHECK(managed->managed);
}

TEST_CASE("wrappers of version 1 and 2, containers, cubins and text are told apart") {
  const auto file = load("sample_default.fatbin");
  struct {
    uint32_t magic = 0x466243b1;
    uint32_t version = 1;
    const void* data = nullptr;
    const void* linked = nullptr;
  } wrapper;
  wrapper.data = file.data();
  wrapper.linked = "a file name, not a list";
  auto image = locate(&wrapper);
  REQUIRE(image.ok());
  CHECK(image.value().form == Image::Form::container);
  CHECK(image.value().bytes.size() == file.size());
  CHECK(image.value().linked.empty());

  const void* list[] = {file.data(), file.data(), nullptr};
  wrapper.version = 2;
  wrapper.linked = list;
  image = locate(&wrapper);
  REQUIRE(image.ok());
  CHECK(image.value().linked.size() == 2);
  wrapper.version = 3;
  CHECK(!locate(&wrapper).ok());

  CHECK(locate(file.data()).value().form == Image::Form::container);
  const auto cubin = load("sample.cubin");
  CHECK(locate(cubin.data()).value().form == Image::Form::elf);
  CHECK(locate(cubin.data()).value().bytes.size() == cubin.size());
  CHECK(locate(".version 9.0").value().bytes.size() == 12);
  CHECK(locate("").value().bytes.empty());
  CHECK(!locate(nullptr).ok());

  // Relocatable code that is already linked: a version 2 wrapper around the cubin itself.
  wrapper.version = 2;
  wrapper.data = cubin.data();
  wrapper.linked = nullptr;
  image = locate(&wrapper);
  REQUIRE(image.ok());
  CHECK(image.value().form == Image::Form::elf);
}

TEST_CASE("cut-off and altered input is refused or read, never a crash") {
  for (const char* name :
       {"sample_none.fatbin", "sample_default.fatbin", "sample_speed.fatbin", "sample.cubin"}) {
    INFO(name);
    const auto file = load(name);
    // Each cut is a buffer of its own, so that a sanitizer sees one byte too many.
    for (size_t cut = 0; cut < file.size(); cut += cut < 256 ? 1 : 97) {
      const std::vector<uint8_t> part(file.begin(), file.begin() + static_cast<ptrdiff_t>(cut));
      readAll(part);
    }
    std::mt19937 random(1);
    for (int round = 0; round < 2000; ++round) {
      auto bytes = file;
      for (int i = 0; i < 8; ++i) {
        // Half of the changes hit the headers, where they do most harm.
        const size_t at =
            random() % (i % 2 == 0 ? std::min<size_t>(bytes.size(), 160) : bytes.size());
        bytes[at] = static_cast<uint8_t>(random() % 4 == 0 ? 0xff : random());
      }
      readAll(bytes);
    }
  }
  CHECK(!entries(std::vector<uint8_t>{}).ok());
  CHECK(!readCubin(std::vector<uint8_t>{}).ok());
}
