// Shared by the tests of the simulated GPU: a context, device memory, samples.
#pragma once

#include <cuda.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/catch.h"

#define CU(call) REQUIRE((call) == CUDA_SUCCESS)

inline std::vector<char> loadSample(const std::string& name) {
  std::ifstream in(std::string(SAMPLES) + "/" + name, std::ios::binary);
  REQUIRE(in.good());
  std::vector<char> bytes(std::istreambuf_iterator<char>(in), {});
  bytes.push_back('\0');
  return bytes;
}

/// A context of its own for each test, current on the test's thread.
class Gpu {
 public:
  Gpu() {
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuCtxCreate(&context, nullptr, 0, device));
  }
  ~Gpu() { (void)cuCtxDestroy(context); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  CUmodule module(const std::string& name = "sample_default.fatbin") {
    CUmodule loaded = nullptr;
    CU(cuModuleLoadData(&loaded, loadSample(name).data()));
    return loaded;
  }
  CUfunction function(CUmodule from, const char* name) {
    CUfunction found = nullptr;
    CU(cuModuleGetFunction(&found, from, name));
    return found;
  }
  template <typename T>
  CUdeviceptr upload(const std::vector<T>& values) {
    CUdeviceptr address = 0;
    CU(cuMemAlloc(&address, values.size() * sizeof(T)));
    CU(cuMemcpyHtoD(address, values.data(), values.size() * sizeof(T)));
    return address;
  }
  template <typename T>
  std::vector<T> download(CUdeviceptr address, size_t count) {
    std::vector<T> values(count);
    CU(cuMemcpyDtoH(values.data(), address, count * sizeof(T)));
    return values;
  }
  template <typename T>
  T read(CUdeviceptr address) {
    return download<T>(address, 1)[0];
  }

  CUdevice device = 0;
  CUcontext context = nullptr;
};

/// Launches with one block shape in x, arguments by address.
template <typename... Args>
CUresult launch(CUfunction function, unsigned grid, unsigned block, unsigned shared,
                CUstream stream, Args... args) {
  void* pointers[] = {static_cast<void*>(&args)..., nullptr};
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, pointers, nullptr);
}
