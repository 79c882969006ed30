// Modules and libraries of the simulated GPU: what loads, what does not, where variables are.
#include <cstring>
#include <thread>

#include "tests/unit/simmodules/sim_fixture.h"

TEST_CASE("modules load from PTX text, fatbins of every compression, files") {
  Gpu gpu;
  for (const char* name : {"sample.ptx", "sample_none.fatbin", "sample_default.fatbin",
                           "sample_speed.fatbin", "sample_size.fatbin"}) {
    INFO(name);
    CUmodule module = nullptr;
    CU(cuModuleLoadData(&module, loadSample(name).data()));
    const CUdeviceptr out = gpu.upload(std::vector<int>{0, 0});
    CU(launch(gpu.function(module, "bump"), 1, 1, 0, nullptr, out));
    CHECK(gpu.download<int>(out, 2) == std::vector<int>{7, 2});
    CU(cuModuleUnload(module));
    CU(cuModuleLoad(&module, (std::string(SAMPLES) + "/" + name).c_str()));
    CU(cuModuleUnload(module));
    CHECK(cuModuleUnload(module) == CUDA_ERROR_INVALID_HANDLE);
    CU(cuMemFree(out));
  }
  CUmodule module = nullptr;
  CHECK(cuModuleLoad(&module, "/nonexistent/file") == CUDA_ERROR_FILE_NOT_FOUND);
  CHECK(cuModuleLoadData(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleLoadFatBinary(&module, loadSample("sample_default.fatbin").data()) == CUDA_SUCCESS);
}

TEST_CASE("machine code alone is no binary for this GPU; nonsense is an invalid image") {
  Gpu gpu;
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module, loadSample("sample.cubin").data()) ==
        CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(cuModuleLoadData(&module, "hello") == CUDA_ERROR_INVALID_IMAGE);
  CUlibrary library = nullptr;
  CHECK(cuLibraryLoadData(&library, loadSample("sample.cubin").data(), nullptr, nullptr, 0, nullptr,
                          nullptr, 0) == CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_CASE("bad PTX is refused with its line in the error log") {
  Gpu gpu;
  const std::string text =
      ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\n  frobnicate.u32 "
      "%r1;\n  ret;\n}\n";
  char error[1024] = "untouched";
  char info[256] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_OPTIMIZATION_LEVEL};
  void* values[] = {error, reinterpret_cast<void*>(sizeof(error)), info,
                    reinterpret_cast<void*>(sizeof(info)), reinterpret_cast<void*>(uintptr_t{3})};
  CUmodule module = nullptr;
  CHECK(cuModuleLoadDataEx(&module, text.c_str(), 5, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(error).find('6') != std::string::npos);
  CHECK(std::string(error).find("frobnicate") != std::string::npos);
  CHECK(reinterpret_cast<uintptr_t>(values[1]) == std::strlen(error));

  values[1] = reinterpret_cast<void*>(sizeof(error));
  values[3] = reinterpret_cast<void*>(sizeof(info));
  CU(cuModuleLoadDataEx(&module, loadSample("sample.ptx").data(), 5, options, values));
  CHECK(std::strlen(error) == 0);
  CHECK(std::strlen(info) != 0);

  CUjit_option unknown = static_cast<CUjit_option>(12345);
  CHECK(cuModuleLoadDataEx(&module, text.c_str(), 1, &unknown, values) == CUDA_ERROR_INVALID_VALUE);

  // A log that is too small is filled as far as it goes.
  char tiny[8] = "";
  values[0] = tiny;
  values[1] = reinterpret_cast<void*>(sizeof(tiny));
  CHECK(cuModuleLoadDataEx(&module, text.c_str(), 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::strlen(tiny) == 7);
}

TEST_CASE("globals, constants and managed variables have memory with their first bytes") {
  Gpu gpu;
  const CUmodule module = gpu.module();
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CU(cuModuleGetGlobal(&address, &bytes, module, "counter"));
  CHECK(bytes == 4);
  CHECK(gpu.read<int>(address) == 7);
  CU(cuModuleGetGlobal(&address, &bytes, module, "zeros"));
  CHECK(bytes == 4000);
  CHECK(gpu.download<float>(address, 1000) == std::vector<float>(1000, 0.0f));
  CU(cuModuleGetGlobal(&address, &bytes, module, "table"));
  CHECK(bytes == 64);
  CHECK(gpu.download<float>(address, 3) == std::vector<float>{1, 2, 3});
  CU(cuModuleGetGlobal(&address, &bytes, module, "managed"));
  CHECK(reinterpret_cast<const int*>(address)[1] == 20);  // the CPU reads it in place
  CHECK(cuModuleGetGlobal(&address, &bytes, module, "absent") == CUDA_ERROR_NOT_FOUND);

  // The host's writes are seen by a kernel, and the reverse.
  CU(cuModuleGetGlobal(&address, nullptr, module, "table"));
  const float two_and_half = 2.5f;
  CU(cuMemcpyHtoD(address + 4, &two_and_half, 4));
  CU(cuModuleGetGlobal(&address, nullptr, module, "zeros"));
  const float half = 0.5f;
  CU(cuMemcpyHtoD(address + 12, &half, 4));
  const CUdeviceptr out = gpu.upload(std::vector<int>{0, 0});
  CU(launch(gpu.function(module, "bump"), 1, 1, 0, nullptr, out));
  CU(launch(gpu.function(module, "bump"), 1, 1, 0, nullptr, out));
  CHECK(gpu.download<int>(out, 2) == std::vector<int>{8, 3});
  CU(cuModuleGetGlobal(&address, nullptr, module, "counter"));
  CHECK(gpu.read<int>(address) == 9);

  // A second copy of the module has variables of its own.
  const CUmodule second = gpu.module();
  CU(cuModuleGetGlobal(&address, nullptr, second, "counter"));
  CHECK(gpu.read<int>(address) == 7);
}

TEST_CASE("unloading a module gives its memory back") {
  Gpu gpu;
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  CUmodule module = gpu.module();
  CU(cuModuleUnload(module));
  CU(cuMemGetInfo(&before, &total));
  for (int i = 0; i < 50; ++i) {
    module = gpu.module();
    CU(cuModuleUnload(module));
  }
  CU(cuMemGetInfo(&after, &total));
  CHECK(after == before);
}

TEST_CASE("functions are found, counted, and know their parameters") {
  Gpu gpu;
  const CUmodule module = gpu.module();
  unsigned count = 0;
  CU(cuModuleGetFunctionCount(&count, module));
  CHECK(count == 10);
  std::vector<CUfunction> functions(count);
  CU(cuModuleEnumerateFunctions(functions.data(), count, module));
  CUfunction absent = nullptr;
  CHECK(cuModuleGetFunction(&absent, module, "absent") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuModuleGetFunction(&absent, nullptr, "mixed") == CUDA_ERROR_INVALID_HANDLE);

  const CUfunction mixed = gpu.function(module, "mixed");
  const char* name = nullptr;
  CU(cuFuncGetName(&name, mixed));
  CHECK(std::string(name) == "mixed");
  CUmodule owner = nullptr;
  CU(cuFuncGetModule(&owner, mixed));
  CHECK(owner == module);
  const size_t expected[3][2] = {{0, 8}, {8, 40}, {48, 4}};
  for (size_t i = 0; i < 3; ++i) {
    size_t offset = 99;
    size_t size = 99;
    CU(cuFuncGetParamInfo(mixed, i, &offset, &size));
    CHECK(offset == expected[i][0]);
    CHECK(size == expected[i][1]);
  }
  size_t offset = 0;
  CHECK(cuFuncGetParamInfo(mixed, 3, &offset, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUfunctionLoadingState state{};
  CU(cuFuncIsLoaded(&state, mixed));
  CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED);
  CU(cuFuncLoad(mixed));
}

TEST_CASE("function attributes") {
  Gpu gpu;
  const CUfunction reverse = gpu.function(gpu.module(), "reverse");
  int value = 0;
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, reverse));
  CHECK(value == 128);
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, reverse));
  CHECK(value == 512);
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, reverse));
  CHECK(value > 0);
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PTX_VERSION, reverse));
  CHECK(value == 90);
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, reverse));
  CHECK(value == 48 * 1024 - 512);
  CU(cuFuncSetAttribute(reverse, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 * 1024));
  CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, reverse));
  CHECK(value == 64 * 1024);
  CHECK(cuFuncSetAttribute(reverse, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuFuncSetAttribute(reverse, CU_FUNC_ATTRIBUTE_NUM_REGS, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, reverse) == CUDA_ERROR_INVALID_VALUE);
  CU(cuFuncSetCacheConfig(reverse, CU_FUNC_CACHE_PREFER_L1));
}

TEST_CASE("occupancy follows threads and shared memory") {
  Gpu gpu;
  const CUmodule module = gpu.module();
  const CUfunction add = gpu.function(module, "vectorAdd");
  int blocks = 0;
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 1024, 0));
  CHECK(blocks == 2);
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 32, 0));
  CHECK(blocks == 32);
  const CUfunction reverse = gpu.function(module, "reverse");
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reverse, 128, 100 * 1024));
  CHECK(blocks == 2);
  int grid = 0;
  int block = 0;
  CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, add, nullptr, 0, 0));
  CHECK(block >= 256);
  CHECK(grid > 0);
  CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, reverse, nullptr, 0, 0));
  CHECK(block <= 128);
  size_t shared = 0;
  CU(cuOccupancyAvailableDynamicSMemPerBlock(&shared, add, 2, 128));
  CHECK(shared > 48 * 1024);
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 128;
  config.blockDimY = config.blockDimZ = 1;
  int clusters = 0;
  CU(cuOccupancyMaxActiveClusters(&clusters, add, &config));
  CHECK(clusters > 0);
  CU(cuOccupancyMaxPotentialClusterSize(&clusters, add, &config));
  CHECK(clusters == 8);
}

TEST_CASE("libraries load without a context and instantiate in each context that uses them") {
  CU(cuInit(0));
  CU(cuCtxSetCurrent(nullptr));
  CUlibrary library = nullptr;
  CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* yes = reinterpret_cast<void*>(uintptr_t{1});
  const auto image = loadSample("sample_default.fatbin");
  CU(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, &preserved, &yes, 1));
  CUdeviceptr managed = 0;
  size_t bytes = 0;
  CU(cuLibraryGetManaged(&managed, &bytes, library, "managed"));
  CHECK(bytes == 20);
  CHECK(reinterpret_cast<const int*>(managed)[2] == 30);
  CHECK(cuLibraryGetManaged(&managed, &bytes, library, "counter") == CUDA_ERROR_NOT_FOUND);
  CU(cuLibraryGetManaged(&managed, &bytes, library, "managed"));
  unsigned count = 0;
  CU(cuLibraryGetKernelCount(&count, library));
  CHECK(count == 10);
  std::vector<CUkernel> kernels(count);
  CU(cuLibraryEnumerateKernels(kernels.data(), count, library));
  CUkernel bump = nullptr;
  CU(cuLibraryGetKernel(&bump, library, "bump"));
  CUkernel absent = nullptr;
  CHECK(cuLibraryGetKernel(&absent, library, "absent") == CUDA_ERROR_NOT_FOUND);
  CUlibrary owner = nullptr;
  CU(cuKernelGetLibrary(&owner, bump));
  CHECK(owner == library);
  const char* name = nullptr;
  CU(cuKernelGetName(&name, bump));
  CHECK(std::string(name) == "bump");
  size_t offset = 9;
  size_t size = 9;
  CU(cuKernelGetParamInfo(bump, 0, &offset, &size));
  CHECK((offset == 0 && size == 8));
  CHECK(cuKernelGetParamInfo(bump, 1, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  CU(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, bump, 0));
  CHECK(value == 1024);
  CUdeviceptr global = 0;
  CHECK(cuLibraryGetGlobal(&global, &bytes, library, "counter") == CUDA_ERROR_INVALID_CONTEXT);

  CUdeviceptr counters[2] = {};
  for (CUdeviceptr& counter : counters) {
    Gpu gpu;
    const CUdeviceptr out = gpu.upload(std::vector<int>{0, 0});
    CU(launch(reinterpret_cast<CUfunction>(bump), 1, 1, 0, nullptr, out));
    CHECK(gpu.read<int>(out) == 7);
    CU(cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
    CHECK(gpu.read<int>(counter) == 8);
    CUfunction function = nullptr;
    CU(cuKernelGetFunction(&function, bump));
    CU(launch(function, 1, 1, 0, nullptr, out));
    CHECK(gpu.read<int>(out) == 8);
    CUmodule module = nullptr;
    CU(cuLibraryGetModule(&module, library));
    CUfunction sum = gpu.function(module, "managedSum");
    CU(launch(sum, 1, 1, 0, nullptr, out));
    CHECK(gpu.read<int>(out) == 60);
    CHECK(cuModuleUnload(module) != CUDA_SUCCESS);  // it is the library's
    // Attributes set for the kernel on the device hold for its function.
    CU(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000, bump, 0));
    CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    CHECK(value == 60000);
  }
  CU(cuLibraryUnload(library));
  CHECK(cuLibraryGetKernelCount(&count, library) != CUDA_SUCCESS);
  Gpu gpu;
  const CUdeviceptr out = gpu.upload(std::vector<int>{0, 0});
  CHECK(launch(reinterpret_cast<CUfunction>(bump), 1, 1, 0, nullptr, out) ==
        CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("eight threads launch a library's kernel for the first time") {
  Gpu gpu;
  CUlibrary library = nullptr;
  const auto image = loadSample("sample.ptx");
  CU(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  CU(cuLibraryGetKernel(&kernel, library, "increment"));
  const CUdeviceptr sum = gpu.upload(std::vector<int>{0});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      if (cuCtxSetCurrent(gpu.context) != CUDA_SUCCESS) return;
      for (int n = 0; n < 20; ++n)
        (void)launch(reinterpret_cast<CUfunction>(kernel), 2, 32, 0, nullptr, sum, 1);
    });
  }
  for (auto& thread : threads) thread.join();
  CU(cuCtxSynchronize());
  CHECK(gpu.read<int>(sum) == 8 * 20 * 64);
  CU(cuLibraryUnload(library));
}

TEST_CASE("the linker passes one PTX through and refuses what it can't link") {
  Gpu gpu;
  auto text = loadSample("sample.ptx");
  CUlinkState state = nullptr;
  CU(cuLinkCreate(0, nullptr, nullptr, &state));
  CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, text.data(), text.size(), "sample", 0, nullptr,
                   nullptr));
  void* image = nullptr;
  size_t size = 0;
  CU(cuLinkComplete(state, &image, &size));
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, image));
  CU(cuLinkDestroy(state));
  const CUdeviceptr out = gpu.upload(std::vector<int>{0, 0});
  CU(launch(gpu.function(module, "bump"), 1, 1, 0, nullptr, out));
  CHECK(gpu.read<int>(out) == 7);

  char error[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {error, reinterpret_cast<void*>(sizeof(error))};
  CU(cuLinkCreate(2, options, values, &state));
  CU(cuLinkAddFile(state, CU_JIT_INPUT_PTX, (std::string(SAMPLES) + "/sample.ptx").c_str(), 0,
                   nullptr, nullptr));
  CHECK(cuLinkAddData(state, CU_JIT_INPUT_PTX, text.data(), text.size(), "second", 0, nullptr,
                      nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(std::string(error).find("second") != std::string::npos);
  auto cubin = loadSample("sample.cubin");
  CHECK(cuLinkAddData(state, CU_JIT_INPUT_CUBIN, cubin.data(), cubin.size(), "c", 0, nullptr,
                      nullptr) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CU(cuLinkDestroy(state));
  CHECK(cuLinkDestroy(state) == CUDA_ERROR_INVALID_HANDLE);
}
