// A kernel compiled at run time by NVRTC, to PTX, twice: the second time the driver's cache of
// compiled code may have it. Skipped where there is no NVRTC.
#include <cuda.h>
#include <dlfcn.h>

#include <string>
#include <vector>

#include "driver_program.h"

namespace {

using Program = void*;

struct Nvrtc {
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(Program, int, const char* const*);
  int (*ptxSize)(Program, size_t*);
  int (*ptx)(Program, char*);
  int (*destroy)(Program*);
};

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

std::string compiled(const Nvrtc& nvrtc, const std::string& source) {
  Program program = nullptr;
  CHECK(nvrtc.create(&program, source.c_str(), "scale.cu", 0, nullptr, nullptr) == 0,
        "nvrtcCreateProgram failed");
  const char* const options[] = {"--gpu-architecture=compute_75"};
  CHECK(nvrtc.compile(program, 1, options) == 0, "nvrtcCompileProgram failed");
  size_t bytes = 0;
  CHECK(nvrtc.ptxSize(program, &bytes) == 0 && bytes > 1, "nvrtcGetPTXSize failed");
  std::string ptx(bytes, '\0');
  CHECK(nvrtc.ptx(program, ptx.data()) == 0, "nvrtcGetPTX failed");
  CHECK(nvrtc.destroy(&program) == 0, "nvrtcDestroyProgram failed");
  return ptx;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  Nvrtc nvrtc{};
  void* library = nullptr;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW);
  }
  // A toolkit that the loader does not know: NVRTC looks for its builtins by name, which it finds
  // loaded.
  if (library == nullptr &&
      dlopen("/usr/local/cuda/lib64/libnvrtc-builtins.so", RTLD_NOW | RTLD_GLOBAL) != nullptr)
    library = dlopen("/usr/local/cuda/lib64/libnvrtc.so", RTLD_NOW);
  if (library == nullptr || !find(library, "nvrtcCreateProgram", nvrtc.create) ||
      !find(library, "nvrtcCompileProgram", nvrtc.compile) ||
      !find(library, "nvrtcGetPTXSize", nvrtc.ptxSize) ||
      !find(library, "nvrtcGetPTX", nvrtc.ptx) ||
      !find(library, "nvrtcDestroyProgram", nvrtc.destroy))
    apps::skip("no NVRTC on this machine");
  CUdevice device = 0;
  CUcontext context = nullptr;
  DRIVER_OK(cuInit(0));
  DRIVER_OK(cuDeviceGet(&device, 0));
  DRIVER_OK(cuDevicePrimaryCtxRetain(&context, device));
  DRIVER_OK(cuCtxSetCurrent(context));
  const unsigned factor = 3 + static_cast<unsigned>(options.seed);
  const std::string source =
      "extern \"C\" __global__ void scale(unsigned* data, unsigned n) {\n"
      "  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
      "  if (i < n) data[i] *= " +
      std::to_string(factor) + ";\n}\n";
  const std::string ptx = compiled(nvrtc, source);
  CHECK(compiled(nvrtc, source) == ptx, "the same source gave other PTX");
  CUmodule module = nullptr;
  CUfunction scale = nullptr;
  DRIVER_OK(cuModuleLoadData(&module, ptx.c_str()));
  DRIVER_OK(cuModuleGetFunction(&scale, module, "scale"));
  unsigned count = 1 << 16;
  std::vector<unsigned> data(count);
  for (unsigned i = 0; i < count; ++i) data[i] = i;
  CUdeviceptr there = 0;
  DRIVER_OK(cuMemAlloc(&there, count * sizeof data[0]));
  DRIVER_OK(cuMemcpyHtoD(there, data.data(), count * sizeof data[0]));
  void* parameters[] = {&there, &count};
  DRIVER_OK(cuLaunchKernel(scale, count / 256, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  DRIVER_OK(cuMemcpyDtoH(data.data(), there, count * sizeof data[0]));
  for (unsigned i = 0; i < count; ++i) CHECK(data[i] == i * factor, "element %u is %u", i, data[i]);
  DRIVER_OK(cuMemFree(there));
  DRIVER_OK(cuModuleUnload(module));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("nvrtc: PTX of %zu bytes", ptx.size());
}
