// Launches of the simulated GPU: every way to pass parameters, what is refused, what faults do.
#include <cstring>

#include "tests/unit/simmodules/sim_fixture.h"

namespace {

struct Mixed {
  int a;
  double b;
  char c[20];
};

struct Large {
  char bytes[5000];
};

}  // namespace

TEST_CASE("parameters by pointer array, by buffer, by configuration") {
  Gpu gpu;
  const CUmodule module = gpu.module();
  const CUfunction mixed = gpu.function(module, "mixed");
  const CUdeviceptr out = gpu.upload(std::vector<int>{0});
  Mixed m{100, 20.5, {}};
  m.c[19] = 3;
  float f = 4.5f;
  CU(launch(mixed, 1, 1, 0, nullptr, out, m, f));
  CHECK(gpu.read<int>(out) == 127);

  struct {
    CUdeviceptr out;
    Mixed m;
    float f;
  } packed{out, m, 5.5f};
  size_t size = 52;  // up to the last parameter, without the struct's padding
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  CU(cuLaunchKernel(mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  CHECK(gpu.read<int>(out) == 128);
  size = sizeof(packed);
  CHECK(cuLaunchKernel(mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) ==
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);

  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  CUdeviceptr target = out;
  f = 6.5f;
  void* pointers[] = {&target, &m, &f};
  CU(cuLaunchKernelEx(&config, mixed, pointers, nullptr));
  CHECK(gpu.read<int>(out) == 129);

  Large large{};
  large.bytes[4999] = 77;
  CU(launch(gpu.function(module, "large"), 1, 1, 0, nullptr, large, out));
  CHECK(gpu.read<int>(out) == 77);
}

TEST_CASE("parameters are copied at the call") {
  Gpu gpu;
  const CUfunction increment = gpu.function(gpu.module(), "increment");
  CUdeviceptr sum = gpu.upload(std::vector<int>{0});
  int by = 0;
  void* pointers[] = {&sum, &by};
  for (by = 1; by <= 100; ++by)
    CU(cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, nullptr));
  CU(cuCtxSynchronize());
  CHECK(gpu.read<int>(sum) == 5050);
}

TEST_CASE("a vector sum over several blocks") {
  Gpu gpu;
  const CUfunction add = gpu.function(gpu.module(), "vectorAdd");
  const int n = 10000;
  std::vector<float> a(n);
  std::vector<float> b(n);
  for (int i = 0; i < n; ++i) {
    a[static_cast<size_t>(i)] = static_cast<float>(i);
    b[static_cast<size_t>(i)] = static_cast<float>(2 * i);
  }
  const CUdeviceptr da = gpu.upload(a);
  const CUdeviceptr db = gpu.upload(b);
  const CUdeviceptr dc = gpu.upload(std::vector<float>(n));
  CU(launch(add, (n + 255) / 256, 256, 0, nullptr, da, db, dc, n));
  const auto c = gpu.download<float>(dc, n);
  for (size_t i = 0; i < c.size(); ++i) REQUIRE(c[i] == static_cast<float>(3 * i));
}

TEST_CASE("shared memory, static and dynamic") {
  Gpu gpu;
  const CUfunction reverse = gpu.function(gpu.module(), "reverse");
  std::vector<int> values(128);
  for (int i = 0; i < 128; ++i) values[static_cast<size_t>(i)] = i;
  const CUdeviceptr data = gpu.upload(values);
  CU(launch(reverse, 1, 128, 512, nullptr, data));
  const auto result = gpu.download<int>(data, 128);
  for (int i = 0; i < 128; ++i) REQUIRE(result[static_cast<size_t>(i)] == 127 - i);

  CHECK(launch(reverse, 1, 128, 48 * 1024, nullptr, data) == CUDA_ERROR_INVALID_VALUE);
  CU(cuFuncSetAttribute(reverse, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 * 1024));
  CU(launch(reverse, 1, 128, 100 * 1024, nullptr, data));
  CU(cuCtxSynchronize());
}

TEST_CASE("shapes that a device can't run are refused") {
  Gpu gpu;
  const CUmodule module = gpu.module();
  const CUfunction add = gpu.function(module, "vectorAdd");
  const auto shape = [&](unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                         unsigned bz) {
    CUdeviceptr none = 0;
    int n = 0;
    void* pointers[] = {&none, &none, &none, &n};
    return cuLaunchKernel(add, gx, gy, gz, bx, by, bz, 0, nullptr, pointers, nullptr);
  };
  CHECK(shape(1, 1, 1, 1, 1, 1) == CUDA_SUCCESS);
  CHECK(shape(0, 1, 1, 1, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shape(1, 1, 1, 1, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shape(1, 65536, 1, 1, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shape(1, 1, 1, 1025, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shape(1, 1, 1, 1, 1, 65) == CUDA_ERROR_INVALID_VALUE);
  CHECK(shape(1, 1, 1, 64, 32, 1) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr data = gpu.upload(std::vector<int>(256));
  CHECK(launch(gpu.function(module, "reverse"), 1, 256, 0, nullptr, data) ==
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLaunchKernelEx(nullptr, add, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);

  CUlaunchConfig config{};
  config.gridDimX = 3;
  config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {2, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  CUdeviceptr none = 0;
  int n = 0;
  void* pointers[] = {&none, &none, &none, &n};
  CHECK(cuLaunchKernelEx(&config, add, pointers, nullptr) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
  config.gridDimX = 4;
  CHECK(cuLaunchKernelEx(&config, add, pointers, nullptr) == CUDA_SUCCESS);
  CU(cuCtxSynchronize());
}

TEST_CASE("a function belongs to its context") {
  Gpu first;
  const CUfunction increment = first.function(first.module(), "increment");
  const CUdeviceptr sum = first.upload(std::vector<int>{0});
  Gpu second;
  CHECK(launch(increment, 1, 1, 0, nullptr, sum, 1) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a cooperative grid waits for all of its blocks") {
  Gpu gpu;
  const CUfunction total = gpu.function(gpu.module(), "gridTotal");
  const unsigned blocks = 24;
  CUdeviceptr sum = gpu.upload(std::vector<int>{0});
  CUdeviceptr out = gpu.upload(std::vector<int>(blocks));
  void* pointers[] = {&sum, &out};
  for (int round = 1; round <= 3; ++round) {
    CU(cuLaunchCooperativeKernel(total, blocks, 1, 1, 64, 1, 1, 0, nullptr, pointers));
    const int expected = round * static_cast<int>(blocks * (blocks + 1) / 2);
    CHECK(gpu.download<int>(out, blocks) == std::vector<int>(blocks, expected));
  }
  CHECK(cuLaunchCooperativeKernel(total, 1000000, 1, 1, 64, 1, 1, 0, nullptr, pointers) ==
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

TEST_CASE("a store to nowhere is a sticky illegal address", "[.][fault]") {
  Gpu gpu;
  const CUmodule module = gpu.module();
  const CUfunction store = gpu.function(module, "storeTo");
  const CUdeviceptr fine = gpu.upload(std::vector<int>{0});
  CU(launch(store, 1, 1, 0, nullptr, CUdeviceptr{0x1234560}));
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(launch(store, 1, 1, 0, nullptr, fine) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUmodule again = nullptr;
  CHECK(cuModuleLoadData(&again, loadSample("sample.ptx").data()) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuModuleUnload(module) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a trap is a sticky launch failure", "[.][fault]") {
  Gpu gpu;
  CU(launch(gpu.function(gpu.module(), "trap"), 1, 1, 0, nullptr));
  CHECK(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED);
}
