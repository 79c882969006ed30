// Modules and libraries whose images are large: PTX text of 5, 49 and 52 MiB, most of it comments,
// one of them twice.
#include <string>

#include "driver_program.h"

namespace {

constexpr size_t kMib = size_t{1} << 20;

// Adds `value` to one word.
std::string image(size_t bytes, unsigned value, uint32_t seed) {
  std::string ptx;
  ptx.reserve(bytes + 1024);
  ptx = ".version 7.0\n.target sm_75\n.address_size 64\n";
  char line[96];
  for (uint32_t i = 0; ptx.size() < bytes; ++i) {
    std::snprintf(line, sizeof line, "// %08x %08x %08x %08x %08x %08x %08x\n", apps::word(i, seed),
                  apps::word(i, seed + 1), i, apps::word(i, seed + 2), apps::word(i, seed + 3),
                  apps::word(i, seed + 4), apps::word(i, seed + 5));
    ptx += line;
  }
  ptx +=
      ".visible .entry change(.param .u64 address)\n{\n  .reg .b32 %r;\n  .reg .b64 %d;\n  "
      "ld.param.u64 %d, "
      "[address];\n";
  ptx += "  ld.global.u32 %r, [%d];\n  add.u32 %r, %r, " + std::to_string(value) +
         ";\n  st.global.u32 [%d], %r;\n  ret;\n}\n";
  return ptx;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const auto seed = static_cast<uint32_t>(options.seed);
  const CUdevice device = apps::usePrimaryContext();
  CUdeviceptr there = 0;
  DRIVER_OK(cuMemAlloc(&there, 4096));
  DRIVER_OK(cuMemsetD32(there, 0, 1024));
  unsigned expected = 0;
  const auto run = [&](CUfunction kernel, unsigned value, size_t bytes) {
    void* parameters[] = {&there};
    DRIVER_OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    unsigned got = 0;
    DRIVER_OK(cuMemcpyDtoH(&got, there, sizeof got));
    expected += value;
    CHECK(got == expected, "a module of %zu bytes: the word is %u, expected %u", bytes, got,
          expected);
  };
  unsigned value = 1;
  const auto load = [&](const std::string& text) {
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    DRIVER_OK(cuModuleLoadData(&module, text.c_str()));
    DRIVER_OK(cuModuleGetFunction(&kernel, module, "change"));
    run(kernel, value, text.size());
    DRIVER_OK(cuModuleUnload(module));
  };
  load(image(5 * kMib, value, seed));
  ++value;
  const std::string twice = image(49 * kMib, value, seed);
  load(twice);
  load(twice);
  const std::string text = image(52 * kMib, 50, seed);
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  DRIVER_OK(cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  DRIVER_OK(cuLibraryGetKernel(&kernel, library, "change"));
  run(reinterpret_cast<CUfunction>(kernel), 50, text.size());
  DRIVER_OK(cuLibraryUnload(library));
  DRIVER_OK(cuMemFree(there));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("large_module: up to 52 MiB");
}
