// Code that is linked at run time (cuLink*), from memory and from a file: what came out computes
// what it should, logs are where the program wants them, mistakes are errors.
#include <unistd.h>

#include "driver_program.h"

namespace {

// out[i] = in[i] * factor + added, and a table that makes the text longer than some kibibytes.
std::string scaleText(unsigned added, unsigned table) {
  std::string text = R"(.version 7.0
.target sm_75
.address_size 64
)";
  if (table != 0) {
    text += ".global .align 4 .u32 table[" + std::to_string(table) + "] = {";
    for (unsigned i = 0; i < table; ++i)
      text += (i != 0 ? ", " : "") + std::to_string(1000000000u + i * 977u);
    text += "};\n";
  }
  return text +
         R"(.visible .entry scale(.param .u64 out, .param .u64 in, .param .u32 factor, .param .u32 count)
{
  .reg .pred %p;
  .reg .b32 %r<9>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [out];
  ld.param.u64 %d2, [in];
  ld.param.u32 %r1, [factor];
  ld.param.u32 %r2, [count];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p, %r6, %r2;
  @%p bra done;
  mul.wide.u32 %d3, %r6, 4;
  add.u64 %d1, %d1, %d3;
  add.u64 %d2, %d2, %d3;
  ld.global.u32 %r7, [%d2];
  mad.lo.u32 %r7, %r7, %r1, )" +
         std::to_string(added) + R"(;
  st.global.u32 [%d1], %r7;
done:
  ret;
}
)";
}

// The options of a linker, and what it tells.
struct Told {
  char info[4096], error[4096];
  CUjit_option options[5] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_OPTIMIZATION_LEVEL};
  void* values[5] = {info, reinterpret_cast<void*>(sizeof info), error,
                     reinterpret_cast<void*>(sizeof error), reinterpret_cast<void*>(3)};
  CUlinkState state = nullptr;
  Told() {
    std::memset(info, 'x', sizeof info);
    std::memset(error, 'x', sizeof error);
    DRIVER_OK(cuLinkCreate(5, options, values, &state));
  }
  // A log's size counts its text, with its NUL or without.
  static void check(const char* log, const void* amount, size_t room) {
    const size_t length = strnlen(log, room);
    const auto said = reinterpret_cast<uintptr_t>(amount) & 0xffffffffu;
    CHECK(length < room, "a log without an end");
    CHECK(said == length || said == length + 1, "a log of %zu bytes is said to have %zu", length,
          size_t(said));
  }
};

CUmodule load(CUlinkState state) {
  void* image = nullptr;
  size_t bytes = 0;
  DRIVER_OK(cuLinkComplete(state, &image, &bytes));
  CHECK(image != nullptr && bytes > 100, "an image of %zu bytes", bytes);
  CUmodule module;
  DRIVER_OK(cuModuleLoadData(&module, image));
  return module;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();

  // From memory, twice the same long text, as two runs of a program would; then one that is longer
  // than one message.
  std::vector<CUmodule> modules;
  for (int turn = 0; turn < 3; ++turn) {
    Told told;
    std::string text = scaleText(7, 6000);
    if (turn == 2) text.insert(0, "// " + std::string(size_t{9} << 20, '-') + "\n");
    CHECK(text.size() > 60000, "a text of %zu bytes", text.size());
    DRIVER_OK(cuLinkAddData(told.state, CU_JIT_INPUT_PTX, text.data(), text.size() + 1, "scale 7",
                            0, nullptr, nullptr));
    std::memset(text.data(), 'x', text.size());  // the driver keeps nothing of it
    modules.push_back(load(told.state));
    Told::check(told.info, told.values[1], sizeof told.info);
    CHECK(told.error[0] == '\0', "errors: %s", told.error);
    DRIVER_OK(cuLinkDestroy(told.state));
  }

  // From a file.
  char path[] = "/tmp/olpager-link-XXXXXX";
  const int file = mkstemp(path);
  const std::string text = scaleText(11, 0);
  CHECK(file >= 0 && write(file, text.data(), text.size()) == ssize_t(text.size()),
        "can't write %s", path);
  close(file);
  {
    CUlinkState state;
    DRIVER_OK(cuLinkCreate(0, nullptr, nullptr, &state));
    CHECK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/tmp/olpager-link-absent/none.ptx", 0, nullptr,
                        nullptr) == CUDA_ERROR_FILE_NOT_FOUND,
          "a file that is not there");
    DRIVER_OK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, path, 0, nullptr, nullptr));
    modules.push_back(load(state));
    DRIVER_OK(cuLinkDestroy(state));
  }
  unlink(path);

  // A mistake: its log says where, in the program's memory.
  {
    Told told;
    std::string wrong = scaleText(1, 0);
    wrong.replace(wrong.find("mul.wide"), 8, "mul.wild");
    const CUresult result = cuLinkAddData(told.state, CU_JIT_INPUT_PTX, wrong.data(),
                                          wrong.size() + 1, "wrong", 0, nullptr, nullptr);
    CHECK(result == CUDA_ERROR_INVALID_PTX, "PTX that is none gives %d", int(result));
    Told::check(told.error, told.values[3], sizeof told.error);
    CHECK(std::strlen(told.error) > 10, "no log of the error");
    DRIVER_OK(cuLinkDestroy(told.state));
    // The same log from a module.
    char log[512] = {};
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER};
    void* values[] = {reinterpret_cast<void*>(sizeof log), log};
    CUmodule module;
    CHECK(cuModuleLoadDataEx(&module, wrong.c_str(), 2, names, values) == CUDA_ERROR_INVALID_PTX,
          "a module of it");
    Told::check(log, values[0], sizeof log);
    CHECK(std::strlen(log) > 10, "no log of the module's error");
  }
  {
    CUlinkState state = nullptr;
    CUjit_option unknown[] = {static_cast<CUjit_option>(CU_JIT_NUM_OPTIONS + 3)};
    void* value[] = {nullptr};
    CHECK(cuLinkCreate(1, unknown, value, &state) == CUDA_ERROR_INVALID_VALUE,
          "an option that there is not");
    CUmodule module;
    CHECK(cuModuleLoadDataEx(&module, text.c_str(), 1, unknown, value) == CUDA_ERROR_INVALID_VALUE,
          "the same of a module");
  }

  // The linked code computes.
  constexpr size_t kPiece = size_t{2} << 20;
  constexpr uint32_t kWords = 4096;
  const size_t n = options.bytes / kPiece < 4 ? 4 : options.bytes / kPiece;
  std::vector<CUdeviceptr> buffers(n);
  std::vector<std::vector<uint32_t>> model(n, std::vector<uint32_t>(kWords));
  for (size_t b = 0; b < n; ++b) {
    DRIVER_OK(cuMemAlloc(&buffers[b], kPiece));
    for (uint32_t i = 0; i < kWords; ++i) model[b][i] = apps::word(i, uint32_t(options.seed + b));
    DRIVER_OK(cuMemcpyHtoD(buffers[b], model[b].data(), kWords * 4));
  }
  std::vector<CUfunction> kernels;
  for (const CUmodule module : modules) {
    kernels.emplace_back();
    DRIVER_OK(cuModuleGetFunction(&kernels.back(), module, "scale"));
  }
  apps::Random random(options.seed);
  for (size_t step = 0; step < 3 * n; ++step) {
    const size_t out = random.below(n), in = random.below(n), which = random.below(kernels.size());
    uint32_t factor = uint32_t(step * 2 + 1), count = kWords;
    void* parameters[] = {&buffers[out], &buffers[in], &factor, &count};
    DRIVER_OK(cuLaunchKernel(kernels[which], kWords / 128, 1, 1, 128, 1, 1, 0, nullptr, parameters,
                             nullptr));
    for (uint32_t i = 0; i < kWords; ++i)
      model[out][i] = model[in][i] * factor + (which < 3 ? 7 : 11);
  }
  DRIVER_OK(cuCtxSynchronize());
  std::vector<uint32_t> got(kWords);
  for (size_t b = 0; b < n; ++b) {
    DRIVER_OK(cuMemcpyDtoH(got.data(), buffers[b], kWords * 4));
    for (uint32_t i = 0; i < kWords; ++i)
      CHECK(got[i] == model[b][i], "buffer %zu word %u is %#x, expected %#x", b, i, got[i],
            model[b][i]);
    DRIVER_OK(cuMemFree(buffers[b]));
  }
  for (const CUmodule module : modules) DRIVER_OK(cuModuleUnload(module));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("link: %zu launches of %zu linked modules over %zu buffers", 3 * n,
                  modules.size(), n);
}
